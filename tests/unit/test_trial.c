/* What a group tries of multicast when it is made: copies of any size and alignment to the
 * multicast address, which are not used where pieces of a tensor would come to the wrong place; and
 * a trial that the driver loses sight of for a while, which costs no memory once it is seen to have
 * ended. Ranks are threads on the software switch. */
#include "../../csrc/driver/driver.h"
#include "ranks.h"
#include "switch.h"

enum { RANKS = 3, COUNT = 5003, FAULTY = 1, TIMEOUT_MS = 60000 };

/* What goes wrong on the device of one rank, and what is then said of the switch. */
struct fault {
    size_t multiple; /* copies go to the one below; 0: where they should */
    enum { OF_NOTHING, OF_COPIES, OF_FLOAT8 } loses_sight; /* of their trial, the last */
    const char *said;
};

static const struct fault *fault;
static struct driver *driver;
static CUresult (*copy_as_asked)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
static CUresult (*load_as_asked)(CUmodule *, const void *, unsigned, CUjit_option *, void **);
static CUresult (*attribute_as_asked)(int *, CUdevice_attribute, CUdevice);
static CUresult (*synchronize_as_asked)(CUstream);
static CUresult (*query_as_asked)(CUstream);
static _Thread_local enum { IN_SIGHT, SOON_LOST, LOST } sight; /* of the thread that sets up */

static int is_faulty(void)
{
    CUdevice device = -1;
    driver->cuCtxGetDevice(&device);
    return device == FAULTY;
}

/* On a Hopper nothing is tried after copies. */
static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device)
{
    CUresult result = attribute_as_asked(value, which, device);
    int major = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    if (major && fault->loses_sight == OF_COPIES) *value = 9;
    return result;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (fault->multiple && is_faulty()) to -= to % fault->multiple;
    if (fault->loses_sight == OF_COPIES && is_faulty()) sight = SOON_LOST;
    return copy_as_asked(to, from, bytes, stream);
}

static CUresult load(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                     void **values)
{
    int lost = fault->loses_sight == OF_FLOAT8 && image == smfar_kernel_text("mc_f8");
    if (lost && is_faulty()) sight = SOON_LOST;
    return load_as_asked(module, image, count, options, values);
}

/* Fails once. */
static CUresult synchronize(CUstream stream)
{
    int lost = sight == SOON_LOST;
    sight = lost ? LOST : IN_SIGHT;
    return lost ? CUDA_ERROR_UNKNOWN : synchronize_as_asked(stream);
}

static CUresult query(CUstream stream)
{
    return sight == LOST ? CUDA_ERROR_NOT_READY : query_as_asked(stream);
}

static void body(struct ranks_thread *me)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 4 << 20};
    char text[2048];
    void *window;
    smfar_comm *comm;
    unsigned wrong = 0;
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    must(smfar_comm_describe(comm, text, sizeof text));
    EXPECT_HAS(text, fault->said);
    must(smfar_window_alloc(comm, COUNT * sizeof(int32_t), &window));
    int32_t *data = window;
    for (int i = 0; i < COUNT; i++)
        data[i] = i + me->rank;
    must(smfar_all_reduce(data, data, COUNT, SMFAR_I32, SMFAR_SUM, comm, NULL));
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    for (int i = 0; i < COUNT; i++)
        wrong += data[i] != 3 * i + 3;
    EXPECT(wrong == 0, "rank %d: %u are wrong", me->rank, wrong);
    smfar_window_free(comm, window);
    smfar_comm_finalize(comm);
    EXPECT(smfar_comm_quiet(comm), "rank %d keeps its memory", me->rank);
    smfar_comm_destroy(comm);
}

int main(void)
{
    static const struct fault faults[] = {{0, OF_NOTHING, "copies tried"},
                                          {2, OF_NOTHING, "copies to it do not work"},
                                          {4, OF_NOTHING, "copies to it do not work"},
                                          {16, OF_NOTHING, "copies to it do not work"},
                                          {0, OF_COPIES, "copies to it do not work"},
                                          {0, OF_FLOAT8, "8-bit floats in the switch: off"}};
    setenv("SMFAR_SOFT_CC", "100", 1);
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    copy_as_asked = driver->cuMemcpyAsync;
    driver->cuMemcpyAsync = copy;
    load_as_asked = driver->cuModuleLoadDataEx;
    driver->cuModuleLoadDataEx = load;
    attribute_as_asked = driver->cuDeviceGetAttribute;
    driver->cuDeviceGetAttribute = attribute;
    synchronize_as_asked = driver->cuStreamSynchronize;
    driver->cuStreamSynchronize = synchronize;
    query_as_asked = driver->cuStreamQuery;
    driver->cuStreamQuery = query;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fault = &faults[i];
        ranks_run(RANKS, body, NULL);
    }
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
