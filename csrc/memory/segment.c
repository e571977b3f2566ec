/* See segment.h. */
#include "segment.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "window.h"

struct segment *segment_new(size_t at, size_t bytes)
{
    struct segment *segment = calloc(1, sizeof(*segment));
    for (int r = 0; segment && r < SMFAR_MAX_RANKS; r++) {
        segment->at[r] = at;
        segment->bytes[r] = bytes;
    }
    return segment;
}

static enum smfar_status map_piece(struct window *window, struct segment *segment, int r)
{
    enum smfar_status status = vmm_map(window->driver, segment->handle[r], 0, segment->bytes[r],
                                       window->device, window->peer[r] + segment->at[r]);
    if (status == SMFAR_OK) segment->mapped |= 1u << r;
    return status;
}

/* A rank without a piece has a descriptor of nothing to send. */
static enum smfar_status share_mine(struct window *window, struct segment *segment, int *fd_out)
{
    enum smfar_status status;
    if (!segment->bytes[window->rank]) {
        *fd_out = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return *fd_out < 0 ? FAIL_ERRNO("open") : SMFAR_OK;
    }
    TRY(vmm_export(window->driver, segment->handle[window->rank], fd_out));
    TRY(map_piece(window, segment, window->rank));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status map_peer(struct window *window, struct segment *segment, int r, int fd)
{
    enum smfar_status status = vmm_import(window->driver, fd, &segment->handle[r]);
    if (status == SMFAR_OK) status = map_piece(window, segment, r);
    if (status == SMFAR_OK) return status;
    char text[512];
    snprintf(text, sizeof(text), "%s", smfar_last_error());
    return FAIL(status, "rank %d cannot reach the memory of rank %d: %s", window->rank, r, text);
}

/* Collective. */
static enum smfar_status map_peers(struct window *window, struct exchange *exchange,
                                   struct segment *segment, int fd)
{
    int fds[SMFAR_MAX_RANKS];
    enum smfar_status status = exchange_descriptors(exchange, fd, fds);
    for (int r = 0; r < window->ranks; r++) {
        if (fds[r] < 0) continue;
        if (status == SMFAR_OK && segment->bytes[r]) status = map_peer(window, segment, r, fds[r]);
        close(fds[r]);
    }
    return exchange_agree(exchange, status, "mapping the peers' memory");
}

enum smfar_status segment_share(struct window *window, struct exchange *exchange,
                                enum smfar_status status, const char *step, struct segment *segment)
{
    int fd = -1;
    if (status == SMFAR_OK) status = share_mine(window, segment, &fd);
    status = exchange_agree(exchange, status, step);
    if (status == SMFAR_OK) status = map_peers(window, exchange, segment, fd);
    if (fd >= 0) close(fd);
    return status;
}

void segment_drop(struct window *window, struct segment *segment)
{
    while (segment) {
        struct segment *next = segment->next;
        multicast_destroy(window->driver, window->device, &segment->multicast);
        for (int r = 0; r < window->ranks; r++) {
            if (segment->mapped & 1u << r)
                vmm_unmap(window->driver, window->peer[r] + segment->at[r], segment->bytes[r]);
            vmm_release(window->driver, segment->handle[r]);
        }
        free(segment);
        segment = next;
    }
}
