/* Sums of 8-bit floats through the switch, on virtual GPUs that have one that does: taken once they
 * have been tried, and over peers, with the same group, where one rank cannot load the kernels or
 * the switch sums in another way than is expected. */
#include "../../csrc/driver/driver.h"
#include "ranks.h"
#include "switch.h"

enum { RANKS = 3, COUNT = 5003, REFUSED = 1, TIMEOUT_MS = 60000 };

/* What the module's loads and sums are made to do, and what becomes of it. */
struct fault {
    int refused;               /* on the device of this number; -1: nowhere */
    const char *text;          /* loaded in the module's place; NULL: the module's own */
    int from, span, to;        /* so many codes of sums, from this on, come out as that one */
    size_t every;              /* of so many, the last; 0: all */
    const char *said;          /* of the switch by the group */
    const char *algorithms[2]; /* of e4m3 sums without and with a fixed order */
};

static const struct fault *fault;
static CUresult (*load_as_asked)(CUmodule *, const void *, unsigned, CUjit_option *, void **);
static CUresult (*read_as_asked)(void *, CUdeviceptr, size_t, CUstream);
static struct driver *driver;
static _Thread_local int trying; /* this thread has loaded the module, and tries it */

static CUresult load(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                     void **values)
{
    CUdevice device = -1;
    if (image == smfar_kernel_text("mc_f8")) {
        driver->cuCtxGetDevice(&device);
        if (fault->refused == device) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        if (fault->text) image = fault->text;
        trying = 1;
    }
    return load_as_asked(module, image, count, options, values);
}

/* What a trial reads back. */
static CUresult read_sums(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    uint8_t *codes = to;
    CUresult result = read_as_asked(to, from, bytes, stream);
    if (result != CUDA_SUCCESS || !trying || !fault->span) return result;
    driver->cuStreamSynchronize(stream);
    size_t every = fault->every ? fault->every : 1;
    for (size_t i = every - 1; i < bytes; i += every)
        if (codes[i] >= fault->from && codes[i] < fault->from + fault->span)
            codes[i] = (uint8_t)fault->to;
    return result;
}

/* The code of a whole number from 1 to 16, all of which e4m3 has. */
static uint8_t code_of(unsigned number)
{
    unsigned exponent = 31 - (unsigned)__builtin_clz(number);
    return (uint8_t)((exponent + 7) << 3 | ((number << 3 >> exponent) & 7));
}

static void check_sum(smfar_comm *comm, struct ranks_thread *me, uint8_t *data)
{
    unsigned wrong = 0;
    for (unsigned i = 0; i < COUNT; i++)
        data[i] = code_of(1 + (i + (unsigned)me->rank) % 3);
    data[COUNT] = 0x55;
    must(smfar_all_reduce(data, data, COUNT, SMFAR_F8_E4M3, SMFAR_SUM, comm, NULL));
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    for (unsigned i = 0; i < COUNT; i++)
        wrong += data[i] != code_of(6); /* of three ranks: 1, 2 and 3 */
    EXPECT(wrong == 0 && data[COUNT] == 0x55, "rank %d: %u are wrong", me->rank, wrong);
}

static void expect_plan(smfar_comm *comm, enum smfar_dtype dtype, enum smfar_op op,
                        const char *algorithm)
{
    char text[512];
    must(smfar_explain(comm, NULL, COUNT, dtype, op, text, sizeof text));
    EXPECT_HAS(text, algorithm);
}

static void body(struct ranks_thread *me)
{
    static uint8_t plain[RANKS][COUNT + 1];
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 4 << 20};
    char text[2048];
    void *window;
    smfar_comm *comm;
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    must(smfar_comm_describe(comm, text, sizeof text));
    EXPECT_HAS(text, "multicast on");
    EXPECT_HAS(text, fault->said);
    must(smfar_window_alloc(comm, COUNT + 1, &window));
    check_sum(comm, me, window);
    check_sum(comm, me, plain[me->rank]);
    expect_plan(comm, SMFAR_F8_E4M3, SMFAR_SUM, fault->algorithms[0]);
    expect_plan(comm, SMFAR_F8_E4M3, SMFAR_AVG, "twoshot_peer");
    expect_plan(comm, SMFAR_F8_E5M2, SMFAR_SUM, "twoshot_peer");
    smfar_fixed_order(1);
    expect_plan(comm, SMFAR_F8_E4M3, SMFAR_SUM, fault->algorithms[1]);
    check_sum(comm, me, window);
    smfar_fixed_order(0);
    must(smfar_comm_error(comm));
    smfar_window_free(comm, window);
    smfar_comm_destroy(comm);
}

/* The module with its sums replaced. */
static char *other_text(const char *sums)
{
    static const char add[] = "add.acc::f16.v4.e4m3x4";
    char *text = strdup(smfar_kernel_text("mc_f8"));
    REQUIRE(text && strlen(sums) <= strlen(add), "no text");
    for (char *at = text; (at = strstr(at, add));) {
        memset(at, ' ', sizeof add - 1);
        memcpy(at, sums, strlen(sums));
    }
    return text;
}

#define WRONG ": a sum of 8-bit floats in the switch gave 0x"
#define PEERS {"twoshot_peer", "twoshot_peer"}

int main(void)
{
    setenv("SMFAR_SOFT_CC", "103", 1);
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    load_as_asked = driver->cuModuleLoadDataEx;
    driver->cuModuleLoadDataEx = load;
    read_as_asked = driver->cuMemcpyDtoHAsync;
    driver->cuMemcpyDtoHAsync = read_sums;
    char *max = other_text("max.v4.e4m3x4"), *stepwise = other_text("add.v4.e4m3x4");
    const struct fault faults[] = {
        {-1, NULL, 0, 0, 0, 0, "8-bit floats in the switch: on", {"twoshot_mc", "twoshot_peer"}},
        {REFUSED, NULL, 0, 0, 0, 0, "failed on rank 1: module mc_f8: ", PEERS},
        {-1, max, 0, 0, 0, 0, WRONG, PEERS},
        {-1, stepwise, 0, 0, 0, 0, WRONG, PEERS},   /* rounded after every addition */
        {-1, NULL, 0x59, 1, 0x58, 0, WRONG, PEERS}, /* 17.5 towards zero */
        {-1, NULL, 0x5a, 1, 0x59, 0, WRONG, PEERS}, /* 19, between two, to the lower */
        {-1, NULL, 0xd8, 1, 0xd9, 0, WRONG, PEERS}, /* -17, between two, to the larger */
        {-1, NULL, 0x59, 1, 0x58, 4, WRONG, PEERS}, /* 16 + 1 + 1, rounded on the way */
        {-1, NULL, 0xd9, 1, 0xd8, 4, WRONG, PEERS}, /* -1 - 16 - 1 */
        {-1, NULL, 0x01, 7, 0x00, 0, WRONG, PEERS}, /* subnormals lost */
        {-1, NULL, 0x7e, 1, 0x7f, 0, WRONG, PEERS}, /* 448 taken for too large, and made a NaN */
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fault = &faults[i];
        ranks_run(RANKS, body, NULL);
    }
    free(max);
    free(stepwise);
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
