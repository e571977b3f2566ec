/* See window.h. */
#include "window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/log.h"

/* My own memory, and a descriptor of it. */
static enum smfar_status create_mine(struct window *window, int *fd_out)
{
    enum smfar_status status;
    struct driver *driver = window->driver;
    vmm_handle *handle = &window->handle[window->rank];
    TRY(vmm_create(driver, window->device, window->bytes, handle));
    TRY(vmm_export(driver, *handle, fd_out));
    TRY(vmm_map(driver, *handle, 0, window->bytes, window->device, &window->peer[window->rank]));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status map_peer(struct window *window, int r, int fd)
{
    enum smfar_status status = vmm_import(window->driver, fd, &window->handle[r]);
    if (status == SMFAR_OK)
        status = vmm_map(window->driver, window->handle[r], 0, window->bytes, window->device,
                         &window->peer[r]);
    if (status == SMFAR_OK) return status;
    char text[512];
    snprintf(text, sizeof(text), "%s", smfar_last_error());
    return FAIL(status, "rank %d cannot reach the memory of rank %d: %s", window->rank, r, text);
}

/* Collective. */
static enum smfar_status map_peers(struct window *window, struct exchange *exchange, int fd)
{
    int fds[SMFAR_MAX_RANKS];
    enum smfar_status status = exchange_descriptors(exchange, fd, fds);
    for (int r = 0; r < window->ranks; r++) {
        if (fds[r] < 0) continue;
        if (status == SMFAR_OK) status = map_peer(window, r, fds[r]);
        close(fds[r]);
    }
    return exchange_agree(exchange, status, "mapping the peers' windows");
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
}

enum smfar_status window_create(struct driver *driver, struct exchange *exchange, CUdevice device,
                                size_t bytes, const struct window_parts *called,
                                const struct window_parts *replayed, struct window **window_out)
{
    size_t granularity = 0;
    int fd = -1;
    struct window *window = calloc(1, sizeof(*window));
    enum smfar_status status =
        window ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for the window's table");
    if (window) {
        window->driver = driver;
        window->device = device;
        window->rank = exchange_rank(exchange);
        window->ranks = exchange_ranks(exchange);
        status = vmm_granularity(driver, device, &granularity);
    }
    if (status == SMFAR_OK) {
        window->bytes = vmm_round_up(bytes, granularity);
        divide(window, called, replayed);
        status = create_mine(window, &fd);
    }
    TRY(exchange_agree(exchange, status, "allocating the window"));
    TRY(map_peers(window, exchange, fd));
    close(fd);
    log_info("window of %zu bytes on each of %d ranks", window->bytes, window->ranks);
    *window_out = window;
    return SMFAR_OK;
fail:
    if (fd >= 0) close(fd);
    window_destroy(window);
    return status;
}

enum smfar_status window_add_multicast(struct window *window, struct exchange *exchange)
{
    return multicast_create(window->driver, exchange, window->device, window->handle[window->rank],
                            window->bytes, &window->multicast);
}

void window_drop_multicast(struct window *window)
{
    multicast_destroy(window->driver, window->device, &window->multicast);
}

void window_destroy(struct window *window)
{
    if (!window) return;
    window_drop_multicast(window);
    for (int r = 0; r < window->ranks; r++) {
        vmm_unmap(window->driver, window->peer[r], window->bytes);
        vmm_release(window->driver, window->handle[r]);
    }
    heap_clear(&window->heap);
    free(window);
}

int window_offset(struct window *window, const void *ptr, size_t bytes, size_t *offset_out)
{
    uint64_t base = window->peer[window->rank], at = (uint64_t)(uintptr_t)ptr;
    if (at < base || at - base >= window->bytes) return 0;
    size_t offset = at - base;
    struct heap_range *range = heap_find(&window->heap, offset);
    if (!range || offset + bytes > range->offset + range->bytes) return 0;
    *offset_out = offset;
    return 1;
}
