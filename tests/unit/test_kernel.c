/* Units of kernels/kernel: the table that kernels.def becomes, and that all modules load, hold
 * every kernel, and launch nothing that is not loaded. */
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
        EXPECT_EQ(row->module, !row->multicast ? MODULE_PEER : float8 ? MODULE_MC_F8 : MODULE_MC);
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
        EXPECT(strstr(texts[kernel_rows[id].module], kernel_rows[id].entry), "no text of %s",
               kernel_rows[id].entry);
    EXPECT(smfar_kernel_text("other") == NULL, "a fourth module");
    EXPECT(smfar_kernel_text(NULL) == NULL, "a module without a name");
}

static void check_loaded(struct driver *driver, int multicast, int float8)
{
    struct kernels *kernels;
    REQUIRE(kernels_load(driver, multicast, &kernels) == SMFAR_OK, "%s", smfar_last_error());
    if (float8) REQUIRE(kernels_load_float8(kernels) == SMFAR_OK, "%s", smfar_last_error());
    for (int id = 0; id < KERNELS; id++) {
        int registers = 0, local = -1;
        int expected = kernel_rows[id].module == MODULE_PEER ||
                       (kernel_rows[id].module == MODULE_MC ? multicast : float8);
        enum smfar_status status =
            kernel_resources(kernels, (enum kernel_id)id, &registers, &local);
        EXPECT_EQ(status, expected ? SMFAR_OK : SMFAR_ERR_UNSUPPORTED);
        if (expected) EXPECT_EQ(local, 0);
        if (!expected) EXPECT_HAS(smfar_last_error(), kernel_rows[id].entry);
    }
    kernels_unload(kernels);
}

int main(void)
{
    struct driver *driver;
    CUcontext context = NULL;
    setenv("SMFAR_SOFT_CC", "100", 1); /* which all modules are for */
    check_rows();
    check_texts();
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
    REQUIRE(driver->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "no context");
    REQUIRE(driver->cuCtxPushCurrent(context) == CUDA_SUCCESS, "context not current");
    check_loaded(driver, 0, 0);
    check_loaded(driver, 1, 0);
    check_loaded(driver, 1, 1);
    kernels_unload(NULL);
    driver->cuDevicePrimaryCtxRelease(0);
    driver_close(driver);
    return unit_end();
}
