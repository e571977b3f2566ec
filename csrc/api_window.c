/* The public functions on the memory of a live communicator: what all ranks take, add and register
 * together, over their connections. */
#include <stdio.h>
#include <stdlib.h>

#include "api.h"
#include "base/clock.h"
#include "base/thread.h"
#include "comm/failure.h"
#include "comm/work.h"
#include "memory/registered.h"

/* A call that every rank makes alike. */
struct request {
    uint64_t what; /* which function */
    uint64_t number;
    uint64_t ready;
};

enum { ALLOC, RESERVE, REGISTER, DEREGISTER };
static const char *const names[] = {"window_alloc", "window_reserve", "window_register",
                                    "window_deregister"};

/* Ranks that are no longer in step here cannot agree on places again. */
static enum smfar_status stay_together(struct smfar_comm *comm, uint64_t what,
                                       enum smfar_status status)
{
    char text[PAGE_TEXT];
    if (status == SMFAR_OK || !exchange_broken(comm->exchange)) return status;
    snprintf(text, sizeof(text), "%s: %s", names[what], smfar_last_error());
    failure_publish(comm, status, 0, text);
    return FAIL(status, "%s", text);
}

enum { YIELDS = 500 }; /* before a thread that waits for the other ranks' calls takes naps */

static enum smfar_status give_up(struct smfar_comm *comm, const struct request *mine, int r)
{
    char text[PAGE_TEXT];
    int left = atomic_load(&comm->page.host->words[r].left) != LEFT_NOT;
    enum smfar_status status = left ? SMFAR_ERR_PEER : SMFAR_ERR_TIMEOUT;
    if (left)
        snprintf(text, sizeof(text), "%s: rank %d has left the group", names[mine->what], r);
    else
        snprintf(text, sizeof(text), "%s: rank %d has not called it on time, within %lld ms",
                 names[mine->what], r, (long long)atomic_load(&comm->timeout_ms));
    failure_publish(comm, status, 0, text);
    return FAIL(status, "%s", text);
}

/* Every rank's request, once all have made theirs. In the host page, where that takes a
 * microsecond; a turn's place is used again at the next turn but one, which a rank comes to once
 * all ranks have come to the next, and so have read this one. */
static enum smfar_status meet(struct smfar_comm *comm, const struct request *mine,
                              struct request *all)
{
    uint64_t turn = ++comm->turn;
    struct host_page *page = comm->page.host;
    struct page_request *place = &page->request[comm->rank][turn % 2];
    int64_t deadline = clock_now_ms() + atomic_load(&comm->timeout_ms);
    place->what = mine->what;
    place->number = mine->number;
    place->ready = mine->ready;
    /* partner: the load below in every other rank */
    atomic_store_explicit(&place->turn, turn, memory_order_release);
    for (int r = 0, tries = 0; r < comm->ranks; tries++) {
        place = &page->request[r][turn % 2];
        if (atomic_load_explicit(&place->turn, memory_order_acquire) == turn) {
            all[r++] = (struct request){place->what, place->number, place->ready};
            continue;
        }
        enum smfar_status status = failure_check(comm);
        if (status != SMFAR_OK) return status;
        if (atomic_load(&page->words[r].left) != LEFT_NOT || clock_now_ms() >= deadline)
            return give_up(comm, mine, r);
        thread_rest(tries, YIELDS);
    }
    return SMFAR_OK;
}

/* Host memory for what all ranks do together, before they meet: one that has none then fails the
 * call on every rank. (What else is allocated on the way ends in exchange_agree.) */
static enum smfar_status prepare(struct smfar_comm *comm)
{
    struct window *window = comm->window;
    size_t bytes = ((size_t)window->heap.count + 1) * ((size_t)comm->ranks + 1);
    uint8_t *marks = realloc(comm->marks, bytes);
    if (!marks) return FAIL(SMFAR_ERR_MEMORY, "no memory for the window's range table");
    comm->marks = marks;
    pthread_mutex_lock(&window->lock);
    enum smfar_status status = heap_make_room(&window->heap);
    if (status == SMFAR_OK) status = heap_make_room(&window->room);
    pthread_mutex_unlock(&window->lock);
    return status;
}

static enum smfar_status check_same(struct smfar_comm *comm, uint64_t what, uint64_t number)
{
    uint64_t ready = what == DEREGISTER || prepare(comm) == SMFAR_OK;
    struct request mine = {what, number, ready}, all[SMFAR_MAX_RANKS];
    enum smfar_status status = meet(comm, &mine, all);
    for (int r = 0; status == SMFAR_OK && r < comm->ranks; r++) {
        if (all[r].what != all[0].what)
            return FAIL(SMFAR_ERR_MISMATCH, "rank 0 calls %s, rank %d %s", names[all[0].what], r,
                        names[all[r].what]);
        if (all[r].number != all[0].number)
            return FAIL(SMFAR_ERR_MISMATCH, "%s: rank 0 asks for %s%llu%s, rank %d for %llu",
                        names[what], what == DEREGISTER ? "number " : "",
                        (unsigned long long)all[0].number, what == DEREGISTER ? "" : " bytes", r,
                        (unsigned long long)all[r].number);
        if (!all[r].ready)
            return FAIL(
                SMFAR_ERR_MEMORY,
                "%s: rank %d has no host memory for its tables, which are small: end what fills "
                "the memory of its host, or give the process more",
                names[what], r);
    }
    return status;
}

/* Between the two, all ranks are inside the same call. */
static enum smfar_status begin(struct smfar_comm *comm, uint64_t what, uint64_t number)
{
    enum smfar_status status = api_enter(comm);
    if (status != SMFAR_OK) return status;
    status = check_same(comm, what, number);
    if (status != SMFAR_OK) api_leave(comm);
    return status;
}

static enum smfar_status end(struct smfar_comm *comm, uint64_t what, enum smfar_status status)
{
    status = stay_together(comm, what, status);
    api_leave(comm);
    /* a failed group has no connections any more: say why */
    enum smfar_status failure = status == SMFAR_OK ? SMFAR_OK : failure_check(comm);
    return failure == SMFAR_OK ? status : failure;
}

/* ---- the heap ---- */

enum { LEAST_DUE = 64 };

/* Collective: ranges that every rank has freed become free. All ranks hold the same ranges. */
static enum smfar_status collect_freed(struct smfar_comm *comm)
{
    struct window *window = comm->window;
    struct heap *heap = &window->heap;
    size_t count = (size_t)heap->count;
    uint8_t *marks = comm->marks, *all = marks + count;
    pthread_mutex_lock(&window->lock);
    for (size_t i = 0; i < count; i++)
        marks[i] = (uint8_t)heap->ranges[i].freed;
    pthread_mutex_unlock(&window->lock);
    enum smfar_status status = exchange_all_gather(comm->exchange, marks, count, all);
    pthread_mutex_lock(&window->lock);
    for (size_t i = count; status == SMFAR_OK && i-- > 0;) {
        int freed = 1;
        for (int r = 0; r < comm->ranks; r++)
            freed &= all[(size_t)r * count + i];
        if (freed) heap_give(heap, heap->ranges[i].offset);
    }
    heap->due = 2 * heap->count + LEAST_DUE;
    pthread_mutex_unlock(&window->lock);
    return status;
}

static enum smfar_status take(struct window *window, size_t bytes, size_t *offset_out)
{
    pthread_mutex_lock(&window->lock);
    enum smfar_status status = heap_take(&window->heap, bytes, offset_out);
    pthread_mutex_unlock(&window->lock);
    return status;
}

enum smfar_status smfar_window_alloc(smfar_comm *comm, size_t bytes, void **ptr_out)
{
    size_t offset = 0;
    if (!ptr_out) return FAIL(SMFAR_ERR_ARGUMENT, "ptr_out is NULL");
    enum smfar_status status = begin(comm, ALLOC, bytes);
    if (status != SMFAR_OK) return status;
    struct window *window = comm->window;
    /* seldom, since it costs a round of messages; on every rank alike */
    if (window->heap.count >= window->heap.due) status = collect_freed(comm);
    if (status == SMFAR_OK) status = take(window, bytes, &offset);
    if (status == SMFAR_ERR_MEMORY) {
        status = collect_freed(comm);
        if (status == SMFAR_OK) status = take(window, bytes, &offset);
    }
    if (status == SMFAR_OK) *ptr_out = (void *)(uintptr_t)(window->peer[comm->rank] + offset);
    return end(comm, ALLOC, status);
}

void smfar_window_free(smfar_comm *comm, void *ptr)
{
    size_t offset = 0;
    if (!comm || !ptr || comm_check_process(comm) != SMFAR_OK) return;
    struct window *window = comm->window;
    /* not comm->lock: an allocation holds that while it waits for the other ranks */
    pthread_mutex_lock(&window->lock);
    struct heap_range *range =
        window_offset(window, ptr, 0, &offset) ? heap_find(&window->heap, offset) : NULL;
    if (range) range->freed = 1;
    pthread_mutex_unlock(&window->lock);
}

enum smfar_status smfar_window_reserve(smfar_comm *comm, size_t bytes)
{
    size_t last;
    enum smfar_status status = begin(comm, RESERVE, bytes);
    if (status != SMFAR_OK) return status;
    struct window *window = comm->window;
    status = collect_freed(comm);
    if (status == SMFAR_OK && heap_room(&window->heap, &last) < bytes)
        status = window_grow(window, comm->exchange, bytes - last);
    return end(comm, RESERVE, status);
}

/* ---- registered memory ---- */

enum smfar_status smfar_window_register(smfar_comm *comm, const void *ptr, size_t bytes,
                                        uint64_t *id_out)
{
    if (!id_out || (bytes && !ptr))
        return FAIL(SMFAR_ERR_ARGUMENT, "window_register: a pointer is NULL");
    enum smfar_status status = begin(comm, REGISTER, bytes);
    if (status != SMFAR_OK) return status;
    status = registered_add(comm->window, comm->exchange, ptr, bytes, id_out);
    return end(comm, REGISTER, status);
}

/* Nothing of this rank's uses registered memory any more. */
static enum smfar_status await_end(struct smfar_comm *comm, uint64_t id)
{
    uint64_t sequence = atomic_load(&comm->sequence);
    if (!registered_there(comm->window, id))
        return FAIL(SMFAR_ERR_ARGUMENT, "nothing is registered as number %llu",
                    (unsigned long long)id);
    if (atomic_load(&comm->page.host->words[comm->rank].graphs))
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "CUDA graphs with collectives of this group are still there, which may use the "
                    "memory: destroy them first");
    return sequence ? work_wait(comm, sequence, atomic_load(&comm->timeout_ms)) : SMFAR_OK;
}

enum smfar_status smfar_window_deregister(smfar_comm *comm, uint64_t id)
{
    enum smfar_status status = begin(comm, DEREGISTER, id);
    if (status != SMFAR_OK) return status;
    if (id) {
        status = exchange_agree(comm->exchange, await_end(comm, id), "awaiting the memory's use");
        if (status == SMFAR_OK) registered_drop(comm->window, id);
    }
    return end(comm, DEREGISTER, status);
}
