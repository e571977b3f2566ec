/* See window.h. */
#include "window.h"

#include <stdlib.h>

#include "../base/log.h"
#include "registered.h"

/* Address space of a view beside what the window begins with, as a multiple of that; half of it is
 * for the heap. There are as many views as ranks, in each group and process: together they must be
 * less than the 128 TiB that a process has. */
enum { ROOM_TIMES = 256 };
static const size_t ROOM_LEAST = (size_t)4 << 30, ROOM_MOST = (size_t)256 << 30;

static size_t room_of(size_t bytes)
{
    size_t room = bytes < ROOM_MOST / ROOM_TIMES ? bytes * ROOM_TIMES : ROOM_MOST;
    return room > ROOM_LEAST ? room : ROOM_LEAST;
}

static enum smfar_status create_mine(struct window *window, struct segment *segment)
{
    if (!segment) return FAIL(SMFAR_ERR_MEMORY, "no memory for the window's table");
    return vmm_create(window->driver, window->device, segment->bytes[window->rank],
                      &segment->handle[window->rank]);
}

/* Places the parts of one kind of collective; returns where the next begin. */
static size_t place(const struct window *window, const struct window_parts *parts, size_t at,
                    struct window_channel *channel)
{
    channel->slot = at;
    channel->oneshot = channel->slot + parts->slot_bytes;
    channel->oneshot_bytes = parts->oneshot_bytes;
    channel->push = channel->oneshot + 2 * parts->oneshot_bytes;
    channel->push_box = 2 * parts->push_bytes;
    return channel->push + 2 * (size_t)window->ranks * channel->push_box;
}

static void divide(struct window *window, const struct window_parts *called,
                   const struct window_parts *replayed)
{
    size_t at = place(window, called, WINDOW_SLOT, &window->called);
    at = place(window, replayed, at, &window->replayed);
    window->replayed.signals = WINDOW_REPLAYED_SIGNALS;
    window->slot = window->called.slot;
    window->slot_bytes = called->slot_bytes;
    heap_init(&window->heap, at, window->bytes);
    size_t growth = (window->span - window->bytes) / 2;
    heap_init(&window->room, window->bytes + growth, window->span);
}

static enum smfar_status reserve_views(struct window *window)
{
    enum smfar_status status = SMFAR_OK;
    for (int r = 0; r < window->ranks && status == SMFAR_OK; r++)
        status = vmm_reserve(window->driver, window->span, &window->peer[r]);
    return status;
}

/* What this rank does alone, before it shares anything. */
static enum smfar_status begin(struct window *window, size_t bytes,
                               const struct window_parts *called,
                               const struct window_parts *replayed)
{
    enum smfar_status status;
    TRY(vmm_granularity(window->driver, window->device, &window->granularity));
    window->bytes = vmm_round_up(bytes, window->granularity);
    window->span = window->bytes + vmm_round_up(room_of(window->bytes), 2 * window->granularity);
    window->segments = segment_new(0, window->bytes);
    divide(window, called, replayed);
    TRY(create_mine(window, window->segments));
    TRY(reserve_views(window));
    return SMFAR_OK;
fail:
    if (status == SMFAR_ERR_MEMORY)
        FAIL(status, "%s; for a smaller one than of %zu bytes: window_bytes or SMFAR_WINDOW_BYTES",
             smfar_last_error(), bytes);
    return status;
}

enum smfar_status window_create(struct driver *driver, struct exchange *exchange, CUdevice device,
                                size_t bytes, const struct window_parts *called,
                                const struct window_parts *replayed, struct window **window_out)
{
    struct window *window = calloc(1, sizeof(*window));
    enum smfar_status status =
        window ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for the window's table");
    if (window) {
        window->driver = driver;
        window->device = device;
        window->rank = exchange_rank(exchange);
        window->ranks = exchange_ranks(exchange);
        pthread_mutex_init(&window->lock, NULL);
        status = begin(window, bytes, called, replayed);
    }
    TRY(segment_share(window, exchange, status, "allocating the window",
                      window ? window->segments : NULL));
    log_info("window of %zu bytes on each of %d ranks", window->bytes, window->ranks);
    *window_out = window;
    return SMFAR_OK;
fail:
    window_destroy(window);
    return status;
}

/* Collective. */
static enum smfar_status join_multicast(struct window *window, struct exchange *exchange,
                                        struct segment *segment)
{
    return multicast_create(window->driver, exchange, window->device, segment->handle[window->rank],
                            segment->bytes[window->rank],
                            window->multicast + segment->at[window->rank], &segment->multicast);
}

enum smfar_status window_add_multicast(struct window *window, struct exchange *exchange)
{
    enum smfar_status status;
    status = vmm_reserve(window->driver, window->span, &window->multicast);
    TRY(exchange_agree(exchange, status, "reserving addresses for multicast"));
    TRY(join_multicast(window, exchange, window->segments));
    return SMFAR_OK;
fail:
    window_drop_multicast(window);
    return status;
}

void window_drop_multicast(struct window *window)
{
    for (struct segment *segment = window->segments; segment; segment = segment->next)
        multicast_destroy(window->driver, window->device, &segment->multicast);
    vmm_unreserve(window->driver, window->multicast, window->span);
    window->multicast = 0;
}

enum smfar_status window_grow(struct window *window, struct exchange *exchange, size_t bytes)
{
    enum smfar_status status;
    size_t limit = window->room.begin;
    struct segment *segment = NULL;
    if (bytes > limit - window->bytes)
        return FAIL(SMFAR_ERR_MEMORY,
                    "the window has %zu bytes and can grow to %zu, not by %zu; begin with a larger "
                    "one: window_bytes or SMFAR_WINDOW_BYTES",
                    window->bytes, limit, bytes);
    bytes = vmm_round_up(bytes, window->granularity);
    segment = segment_new(window->bytes, bytes);
    status = create_mine(window, segment);
    TRY(segment_share(window, exchange, status, "allocating more of the window", segment));
    if (window->multicast) TRY(join_multicast(window, exchange, segment));
    segment->next = window->segments;
    window->segments = segment;
    pthread_mutex_lock(&window->lock);
    window->bytes += bytes;
    window->heap.end = window->bytes;
    pthread_mutex_unlock(&window->lock);
    log_info("the window has grown to %zu bytes on each of %d ranks", window->bytes, window->ranks);
    return SMFAR_OK;
fail:
    segment_drop(window, segment);
    return status;
}

void window_destroy(struct window *window)
{
    if (!window) return;
    registered_drop_all(window);
    segment_drop(window, window->segments);
    for (int r = 0; r < window->ranks; r++)
        vmm_unreserve(window->driver, window->peer[r], window->span);
    vmm_unreserve(window->driver, window->multicast, window->span);
    heap_clear(&window->heap);
    heap_clear(&window->room);
    pthread_mutex_destroy(&window->lock);
    free(window);
}

int window_offset(struct window *window, const void *ptr, size_t bytes, size_t *offset_out)
{
    uint64_t base = window->peer[window->rank], at = (uint64_t)(uintptr_t)ptr;
    if (at < base || at - base >= window->span) return 0;
    size_t offset = at - base;
    struct heap_range *range = heap_find(&window->heap, offset);
    if (range ? offset + bytes > range->offset + range->bytes
              : !registered_holds(window, offset, bytes))
        return 0;
    *offset_out = offset;
    return 1;
}
