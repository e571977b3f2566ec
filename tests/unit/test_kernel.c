/* Units of kernels/kernel: the table that kernels.def becomes, and that all modules load, hold
 * every kernel, are shared, and launch nothing that is not loaded. */
#include "../../csrc/comm/names.h"
#include "../../csrc/kernels/kernel.h"

#include "unit.h"

static int ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static void check_rows(void)
{
    for (int id = 0; id < KERNELS; id++) {
        const struct kernel_row *row = &kernel_rows[id];
        EXPECT_HAS(row->entry, row->file);
        EXPECT(strncmp(row->entry, "smfar_", 6) == 0, "%s", row->entry);
        EXPECT(row->multicast == ends_in(row->file, "_mc"), "%s", row->entry);
        EXPECT(row->multicast || ends_in(row->file, "_peer"), "%s", row->entry);
        int float8 = row->dtype == SMFAR_F8_E4M3 || row->dtype == SMFAR_F8_E5M2;
        EXPECT_EQ(kernel_modules[id], !row->multicast ? MODULE_PEER
                                      : float8        ? MODULE_MC_F8
                                                      : MODULE_MC);
        EXPECT_EQ(kernel_find(row->file, row->op, row->dtype), id);
    }
    EXPECT_EQ(kernel_find("all_reduce_twoshot_mc", SMFAR_SUM, SMFAR_F32),
              KERNEL_all_reduce_twoshot_mc_sum_f32);
    EXPECT_EQ(kernel_find("all_reduce_twoshot_mc", SMFAR_AVG, SMFAR_F16), KERNELS);
    EXPECT_EQ(kernel_find("no_such_file", SMFAR_SUM, SMFAR_F32), KERNELS);
}

/* Every entry is in the text that travels; there are three modules. */
static void check_texts(void)
{
    const char *texts[MODULES] = {smfar_kernel_text("peer"), smfar_kernel_text("mc"),
                                  smfar_kernel_text("mc_f8")};
    REQUIRE(texts[0] && texts[1] && texts[2], "a module has no text");
    for (int id = 0; id < KERNELS; id++)
        EXPECT(strstr(texts[kernel_modules[id]], kernel_rows[id].entry), "no text of %s",
               kernel_rows[id].entry);
    EXPECT(smfar_kernel_text("other") == NULL, "a fourth module");
    EXPECT(smfar_kernel_text(NULL) == NULL, "a module without a name");
}

/* What plans take for the most threads of an algorithm is what its kernels allow. */
static void check_threads(void)
{
    char file[64];
    for (int i = ALGORITHM_ANY + 1; i < ALGORITHMS; i++) {
        const struct algorithm_row *row = &algorithm_rows[i];
        int pulls = strncmp(row->name, "pull", 4) == 0;
        snprintf(file, sizeof file, "%s_%s", pulls ? "reduce_scatter" : "all_reduce",
                 row->name + (pulls ? 5 : 0));
        enum kernel_id id = kernel_find(file, SMFAR_SUM, SMFAR_F32);
        if (id == KERNELS) id = kernel_find(file, SMFAR_SUM, SMFAR_I32);
        REQUIRE(id != KERNELS, "no kernel of %s", file);
        const char *text = smfar_kernel_text(row->multicast ? "mc" : "peer");
        const char *most = strstr(strstr(text, kernel_rows[id].entry), ".maxntid");
        EXPECT_EQ(atoi(most + strlen(".maxntid")), row->threads);
    }
}

static void check_loaded(struct driver *driver, int multicast, int float8)
{
    struct kernels *kernels;
    REQUIRE(kernels_load(driver, multicast, &kernels) == SMFAR_OK, "%s", smfar_last_error());
    if (float8) REQUIRE(kernels_load_float8(kernels) == SMFAR_OK, "%s", smfar_last_error());
    for (int id = 0; id < KERNELS; id++) {
        int registers = 0, local = -1;
        int expected = kernel_modules[id] == MODULE_PEER ||
                       (kernel_modules[id] == MODULE_MC ? multicast : float8);
        enum smfar_status status =
            kernel_resources(kernels, (enum kernel_id)id, &registers, &local);
        EXPECT_EQ(status, expected ? SMFAR_OK : SMFAR_ERR_UNSUPPORTED);
        if (expected) EXPECT_EQ(local, 0);
        if (!expected) EXPECT_HAS(smfar_last_error(), kernel_rows[id].entry);
    }
    kernels_unload(kernels);
}

static struct driver unwatched;
static _Atomic int loads, unloads;

static CUresult count_load(CUmodule *module, const void *image, unsigned count,
                           CUjit_option *options, void **values)
{
    loads++;
    return unwatched.cuModuleLoadDataEx(module, image, count, options, values);
}

static CUresult count_unload(CUmodule module)
{
    unloads++;
    return unwatched.cuModuleUnload(module);
}

struct user {
    struct driver *driver;
    CUcontext context;
    pthread_barrier_t *all_have_them;
    enum smfar_status status;
};

static void *use(void *arg)
{
    struct user *me = arg;
    struct kernels *kernels = NULL;
    int registers, local;
    me->driver->cuCtxPushCurrent(me->context);
    me->status = kernels_load(me->driver, 1, &kernels);
    pthread_barrier_wait(me->all_have_them);
    if (me->status == SMFAR_OK)
        me->status = kernel_resources(kernels, KERNEL_barrier_mc, &registers, &local);
    kernels_unload(kernels);
    return NULL;
}

/* One user after another, and several at once, on one context. */
static void check_shared(struct driver *driver, CUcontext context)
{
    enum { USERS = 4 };
    struct kernels *first, *second;
    pthread_t threads[USERS];
    pthread_barrier_t all_have_them;
    struct user users[USERS];
    int registers, local;
    unwatched = *driver;
    driver->cuModuleLoadDataEx = count_load;
    driver->cuModuleUnload = count_unload;
    REQUIRE(kernels_load(driver, 0, &first) == SMFAR_OK, "%s", smfar_last_error());
    REQUIRE(kernels_load(driver, 1, &second) == SMFAR_OK, "%s", smfar_last_error());
    EXPECT_EQ(loads, 2); /* its own and what the other had not */
    kernels_unload(first);
    EXPECT_EQ(unloads, 0);
    EXPECT_EQ(kernel_resources(second, KERNEL_barrier_peer, &registers, &local), SMFAR_OK);
    kernels_unload(second);
    EXPECT_EQ(unloads, 2);
    pthread_barrier_init(&all_have_them, NULL, USERS);
    for (int i = 0; i < USERS; i++) {
        users[i] = (struct user){driver, context, &all_have_them, SMFAR_OK};
        REQUIRE(pthread_create(&threads[i], NULL, use, &users[i]) == 0, "no thread");
    }
    for (int i = 0; i < USERS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_EQ(users[i].status, SMFAR_OK);
    }
    EXPECT_EQ(loads, unloads);
    *driver = unwatched;
    pthread_barrier_destroy(&all_have_them);
}

static CUresult another_id(CUcontext context, unsigned long long *id)
{
    CUresult result = unwatched.cuCtxGetId(context, id);
    *id += 1;
    return result;
}

/* A device that was reset has lost its modules, and its context may have the handle of before. */
static void check_reset(struct driver *driver)
{
    struct kernels *before, *after;
    unwatched = *driver;
    loads = 0;
    driver->cuModuleLoadDataEx = count_load;
    REQUIRE(kernels_load(driver, 0, &before) == SMFAR_OK, "%s", smfar_last_error());
    driver->cuCtxGetId = another_id;
    REQUIRE(kernels_load(driver, 0, &after) == SMFAR_OK, "%s", smfar_last_error());
    EXPECT_EQ(loads, 2);
    kernels_unload(before);
    kernels_unload(after);
    *driver = unwatched;
}

int main(void)
{
    struct driver *driver;
    CUcontext context = NULL;
    setenv("SMFAR_SOFT_CC", "100", 1); /* which all modules are for */
    check_rows();
    check_texts();
    check_threads();
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
    REQUIRE(driver->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "no context");
    REQUIRE(driver->cuCtxPushCurrent(context) == CUDA_SUCCESS, "context not current");
    check_loaded(driver, 0, 0);
    check_loaded(driver, 1, 0);
    check_loaded(driver, 1, 1);
    check_shared(driver, context);
    check_reset(driver);
    kernels_unload(NULL);
    driver->cuDevicePrimaryCtxRelease(0);
    driver_close(driver);
    return unit_end();
}
