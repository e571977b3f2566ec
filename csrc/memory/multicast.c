/* See multicast.h. */
#include "multicast.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "../base/env.h"
#include "../base/hash.h"
#include "../base/log.h"

/* An object is divided in as many slots as a word has bits. It is made WINDOWS_PER_OBJECT times as
 * large as the first window; when it is full a further object is made. */
enum { SLOTS = 64, WINDOWS_PER_OBJECT = 8, READY_TRIES = 10, SHARE_TRIES = 8 };

struct multicast_object {
    struct multicast_object *next;
    struct driver *driver;
    CUdevice device; /* of the rank of this process that holds this record */
    uint64_t id;     /* the same on every rank */
    uint64_t set;    /* hash of the set of ranks' processes and devices */
    vmm_handle handle;
    size_t slot_bytes;
    uint64_t taken; /* slots, a bit each */
    int windows;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct multicast_object *objects;

static enum smfar_status read_attribute(struct driver *driver, CUdevice device,
                                        CUdevice_attribute attribute, int *value_out)
{
    enum smfar_status status;
    CU(cuDeviceGetAttribute, value_out, attribute, device);
    return SMFAR_OK;
fail:
    return status;
}

const char *multicast_unavailable(struct driver *driver, CUdevice device)
{
    int supported = 0, major = 0;
    const char *variable = env_multicast_off();
    if (variable) return variable;
    if (!driver->cuMulticastCreate || !driver->cuMulticastAddDevice ||
        !driver->cuMulticastBindMem || !driver->cuMulticastUnbind ||
        !driver->cuMulticastGetGranularity)
        return "the driver has no multicast functions";
    if (read_attribute(driver, device, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, &supported) ||
        read_attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major))
        return smfar_last_error();
    if (!supported) return "the device reports no multicast";
    if (major < 9) return "the device's compute capability is below 9.0";
    return NULL;
}

void multicast_count(int *objects_out, int *windows_out)
{
    *objects_out = *windows_out = 0;
    pthread_mutex_lock(&lock);
    for (struct multicast_object *object = objects; object; object = object->next) {
        (*objects_out)++;
        *windows_out += object->windows;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- which object, and which slots of it ---- */

/* One rank's process and device; the set of all of them identifies what an object connects. */
struct member {
    int64_t pid;
    CUuuid uuid;
};

static int compare_members(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct member));
}

/* The same on every rank, and for every order of the same ranks. */
static enum smfar_status hash_set(struct driver *driver, struct exchange *exchange, CUdevice device,
                                  uint64_t *set_out)
{
    enum smfar_status status = SMFAR_OK;
    struct member mine, all[SMFAR_MAX_RANKS];
    int ranks = exchange_ranks(exchange);
    memset(&mine, 0, sizeof(mine));
    mine.pid = getpid();
    CUresult result = CU_RESULT(cuDeviceGetUuid, &mine.uuid, device);
    if (result != CUDA_SUCCESS)
        status = driver_failed_at(__FILE__, __LINE__, driver, "cuDeviceGetUuid", result);
    status = exchange_agree(exchange, status, "identifying the devices");
    if (status != SMFAR_OK) return status;
    status = exchange_all_gather(exchange, &mine, sizeof(mine), all);
    if (status != SMFAR_OK) return status;
    qsort(all, (size_t)ranks, sizeof(all[0]), compare_members);
    *set_out = hash_bytes(all, sizeof(all[0]) * (size_t)ranks);
    return SMFAR_OK;
}

static uint64_t mask_of(size_t slots)
{
    return slots == SLOTS ? ~(uint64_t)0 : ((uint64_t)1 << slots) - 1;
}

/* A run of `slots` zero bits, the first from bit `from` on and then from 0 on, as a mask; 0 when
 * there is none. */
static uint64_t free_run(uint64_t taken, size_t slots, size_t from)
{
    if (slots > SLOTS) return 0;
    size_t places = SLOTS - slots + 1;
    for (size_t i = 0; i < places; i++) {
        size_t at = (from + i) % places;
        if (!(taken & mask_of(slots) << at)) return mask_of(slots) << at;
    }
    return 0;
}

static size_t slots_of(const struct multicast_window *window, size_t slot_bytes)
{
    return (window->bytes + slot_bytes - 1) / slot_bytes;
}

/* The newest object of this rank for the set, or NULL. Several ranks may be threads of one process:
 * each has its own record, told apart by the device. */
static struct multicast_object *find_object(struct driver *driver, CUdevice device, uint64_t set)
{
    struct multicast_object *object = objects;
    while (object && (object->driver != driver || object->device != device || object->set != set))
        object = object->next;
    return object;
}

/* One window fewer; the last takes the object along. */
static void release_object(struct driver *driver, struct multicast_object *object)
{
    pthread_mutex_lock(&lock);
    int last = --object->windows == 0;
    struct multicast_object **link = &objects;
    while (last && *link != object)
        link = &(*link)->next;
    if (last) *link = object->next;
    pthread_mutex_unlock(&lock);
    if (!last) return;
    vmm_release(driver, object->handle);
    free(object);
}

/* ---- slots of an object that is there ---- */

struct proposal {
    uint64_t id, taken, slot_bytes;
    uint32_t from; /* where to look for free slots: rank 0's counts */
};

static struct multicast_object *propose(struct driver *driver, CUdevice device, uint64_t set,
                                        struct proposal *mine)
{
    memset(mine, 0, sizeof(*mine));
    pthread_mutex_lock(&lock);
    struct multicast_object *object = find_object(driver, device, set);
    if (object) *mine = (struct proposal){object->id, object->taken, object->slot_bytes, 0};
    if (object) object->windows++; /* holds it until the verdict */
    pthread_mutex_unlock(&lock);
    return object;
}

/* The slots that every rank has free in the object that every rank has proposed, or 0. */
static uint64_t common_run(const struct proposal *all, int ranks,
                           const struct multicast_window *window)
{
    uint64_t taken = 0;
    for (int r = 0; r < ranks; r++) {
        if (all[r].id == 0 || all[r].id != all[0].id) return 0;
        taken |= all[r].taken;
    }
    return free_run(taken, slots_of(window, all[0].slot_bytes), all[0].from);
}

/* Returns 0 when another group has been faster. */
static int take_slots(struct multicast_object *object, uint64_t run)
{
    pthread_mutex_lock(&lock);
    int free = !(object->taken & run);
    if (free) object->taken |= run;
    pthread_mutex_unlock(&lock);
    return free;
}

static void give_slots(struct multicast_object *object, uint64_t run)
{
    pthread_mutex_lock(&lock);
    object->taken &= ~run;
    pthread_mutex_unlock(&lock);
}

/* Collective: has every rank taken the run? If one has not, none keeps it. */
static enum smfar_status take_together(struct exchange *exchange, struct multicast_object *object,
                                       uint64_t run, int *taken_out)
{
    int mine = take_slots(object, run), all[SMFAR_MAX_RANKS], taken = 1;
    enum smfar_status status = exchange_all_gather(exchange, &mine, sizeof(mine), all);
    for (int r = 0; r < exchange_ranks(exchange) && status == SMFAR_OK; r++)
        taken &= all[r];
    *taken_out = status == SMFAR_OK && taken;
    if (mine && !*taken_out) give_slots(object, run);
    return status;
}

/* Collective: an object and slots that every rank has free, taken here; or none, on every rank. Two
 * groups of the same ranks may be at it at once, on threads that come in another order on each
 * rank: then both may miss, and look from another slot on. */
static enum smfar_status share_object(struct driver *driver, struct exchange *exchange,
                                      CUdevice device, uint64_t set,
                                      struct multicast_window *window)
{
    int taken = 0;
    enum smfar_status status = SMFAR_OK;
    for (int tries = 0; tries < SHARE_TRIES && status == SMFAR_OK; tries++) {
        struct proposal mine, all[SMFAR_MAX_RANKS];
        struct multicast_object *object = propose(driver, device, set, &mine);
        if (tries && getrandom(&mine.from, sizeof(mine.from), 0) < 0) mine.from = (uint32_t)tries;
        status = exchange_all_gather(exchange, &mine, sizeof(mine), all);
        uint64_t run = status == SMFAR_OK ? common_run(all, exchange_ranks(exchange), window) : 0;
        if (run) status = take_together(exchange, object, run, &taken);
        if (taken) {
            window->object = object;
            window->offset = (size_t)__builtin_ctzll(run) * object->slot_bytes;
            return SMFAR_OK;
        }
        if (object) release_object(driver, object);
        if (!run) break;
    }
    return status;
}

/* ---- making an object ---- */

static enum smfar_status create_handle(struct driver *driver, int ranks, size_t bytes,
                                       vmm_handle *handle_out, int *fd_out)
{
    enum smfar_status status;
    CUmulticastObjectProp prop;
    memset(&prop, 0, sizeof(prop));
    prop.numDevices = (unsigned)ranks;
    prop.size = bytes;
    prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CU(cuMulticastCreate, handle_out, &prop);
    TRY(vmm_export(driver, *handle_out, fd_out));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status slot_size(struct driver *driver, int ranks, size_t window_bytes,
                                   size_t *bytes_out)
{
    enum smfar_status status;
    size_t granularity = 0;
    CUmulticastObjectProp prop;
    memset(&prop, 0, sizeof(prop));
    prop.numDevices = (unsigned)ranks;
    prop.size = window_bytes;
    prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CU(cuMulticastGetGranularity, &granularity, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED);
    *bytes_out = vmm_round_up(window_bytes * WINDOWS_PER_OBJECT / SLOTS, granularity);
    return SMFAR_OK;
fail:
    return status;
}

/* Collective: the handle of one new object, created by rank 0 and imported by the others, with
 * every device added. */
static enum smfar_status make_handle(struct driver *driver, struct exchange *exchange,
                                     CUdevice device, size_t bytes, vmm_handle *handle)
{
    int fd = -1, received = -1;
    enum smfar_status status = SMFAR_OK;
    if (exchange_rank(exchange) == 0)
        status = create_handle(driver, exchange_ranks(exchange), bytes, handle, &fd);
    status = exchange_agree(exchange, status, "creating the multicast object");
    if (status != SMFAR_OK) {
        if (fd >= 0) close(fd);
        return status;
    }
    status = exchange_descriptor(exchange, fd, &received);
    if (fd >= 0) close(fd);
    if (received >= 0) {
        status = vmm_import(driver, received, handle);
        close(received);
    }
    if (status == SMFAR_OK) {
        CUresult result = CU_RESULT(cuMulticastAddDevice, *handle, device);
        if (result != CUDA_SUCCESS)
            status = driver_failed_at(__FILE__, __LINE__, driver, "cuMulticastAddDevice", result);
    }
    /* binding and mapping block until every device is added, so nobody goes on before that */
    return exchange_agree(exchange, status, "adding the devices to the multicast object");
}

static enum smfar_status add_object(struct driver *driver, struct exchange *exchange,
                                    CUdevice device, uint64_t set, struct multicast_window *window)
{
    int ranks = exchange_ranks(exchange);
    uint64_t id = 0, ids[SMFAR_MAX_RANKS];
    struct multicast_object *object = calloc(1, sizeof(*object));
    enum smfar_status status =
        object ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for a multicast object");
    if (status == SMFAR_OK) status = slot_size(driver, ranks, window->bytes, &object->slot_bytes);
    if (status == SMFAR_OK && getrandom(&id, sizeof(id), 0) != sizeof(id))
        status = FAIL_ERRNO("getrandom");
    TRY(exchange_agree(exchange, status, "sizing the multicast object"));
    TRY(exchange_all_gather(exchange, &id, sizeof(id), ids));
    TRY(make_handle(driver, exchange, device, object->slot_bytes * SLOTS, &object->handle));
    object->driver = driver;
    object->device = device;
    object->set = set;
    object->id = ids[0] | 1; /* 0 is none */
    object->windows = 1;
    object->taken = mask_of(slots_of(window, object->slot_bytes));
    window->object = object;
    window->offset = 0;
    pthread_mutex_lock(&lock);
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&lock);
    return SMFAR_OK;
fail:
    if (object) vmm_release(driver, object->handle);
    free(object);
    return status;
}

static void leave_object(struct driver *driver, struct multicast_window *window)
{
    struct multicast_object *object = window->object;
    uint64_t run = mask_of(slots_of(window, object->slot_bytes));
    give_slots(object, run << (window->offset / object->slot_bytes));
    release_object(driver, object);
}

/* ---- binding ---- */

/* Collective. "System not ready" can pass: that code alone is tried again, in step. */
static enum smfar_status bind_window(struct driver *driver, struct exchange *exchange,
                                     vmm_handle memory, struct multicast_window *window)
{
    for (int tries = 0;; tries++) {
        int again[SMFAR_MAX_RANKS], mine = 0, any = 0;
        enum smfar_status status = SMFAR_OK;
        if (!window->bound) {
            CUresult result = CU_RESULT(cuMulticastBindMem, window->object->handle, window->offset,
                                        memory, 0, window->bytes, 0);
            mine = result == CUDA_ERROR_SYSTEM_NOT_READY && tries < READY_TRIES;
            window->bound = result == CUDA_SUCCESS;
            if (result != CUDA_SUCCESS && !mine)
                status = driver_failed_at(__FILE__, __LINE__, driver, "cuMulticastBindMem", result);
        }
        status = exchange_agree(exchange, status, "binding the window to the multicast object");
        if (status != SMFAR_OK) return status;
        status = exchange_all_gather(exchange, &mine, sizeof(mine), again);
        if (status != SMFAR_OK) return status;
        for (int r = 0; r < exchange_ranks(exchange); r++)
            any |= again[r];
        if (!any) return SMFAR_OK;
        usleep(10000);
    }
}

enum smfar_status multicast_create(struct driver *driver, struct exchange *exchange,
                                   CUdevice device, vmm_handle memory, size_t bytes,
                                   CUdeviceptr base, struct multicast_window *window_out)
{
    enum smfar_status status;
    struct multicast_window window;
    uint64_t set;
    memset(&window, 0, sizeof(window));
    window.bytes = bytes;
    TRY(hash_set(driver, exchange, device, &set));
    TRY(share_object(driver, exchange, device, set, &window));
    if (!window.object) TRY(add_object(driver, exchange, device, set, &window));
    TRY(bind_window(driver, exchange, memory, &window));
    status = vmm_map(driver, window.object->handle, window.offset, bytes, device, base);
    if (status == SMFAR_OK) window.base = base;
    TRY(exchange_agree(exchange, status, "mapping the multicast object"));
    log_info("multicast: window of %zu bytes at offset %zu of an object of %zu", bytes,
             window.offset, window.object->slot_bytes * SLOTS);
    *window_out = window;
    return SMFAR_OK;
fail:
    multicast_destroy(driver, device, &window);
    return status;
}

void multicast_destroy(struct driver *driver, CUdevice device, struct multicast_window *window)
{
    if (window->base) vmm_unmap(driver, window->base, window->bytes);
    if (window->bound)
        CU_WARN(cuMulticastUnbind, window->object->handle, device, window->offset, window->bytes);
    if (window->object) leave_object(driver, window);
    memset(window, 0, sizeof(*window));
}
