/* The public functions on a live communicator that are no collectives: state and reports. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "comm/failure.h"
#include "comm/work.h"
#include "memory/registered.h"

/* A collective that a rank does not enter is ended by the kernels at the deadline, with an error
 * that names the rank; the host waits a little longer, so that this error wins. */
enum { GRACE_MS = 5000 };

enum smfar_status api_enter_by(struct smfar_comm *comm, pthread_mutex_t *lock)
{
    /* before the lock, which a thread of the parent may have held at the fork */
    enum smfar_status status = comm_check_process(comm);
    if (status != SMFAR_OK) return status;
    pthread_mutex_lock(lock);
    status = comm_check(comm);
    if (status == SMFAR_OK) status = comm_enter(comm);
    if (status != SMFAR_OK) pthread_mutex_unlock(lock);
    return status;
}

void api_leave_by(struct smfar_comm *comm, pthread_mutex_t *lock)
{
    comm_leave(comm);
    pthread_mutex_unlock(lock);
}

enum smfar_status api_enter(struct smfar_comm *comm)
{
    if (!comm) return FAIL(SMFAR_ERR_ARGUMENT, "the communicator is NULL");
    return api_enter_by(comm, &comm->lock);
}

void api_leave(struct smfar_comm *comm) { api_leave_by(comm, &comm->lock); }

/* ---- state ---- */

int smfar_comm_rank(const smfar_comm *comm) { return comm->rank; }
int smfar_comm_ranks(const smfar_comm *comm) { return comm->ranks; }
int smfar_comm_device(const smfar_comm *comm) { return comm->device; }
smfar_stream smfar_comm_stream(const smfar_comm *comm) { return comm->stream; }

uint64_t smfar_comm_sequence(const smfar_comm *comm) { return atomic_load(&comm->sequence); }

void smfar_comm_set_timeout(smfar_comm *comm, int64_t timeout_ms)
{
    if (timeout_ms > 0) comm_set_timeout(comm, timeout_ms);
}

enum smfar_status smfar_comm_error(smfar_comm *comm)
{
    return comm ? comm_check(comm) : FAIL(SMFAR_ERR_ARGUMENT, "the communicator is NULL");
}

void smfar_comm_abort(smfar_comm *comm, const char *reason)
{
    char text[PAGE_TEXT];
    if (!comm || comm_check_process(comm) != SMFAR_OK) return; /* the group is the parent's */
    snprintf(text, sizeof(text), "rank %d aborted the group: %s", comm->rank,
             reason ? reason : "no reason given");
    failure_publish(comm, SMFAR_ERR_ABORTED, 0, text);
}

static enum smfar_status check_sequence(struct smfar_comm *comm, uint64_t sequence)
{
    if (!comm) return FAIL(SMFAR_ERR_ARGUMENT, "the communicator is NULL");
    if (sequence > atomic_load(&comm->sequence))
        return FAIL(SMFAR_ERR_ARGUMENT, "collective number %llu has not been called here",
                    (unsigned long long)sequence);
    return SMFAR_OK;
}

enum smfar_status smfar_comm_query(smfar_comm *comm, uint64_t sequence)
{
    enum smfar_status status = check_sequence(comm, sequence);
    return status == SMFAR_OK ? work_query(comm, sequence) : status;
}

int smfar_comm_released(smfar_comm *comm, uint64_t sequence)
{
    return comm && work_released(comm, sequence);
}

enum smfar_status smfar_comm_wait(smfar_comm *comm, uint64_t sequence, int64_t timeout_ms)
{
    enum smfar_status status = check_sequence(comm, sequence);
    if (status != SMFAR_OK) return status;
    return work_wait(comm, sequence,
                     timeout_ms < 0 ? atomic_load(&comm->timeout_ms) + GRACE_MS : timeout_ms);
}

enum smfar_status smfar_stream_order(smfar_comm *comm, smfar_stream before, smfar_stream after)
{
    CUevent event = NULL;
    if (!comm) return FAIL(SMFAR_ERR_ARGUMENT, "the communicator is NULL");
    enum smfar_status status = api_enter_by(comm, &comm->side_lock);
    if (status != SMFAR_OK) return status;
    struct driver *driver = comm->driver;
    CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    CU(cuEventRecord, event, before);
    CU(cuStreamWaitEvent, after, event, 0);
fail:
    if (event) CU_WARN(cuEventDestroy, event);
    api_leave_by(comm, &comm->side_lock);
    return status;
}

static enum smfar_status refuse_algorithm(const char *name)
{
    char known[160] = "";
    for (int i = ALGORITHM_ANY + 1, n = 0; i < ALGORITHMS; i++)
        n += snprintf(known + n, sizeof(known) - (size_t)n, "%s%s", n ? ", " : "",
                      algorithm_rows[i].name);
    return FAIL(SMFAR_ERR_ARGUMENT, "algorithm \"%s\" is none of %s", name, known);
}

enum smfar_status smfar_hint_set(const struct smfar_hint *hint)
{
    struct hint wish = {ALGORITHM_ANY, 0, plan_hint.fixed_order};
    if (hint && hint->sm_budget < SMFAR_NO_SMS)
        return FAIL(SMFAR_ERR_ARGUMENT,
                    "an SM budget of %d blocks: 1 or more, 0 for no wish, or SMFAR_NO_SMS",
                    hint->sm_budget);
    if (hint && hint->algorithm) wish.algorithm = algorithm_named(hint->algorithm);
    if (wish.algorithm == ALGORITHMS) return refuse_algorithm(hint->algorithm);
    if (hint) wish.sm_budget = hint->sm_budget;
    plan_hint = wish;
    return SMFAR_OK;
}

void smfar_fixed_order(int fixed) { plan_hint.fixed_order = fixed != 0; }

/* ---- reports: without comm->lock, which an allocation holds while it waits for others ---- */

static enum smfar_status check_usable(struct smfar_comm *comm)
{
    return comm ? comm_check(comm) : FAIL(SMFAR_ERR_ARGUMENT, "the communicator is NULL");
}

/* What this rank cannot know beforehand, and what it has seen so far. */
static void explain_apart(struct smfar_comm *comm, char *text, size_t size)
{
    uint64_t last = atomic_load(&comm->page.host->apart[comm->rank]);
    int n =
        snprintf(text, size,
                 "; where ranks' tensors lie at unequal offsets, or a norm's residual or sums not "
                 "as its chunk does modulo 16, the kernel takes its peer loop");
    if (last == CAPTURE_SEQUENCE)
        snprintf(text + n, size - (size_t)n, ", as in one of a graph");
    else if (last)
        snprintf(text + n, size - (size_t)n, ", as in collective number %llu",
                 (unsigned long long)last);
}

static int lies_inside(struct window *window, const void *ptr, size_t bytes)
{
    size_t offset;
    pthread_mutex_lock(&window->lock);
    int inside = window_offset(window, registered_view(window, ptr, bytes), bytes, &offset);
    pthread_mutex_unlock(&window->lock);
    return inside;
}

static void explain_steps(const struct plan *plan, uint64_t count, char *text, size_t size)
{
    uint64_t steps = count ? (count - 1) / plan->chunk + 1 : 1;
    if (steps == 1)
        snprintf(text, size, "one step");
    else
        snprintf(text, size, "%llu steps of %llu elements", (unsigned long long)steps,
                 (unsigned long long)plan->chunk);
}

enum smfar_status smfar_explain(smfar_comm *comm, const void *ptr, size_t count,
                                enum smfar_dtype dtype, enum smfar_op op, char *text, size_t size)
{
    struct plan plan;
    char apart[256] = "", steps[64];
    enum smfar_status status = api_check_buffers("explain", NULL, NULL, 0, (int)dtype);
    if (status == SMFAR_OK) status = check_usable(comm);
    if (status != SMFAR_OK) return status;
    struct call call = api_call(comm, NULL, COLLECTIVE_ALL_REDUCE, count);
    call.dtype = (int)dtype;
    call.op = (int)op;
    struct plan_query query = collective_query(&call);
    status = plan_make(&query, &plan);
    if (status != SMFAR_OK) return status;
    int inside = ptr && lies_inside(comm->window, ptr, count * dtype_bytes((int)dtype));
    int whole = algorithm_is_oneshot(plan.algorithm) || algorithm_is_push(plan.algorithm);
    if (kernel_rows[plan.kernel].multicast && !whole) explain_apart(comm, apart, sizeof(apart));
    explain_steps(&plan, count, steps, sizeof(steps));
    snprintf(text, size,
             "all_reduce(%s, %s, %zu elements) over %d ranks: %s, %d block%s of %d threads, %s, "
             "because %s; the tensor %s%s",
             name_op((int)op), name_dtype((int)dtype), count, comm->ranks, plan.name, plan.blocks,
             plan.blocks == 1 ? "" : "s", plan.threads, steps, plan.reason,
             whole    ? "is read and written where it lies"
             : inside ? "lies in the window: no staging"
                      : "lies outside the window: copied through a staging slot",
             apart);
    return SMFAR_OK;
}

enum smfar_status smfar_comm_describe(smfar_comm *comm, char *text, size_t size)
{
    enum smfar_status status = check_usable(comm);
    if (status != SMFAR_OK) return status;
    int objects, windows, n;
    multicast_count(&objects, &windows);
    char topology[160];
    plan_table_topology(comm, topology, sizeof(topology));
    pthread_mutex_lock(&comm->window->lock);
    size_t bytes = comm->window->bytes, registered = registered_bytes(comm->window);
    pthread_mutex_unlock(&comm->window->lock);
    n = snprintf(text, size,
                 "rank %d of %d on the %s; multicast %s; window of %zu bytes, steps of %zu; "
                 "multicast objects in this process: %d, serving %d windows\n"
                 "  holds %zu bytes of device memory, %zu bytes of host memory shared by the "
                 "group, %d sockets; %zu bytes of other memory are registered\n"
                 "  sums of 8-bit floats in the switch: %s\n"
                 "  plan table: %s; topology %s\n",
                 comm->rank, comm->ranks, comm->driver->name, comm->multicast_reason, bytes,
                 comm->agreed.chunk_bytes, objects, windows, bytes, page_bytes(comm->ranks),
                 comm->rank == 0 ? comm->ranks - 1 : 1, registered, comm->float8_reason,
                 comm->plan_table.source, topology);
    for (int r = 0; r < comm->ranks && n > 0 && (size_t)n < size; r++) {
        const struct capability *rank = &comm->capability[r];
        n += snprintf(text + n, size - (size_t)n,
                      "  rank %d: %s, %d SMs, compute capability %d.%d, multicast %s\n", r,
                      rank->device, rank->sm_count, rank->compute / 10, rank->compute % 10,
                      rank->multicast ? "possible" : rank->reason);
    }
    return SMFAR_OK;
}

enum smfar_status smfar_comm_path(smfar_comm *comm, int index, struct smfar_path *path_out)
{
    if (!comm || !path_out || index < 0) return FAIL(SMFAR_ERR_ARGUMENT, "no such path");
    pthread_mutex_lock(&comm->path_lock);
    int there = index < comm->path_count;
    if (there) *path_out = comm->paths[index];
    pthread_mutex_unlock(&comm->path_lock);
    return there ? SMFAR_OK : FAIL(SMFAR_ERR_ARGUMENT, "path %d: there are fewer", index);
}
