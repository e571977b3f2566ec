/* See registered.h. */
#include "registered.h"

#include <stdlib.h>
#include <string.h>

#include "../base/log.h"
#include "../base/range.h"

struct registered {
    struct registered *next;
    uint64_t id;
    /* the registration in whose memory rank r's lies already, or 0: it stays as long as this one */
    uint64_t in[SMFAR_MAX_RANKS];
    size_t place, asked; /* where mine lies there, in my view, and how much */
    int ended;           /* deregistered, but the memory of others that have not been lies in it */
    CUdeviceptr base;    /* where the caller has my memory */
    size_t bytes, at;    /* how much; where it begins in my view */
    size_t taken;        /* where the address space for all ranks begins, in every view */
    struct segment *segments;
};

/* One allocation of the driver's, of which mine may be several in a row. */
struct piece {
    size_t bytes;
    vmm_handle handle;
};

struct pieces {
    CUdeviceptr base;
    size_t bytes; /* of all */
    size_t count, capacity, used;
    struct piece *piece;
};

static void free_pieces(const struct window *window, struct pieces *pieces)
{
    for (size_t i = pieces->used; i < pieces->count; i++)
        vmm_release(window->driver, pieces->piece[i].handle);
    free(pieces->piece);
}

static enum smfar_status add_piece(struct pieces *pieces, size_t bytes, vmm_handle handle)
{
    if (pieces->count == pieces->capacity) {
        size_t capacity = pieces->capacity ? 2 * pieces->capacity : 16;
        struct piece *piece = realloc(pieces->piece, capacity * sizeof(*piece));
        if (!piece) return FAIL(SMFAR_ERR_MEMORY, "no memory for the table of allocations");
        pieces->piece = piece;
        pieces->capacity = capacity;
    }
    pieces->piece[pieces->count++] = (struct piece){bytes, handle};
    pieces->bytes += bytes;
    return SMFAR_OK;
}

/* Finds the allocations that [ptr, ptr + bytes) lies in, one behind the other. */
static enum smfar_status find_pieces(const struct window *window, CUdeviceptr ptr, size_t bytes,
                                     struct pieces *pieces)
{
    CUdeviceptr at = ptr;
    while (at < ptr + bytes) {
        CUdeviceptr base;
        size_t size;
        vmm_handle handle;
        enum smfar_status status =
            vmm_find(window->driver, window->device, at, &base, &size, &handle);
        if (status != SMFAR_OK) return status;
        status = add_piece(pieces, size, handle);
        if (status != SMFAR_OK) {
            vmm_release(window->driver, handle);
            return status;
        }
        if (at == ptr) pieces->base = base;
        at = base + size;
    }
    return SMFAR_OK;
}

/* ---- adding ---- */

/* Collective: one allocation of every rank that has one left; *more_out says whether any has. */
static enum smfar_status add_segment(struct window *window, struct exchange *exchange,
                                     struct pieces *pieces, size_t *at, struct registered *entry,
                                     int *more_out)
{
    uint64_t mine = pieces->used < pieces->count ? pieces->piece[pieces->used].bytes : 0;
    uint64_t all[SMFAR_MAX_RANKS], any = 0;
    enum smfar_status status = exchange_all_gather(exchange, &mine, sizeof(mine), all);
    if (status != SMFAR_OK) return status;
    for (int r = 0; r < window->ranks; r++)
        any |= all[r];
    *more_out = any != 0;
    if (!any) return SMFAR_OK;
    struct segment *segment = segment_new(0, 0);
    if (!segment) status = FAIL(SMFAR_ERR_MEMORY, "no memory for the window's table");
    for (int r = 0; segment && r < window->ranks; r++) {
        segment->at[r] = at[r];
        segment->bytes[r] = all[r];
        at[r] += all[r];
    }
    if (segment && mine) segment->handle[window->rank] = pieces->piece[pieces->used++].handle;
    if (segment) segment->next = entry->segments;
    if (segment) entry->segments = segment;
    return segment_share(window, exchange, status, "sharing memory that is to be registered",
                         segment);
}

/* Address space for every rank's memory: the same decision on every rank. */
static enum smfar_status take_room(struct window *window, const uint64_t *bytes, size_t *at,
                                   size_t *taken_out)
{
    size_t most = 0, apart;
    for (int r = 0; r < window->ranks; r++)
        if (bytes[r] > most) most = bytes[r];
    most = vmm_round_up(most, window->granularity);
    apart = window->multicast ? most : 0;
    size_t all = most + apart * (size_t)(window->ranks - 1);
    struct heap *room = &window->room;
    enum smfar_status status = heap_take(room, all, taken_out);
    for (int r = 0; r < window->ranks; r++)
        at[r] = *taken_out + apart * (size_t)r;
    if (status == SMFAR_OK) return status;
    return FAIL(status,
                "no %zu bytes of addresses are left for registered memory, of %zu; a window that "
                "begins larger has more: window_bytes or SMFAR_WINDOW_BYTES",
                all, room->end - room->begin);
}

static enum smfar_status map_all(struct window *window, struct exchange *exchange,
                                 struct pieces *pieces, struct registered *entry)
{
    enum smfar_status status;
    uint64_t mine = pieces->bytes, all[SMFAR_MAX_RANKS], any = 0;
    size_t at[SMFAR_MAX_RANKS];
    int more = 1;
    TRY(exchange_all_gather(exchange, &mine, sizeof(mine), all));
    for (int r = 0; r < window->ranks; r++)
        any |= all[r];
    if (!any) return SMFAR_OK;
    TRY(take_room(window, all, at, &entry->taken));
    entry->at = at[window->rank];
    while (more)
        TRY(add_segment(window, exchange, pieces, at, entry, &more));
    return SMFAR_OK;
fail:
    return status;
}

static void drop_entry(struct window *window, struct registered *entry)
{
    if (!entry) return;
    segment_drop(window, entry->segments);
    if (entry->taken) heap_give(&window->room, entry->taken);
    free(entry);
}

/* The one whose memory of mine holds these bytes of my view, or NULL. */
static const struct registered *holder_of(const struct window *window, size_t offset, size_t bytes)
{
    const struct registered *entry = window->registered;
    while (entry && (offset < entry->at || offset - entry->at >= entry->bytes))
        entry = entry->next;
    return entry && bytes <= entry->bytes - (offset - entry->at) ? entry : NULL;
}

/* 1 where nothing has to be mapped: *place_out then becomes where it lies, and *in_out the
 * registration that it lies in, if it does not lie in the heap. */
static int needs_nothing(struct window *window, const void *ptr, size_t bytes, size_t *place_out,
                         uint64_t *in_out)
{
    if (bytes == 0) return 1;
    if (!window_offset(window, registered_view(window, ptr, bytes), bytes, place_out)) return 0;
    const struct registered *holder =
        heap_find(&window->heap, *place_out) ? NULL : holder_of(window, *place_out, bytes);
    if (holder) *in_out = holder->id;
    return 1;
}

/* Does it hold anything, on any rank? */
static int holds_some(const struct window *window, const struct registered *entry)
{
    int some = entry->segments != NULL;
    for (int r = 0; r < window->ranks; r++)
        some |= entry->in[r] != 0;
    return some;
}

enum smfar_status registered_add(struct window *window, struct exchange *exchange, const void *ptr,
                                 size_t bytes, uint64_t *id_out)
{
    struct pieces pieces = {0};
    uint64_t in = 0;
    size_t place = 0;
    struct registered *entry = calloc(1, sizeof(*entry));
    enum smfar_status status =
        entry ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for the window's table");
    if (status == SMFAR_OK && !needs_nothing(window, ptr, bytes, &place, &in))
        status = find_pieces(window, (CUdeviceptr)(uintptr_t)ptr, bytes, &pieces);
    TRY(exchange_agree(exchange, status, "finding the memory to register"));
    TRY(exchange_all_gather(exchange, &in, sizeof(in), entry->in));
    TRY(map_all(window, exchange, &pieces, entry));
    *id_out = 0;
    if (holds_some(window, entry)) {
        entry->id = *id_out = ++window->registrations;
        entry->base = pieces.base;
        entry->bytes = pieces.bytes;
        entry->place = place;
        entry->asked = bytes;
        log_info("registered %zu bytes, in %zu allocations", pieces.bytes, pieces.count);
        pthread_mutex_lock(&window->lock);
        entry->next = window->registered;
        window->registered = entry;
        pthread_mutex_unlock(&window->lock);
        entry = NULL;
    }
    status = SMFAR_OK;
fail:
    drop_entry(window, entry);
    free_pieces(window, &pieces);
    return status;
}

/* ---- what is there ---- */

int registered_there(const struct window *window, uint64_t id)
{
    const struct registered *entry = window->registered;
    while (entry && entry->id != id)
        entry = entry->next;
    return entry && !entry->ended;
}

/* Does anything that has not ended lie in this allocation of mine, of one that has? */
static int is_kept(const struct window *window, const struct registered *entry,
                   const struct segment *segment)
{
    int me = window->rank, kept = 0;
    for (const struct registered *other = window->registered; other; other = other->next)
        kept |= !other->ended && other->in[me] == entry->id &&
                range_overlaps(other->place, other->asked, segment->at[me], segment->bytes[me]);
    return kept;
}

static int all_kept(const struct window *window, const struct registered *entry, size_t offset,
                    size_t bytes)
{
    int me = window->rank, kept = 1;
    for (const struct segment *segment = entry->segments; segment; segment = segment->next)
        if (range_overlaps(offset, bytes, segment->at[me], segment->bytes[me]))
            kept &= is_kept(window, entry, segment);
    return kept;
}

void *registered_view(const struct window *window, const void *ptr, size_t bytes)
{
    uint64_t at = (uint64_t)(uintptr_t)ptr;
    for (const struct registered *entry = window->registered; entry; entry = entry->next) {
        uint64_t inside = at - entry->base;
        if (at >= entry->base && inside < entry->bytes && bytes <= entry->bytes - inside &&
            (!entry->ended || all_kept(window, entry, entry->at + inside, bytes)))
            return (void *)(uintptr_t)(window->peer[window->rank] + entry->at + inside);
    }
    return (void *)(uintptr_t)ptr;
}

int registered_holds(const struct window *window, size_t offset, size_t bytes)
{
    return holder_of(window, offset, bytes) != NULL;
}

size_t registered_bytes(const struct window *window)
{
    size_t bytes = 0;
    for (const struct registered *entry = window->registered; entry; entry = entry->next)
        bytes += entry->bytes;
    return bytes;
}

/* ---- ending ---- */

/* Ended, and nothing that has not ended lies in it: every rank finds the same. */
static int is_over(const struct window *window, const struct registered *entry)
{
    int over = entry->ended;
    for (const struct registered *other = window->registered; other; other = other->next)
        for (int r = 0; r < window->ranks; r++)
            over &= other->ended || other->in[r] != entry->id;
    return over;
}

static struct registered *unlink_over(struct window *window)
{
    pthread_mutex_lock(&window->lock);
    struct registered **link = &window->registered;
    while (*link && !is_over(window, *link))
        link = &(*link)->next;
    struct registered *entry = *link;
    if (entry) *link = entry->next;
    pthread_mutex_unlock(&window->lock);
    return entry;
}

static void drop_over(struct window *window)
{
    for (struct registered *entry; (entry = unlink_over(window));)
        drop_entry(window, entry);
}

void registered_drop(struct window *window, uint64_t id)
{
    for (struct registered *entry = window->registered; entry; entry = entry->next)
        entry->ended |= entry->id == id;
    drop_over(window);
}

void registered_drop_all(struct window *window)
{
    for (struct registered *entry = window->registered; entry; entry = entry->next)
        entry->ended = 1;
    drop_over(window);
}
