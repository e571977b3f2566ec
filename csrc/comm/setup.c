/* From a configuration to a usable communicator. Every step that can fail on one rank alone ends in
 * exchange_agree, so that all ranks go on or give up together; whatever was built is undone by
 * smfar_comm_destroy, which accepts half-built communicators. */
#include <stdio.h>
#include <string.h>

#include "../base/env.h"
#include "../base/log.h"
#include "comm.h"
#include "courier.h"
#include "supervise.h"
#include "watchdog.h"

enum {
    DEFAULT_TIMEOUT_MS = 600000,
    DEFAULT_WINDOW = 256 << 20,
    MOST_BUDGET = 1 << 16, /* more than any GPU has multiprocessors */
    MOST_CHUNK = 64 << 20,
    LEAST_CHUNK = 64 << 10,
    MOST_ONESHOT = 256 << 10,
    MOST_MAILBOX = 1 << 20,
    LEAST_MAILBOX = 1 << 10,
    BLOCK_THREADS = 1024
};

/* What the caller, the environment and the defaults say, in this order. */
struct choice {
    int device, sm_budget, multicast;
    size_t window_bytes, chunk_bytes;
    const char *no_multicast; /* why not, as far as configured */
    int fixed_order, copy_engines;
};

static void choose(const struct smfar_config *config, struct choice *choice)
{
    int64_t ceiling = env_number(ENV_NCCL_MAX_CTAS, 1, 0);
    int64_t budget = config->sm_budget ? config->sm_budget : env_number(ENV_SM_BUDGET, 1, 0);
    if (ceiling && (!budget || budget > ceiling)) budget = ceiling;
    choice->device = config->device;
    choice->sm_budget = budget < MOST_BUDGET ? (int)budget : MOST_BUDGET;
    choice->window_bytes = config->window_bytes
                               ? config->window_bytes
                               : (size_t)env_number(ENV_WINDOW_BYTES, 1 << 20, DEFAULT_WINDOW);
    choice->chunk_bytes =
        config->chunk_bytes ? config->chunk_bytes : (size_t)env_number(ENV_CHUNK_BYTES, 1, 0);
    choice->fixed_order = config->fixed_order != 0;
    choice->copy_engines = config->copy_engines || env_number(ENV_COPY_ENGINES, 0, 0) != 0;
    choice->no_multicast = config->no_multicast ? "the options of this group" : NULL;
}

/* ---- device and context ---- */

static enum smfar_status open_device(struct smfar_comm *comm, const struct smfar_config *config)
{
    enum smfar_status status;
    int count = 0;
    TRY(driver_open(config->driver, &comm->driver));
    struct driver *driver = comm->driver;
    CU(cuDeviceGetCount, &count);
    int ordinal = config->device < 0 ? comm->rank % count : config->device;
    if (ordinal >= count)
        return FAIL(SMFAR_ERR_ARGUMENT, "device %d: the %s has %d devices, 0 to %d", ordinal,
                    driver->name, count, count - 1);
    CU(cuDeviceGet, &comm->device, ordinal);
    if (!driver->cuStreamWriteValue64 || !driver->cuStreamWaitValue64 ||
        !driver->cuStreamBatchMemOp)
        return FAIL(SMFAR_ERR_UNSUPPORTED, "the %s has no stream memory operations", driver->name);
    CU(cuDeviceGetAttribute, &comm->pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
       comm->device);
    CU(cuDevicePrimaryCtxRetain, &comm->context, comm->device);
    comm->retained = 1;
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status probe(struct smfar_comm *comm, const struct choice *choice,
                               struct capability *mine)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    int major = 0, minor = 0, shareable = 0;
    memset(mine, 0, sizeof(*mine));
    CU(cuDeviceGetUuid, &mine->uuid, comm->device);
    CU(cuDeviceGetName, mine->device, sizeof(mine->device), comm->device);
    CU(cuDeviceGetAttribute, &mine->sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
       comm->device);
    CU(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, comm->device);
    CU(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, comm->device);
    CU(cuDeviceGetAttribute, &shareable,
       CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, comm->device);
    mine->compute = 10 * major + minor;
    if (mine->compute < 80 || !shareable)
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "%s: a GPU of compute capability 8.0 or higher that can share memory as file "
                    "descriptors is needed (this one: %d.%d, %s)",
                    mine->device, major, minor, shareable ? "can" : "cannot");
    const char *reason =
        choice->no_multicast ? choice->no_multicast : multicast_unavailable(driver, comm->device);
    mine->multicast = !reason;
    snprintf(mine->reason, sizeof(mine->reason), "%s", reason ? reason : "");
    mine->sm_budget = choice->sm_budget;
    mine->fixed_order = choice->fixed_order;
    mine->copy_engines = choice->copy_engines;
    mine->pageable = comm->pageable;
    mine->window_bytes = choice->window_bytes;
    mine->chunk_bytes = choice->chunk_bytes;
    return SMFAR_OK;
fail:
    return status;
}

/* ---- what follows from all ranks' capabilities, the same on every rank ---- */

static int same_device(const struct smfar_comm *comm, int a, int b)
{
    return !memcmp(&comm->capability[a].uuid, &comm->capability[b].uuid, sizeof(CUuuid));
}

/* The most ranks that any one device carries. */
static int most_ranks_per_device(const struct smfar_comm *comm)
{
    int most = 1;
    for (int a = 0; a < comm->ranks; a++) {
        int here = 0;
        for (int b = 0; b < comm->ranks; b++)
            here += same_device(comm, a, b);
        if (here > most) most = here;
    }
    return most;
}

/* What takes less than a chunk in one piece. */
static void divide_chunk(size_t chunk, int ranks, size_t *oneshot_out, size_t *push_out)
{
    size_t oneshot = chunk / 4 / 128 * 128, push = chunk / 4;
    *oneshot_out = oneshot < MOST_ONESHOT ? oneshot : MOST_ONESHOT;
    *push_out = (push < SMFAR_WHOLE_BYTES ? push : SMFAR_WHOLE_BYTES) / (size_t)ranks / 512 * 512;
}

static void decide_sizes(struct smfar_comm *comm, size_t *window_bytes)
{
    struct agreed *agreed = &comm->agreed;
    size_t window = 0, chunk = MOST_CHUNK;
    int sm_count = INT32_MAX;
    agreed->copy_engines = 1;
    for (int r = 0; r < comm->ranks; r++) {
        const struct capability *rank = &comm->capability[r];
        if (rank->window_bytes > window) window = rank->window_bytes;
        if (rank->chunk_bytes && rank->chunk_bytes < chunk) chunk = rank->chunk_bytes;
        if (rank->sm_count < sm_count) sm_count = rank->sm_count;
        if (rank->fixed_order) agreed->fixed_order = 1;
        if (!rank->copy_engines) agreed->copy_engines = 0;
        if (rank->pageable) agreed->pageable = 1;
        if (rank->sm_budget && (!agreed->sm_budget || rank->sm_budget < agreed->sm_budget))
            agreed->sm_budget = rank->sm_budget;
    }
    if (window < 4 * (size_t)LEAST_CHUNK) window = 4 * (size_t)LEAST_CHUNK;
    if (chunk > window / 4) chunk = window / 4;
    if (chunk < LEAST_CHUNK / 64) chunk = LEAST_CHUNK / 64;
    agreed->chunk_bytes = chunk / 16384 ? chunk / 16384 * 16384 : chunk / 1024 * 1024;
    divide_chunk(agreed->chunk_bytes, comm->ranks, &agreed->oneshot_bytes, &agreed->push_bytes);
    size_t quarter = agreed->chunk_bytes / 4 / 1024 * 1024;
    agreed->graph_chunk_bytes = quarter ? quarter : agreed->chunk_bytes;
    divide_chunk(agreed->graph_chunk_bytes, comm->ranks, &agreed->graph_oneshot_bytes,
                 &agreed->graph_push_bytes);
    size_t mailbox = window / 16 / (size_t)comm->ranks / LEAST_MAILBOX * LEAST_MAILBOX;
    agreed->mailbox_bytes = mailbox < LEAST_MAILBOX  ? LEAST_MAILBOX
                            : mailbox > MOST_MAILBOX ? MOST_MAILBOX
                                                     : mailbox;
    /* two blocks of 1024 threads fit an SM; half of that is left to others */
    agreed->ranks_per_device = most_ranks_per_device(comm);
    agreed->resident_blocks = sm_count / agreed->ranks_per_device;
    if (agreed->resident_blocks < 1) agreed->resident_blocks = 1;
    *window_bytes = window;
}

/* Whether to try multicast; if not, the reason is recorded. */
static int decide_multicast(struct smfar_comm *comm)
{
    for (int r = 0; r < comm->ranks; r++) {
        if (comm->capability[r].multicast) continue;
        snprintf(comm->multicast_reason, sizeof(comm->multicast_reason), "off: %s (rank %d)",
                 comm->capability[r].reason, r);
        return 0;
    }
    const char *why = NULL;
    if (comm->ranks == 1) why = "off: one rank needs no switch";
    if (comm->agreed.ranks_per_device > 1) why = "off: several ranks share one device";
    if (why) snprintf(comm->multicast_reason, sizeof(comm->multicast_reason), "%s", why);
    return !why;
}

/* Refuses pairs of visible devices that cannot reach each other. A device that this process cannot
 * see is tried when its memory is mapped. */
static enum smfar_status check_peers(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    int count = 0;
    CU(cuDeviceGetCount, &count);
    for (int r = 0; r < comm->ranks; r++) {
        if (same_device(comm, r, comm->rank)) continue;
        for (int ordinal = 0; ordinal < count; ordinal++) {
            CUdevice device;
            CUuuid uuid;
            int can = 1;
            CU(cuDeviceGet, &device, ordinal);
            CU(cuDeviceGetUuid, &uuid, device);
            if (memcmp(&uuid, &comm->capability[r].uuid, sizeof(uuid))) continue;
            CU(cuDeviceCanAccessPeer, &can, comm->device, device);
            if (!can)
                return FAIL(SMFAR_ERR_UNSUPPORTED,
                            "the GPUs of ranks %d and %d cannot reach each other's memory; use "
                            "another backend for this group",
                            comm->rank, r);
        }
    }
    return SMFAR_OK;
fail:
    return status;
}

/* ---- building ---- */

/* A packet is there when its flag is set. */
static enum smfar_status clear_boxes(const struct smfar_comm *comm,
                                     const struct window_channel *channel)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    CUdeviceptr boxes = comm->window->peer[comm->rank] + channel->push;
    CU(cuMemsetD8Async, boxes, 0, 2 * (size_t)comm->ranks * channel->push_box, comm->stream);
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status create_streams(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    int least = 0, greatest = 0;
    CU(cuCtxGetStreamPriorityRange, &least, &greatest);
    CU(cuStreamCreateWithPriority, &comm->stream, CU_STREAM_NON_BLOCKING, greatest);
    CU(cuEventCreate, &comm->order, CU_EVENT_DISABLE_TIMING);
    TRY(courier_open(comm));
    TRY(clear_boxes(comm, &comm->window->called));
    TRY(clear_boxes(comm, &comm->window->replayed));
    TRY(trial_reset_signals(comm));
    return SMFAR_OK;
fail:
    return status;
}

static void say_why_not(struct smfar_comm *comm)
{
    snprintf(comm->multicast_reason, sizeof(comm->multicast_reason), "off: %.300s",
             smfar_last_error());
    log_warn("multicast is %s; going on over peer memory. On a machine with NVSwitches see that "
             "the fabric manager runs and that the container may use /dev/nvidia-caps; "
             "SMFAR_MULTICAST=0 skips this attempt",
             comm->multicast_reason);
}

/* Collective, after a trial that failed: it may have left ranks in different phases, and the driver
 * may have lost sight of its copies. */
static enum smfar_status start_anew(struct smfar_comm *comm)
{
    return exchange_agree(comm->exchange, trial_reset_signals(comm), "resetting the signals");
}

/* Collective: the trials. Whatever they say, the communicator is usable afterwards. */
static enum smfar_status try_multicast(struct smfar_comm *comm)
{
    enum smfar_status status = trial_multicast(comm);
    if (exchange_broken(comm->exchange)) return status;
    if (status == SMFAR_OK) {
        comm->agreed.multicast = 1;
        status = trial_multicast_copy(comm);
        if (exchange_broken(comm->exchange)) return status;
        comm->agreed.multicast_copy = status == SMFAR_OK;
        snprintf(comm->multicast_reason, sizeof(comm->multicast_reason),
                 "on: %d devices, sums tried%s", comm->ranks,
                 comm->agreed.multicast_copy ? ", copies tried" : ", copies to it do not work");
        return comm->agreed.multicast_copy ? SMFAR_OK : start_anew(comm);
    }
    say_why_not(comm);
    window_drop_multicast(comm->window);
    return start_anew(comm);
}

/* Whether every rank's GPU has a switch that sums 8-bit floats; if not, the reason is recorded. */
static int decide_float8(struct smfar_comm *comm)
{
    for (int r = 0; r < comm->ranks; r++) {
        int compute = comm->capability[r].compute;
        if (kernel_float8_in_switch(compute)) continue;
        snprintf(comm->float8_reason, sizeof(comm->float8_reason),
                 "off: compute capability 10.0 or 10.3 is needed, and rank %d has %d.%d", r,
                 compute / 10, compute % 10);
        return 0;
    }
    return 1;
}

/* Collective, once multicast works. Whatever this says, the communicator is usable afterwards. */
static enum smfar_status try_float8(struct smfar_comm *comm)
{
    if (!decide_float8(comm)) return SMFAR_OK;
    enum smfar_status status = kernels_load_float8(comm->kernels);
    status = exchange_agree(comm->exchange, status, "loading the kernels of 8-bit floats");
    if (status == SMFAR_OK) status = trial_multicast_float8(comm);
    if (exchange_broken(comm->exchange)) return status;
    comm->agreed.multicast_float8 = status == SMFAR_OK;
    snprintf(
        comm->float8_reason, sizeof(comm->float8_reason), "%s%.300s",
        status == SMFAR_OK ? "on: tried" : "off: ", status == SMFAR_OK ? "" : smfar_last_error());
    if (status == SMFAR_OK) return SMFAR_OK;
    log_warn("sums of 8-bit floats in the switch are %s; they go over peer memory",
             comm->float8_reason);
    return start_anew(comm);
}

/* Collective; on the communicator's context. */
static enum smfar_status build(struct smfar_comm *comm)
{
    enum smfar_status status;
    size_t window_bytes;
    decide_sizes(comm, &window_bytes);
    int multicast = decide_multicast(comm);
    TRY(exchange_agree(comm->exchange, check_peers(comm), "checking peer access"));
    TRY(page_create(comm->driver, comm->exchange, &comm->page));
    /* from here on a kernel or a driver call may wait for a rank that has died */
    TRY(exchange_agree(comm->exchange, watchdog_start(comm), "starting the watchdog"));
    const struct agreed *agreed = &comm->agreed;
    struct window_parts called = {agreed->chunk_bytes + (size_t)comm->ranks * agreed->mailbox_bytes,
                                  agreed->oneshot_bytes, agreed->push_bytes};
    struct window_parts replayed = {agreed->graph_chunk_bytes, agreed->graph_oneshot_bytes,
                                    agreed->graph_push_bytes};
    TRY(window_create(comm->driver, comm->exchange, comm->device, window_bytes, &called, &replayed,
                      &comm->window));
    if (multicast) {
        status = window_add_multicast(comm->window, comm->exchange);
        if (exchange_broken(comm->exchange)) goto fail;
        if (status != SMFAR_OK) say_why_not(comm);
        multicast = status == SMFAR_OK;
    }
    status = kernels_load(comm->driver, multicast, &comm->kernels);
    TRY(exchange_agree(comm->exchange, status, "loading the kernels"));
    /* nobody may signal before everybody's signals are zero */
    TRY(exchange_agree(comm->exchange, create_streams(comm), "creating the stream"));
    if (multicast) TRY(try_multicast(comm));
    log_info("multicast is %s", comm->multicast_reason);
    snprintf(comm->float8_reason, sizeof(comm->float8_reason), "off: multicast is off");
    if (comm->agreed.multicast) TRY(try_float8(comm));
    trial_free(comm); /* each has been seen to end, or starting anew would have failed */
    log_info("sums of 8-bit floats in the switch are %s", comm->float8_reason);
    TRY(plan_table_share(comm));
    return SMFAR_OK;
fail:
    return status;
}

/* Collective: everything that makes driver calls. */
static enum smfar_status set_up(struct smfar_comm *comm, const struct smfar_config *config)
{
    struct choice choice;
    struct capability mine;
    choose(config, &choice);
    enum smfar_status status = open_device(comm, config);
    if (status == SMFAR_OK) status = comm_enter(comm);
    int entered = status == SMFAR_OK;
    if (entered) status = probe(comm, &choice, &mine);
    status = exchange_agree(comm->exchange, status, "opening the device");
    if (status == SMFAR_OK)
        status = exchange_all_gather(comm->exchange, &mine, sizeof(mine), comm->capability);
    if (status == SMFAR_OK) status = build(comm);
    if (entered) comm_leave(comm);
    /* the last verdict comes after the last driver call, which may block as any other */
    if (status == SMFAR_OK) status = exchange_agree(comm->exchange, SMFAR_OK, "finishing");
    return status;
}

enum smfar_status setup_run(struct smfar_comm *comm, const struct smfar_config *config,
                            const struct smfar_store *store, const struct smfar_id *id)
{
    int64_t timeout = config->timeout_ms;
    if (!timeout) timeout = env_number(ENV_TIMEOUT_MS, 1, DEFAULT_TIMEOUT_MS);
    comm_set_timeout(comm, timeout);
    timeout = atomic_load(&comm->timeout_ms);
    plan_table_choose(config->plan_table, &comm->plan_path);
    /* here, since the store is to be called on the caller's thread */
    enum smfar_status status =
        store ? exchange_create(store, comm->rank, comm->ranks, timeout, &comm->exchange)
              : exchange_meet(id, comm->rank, comm->ranks, timeout, &comm->exchange);
    if (status == SMFAR_OK) return supervise_run(comm, config, set_up);
    smfar_comm_destroy(comm);
    return status;
}
