/* The copies behind a multicast mapping: opens and maps what each device has bound, in whichever
 * process it was bound, when an address is first used, and drops what was unbound. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_multicast.h"

static void view_free(void *argument)
{
    struct view *view = argument;
    munmap(view->base, view->size);
    free(view);
}

void views_close(struct multicast *multicast)
{
    while (multicast->views) {
        struct view *next = multicast->views->next;
        view_free(multicast->views);
        multicast->views = next;
    }
}

static int is_live(const struct shared *shared, uint64_t serial)
{
    for (unsigned i = 0; i < shared->bind_end; i++)
        if (atomic_load(&shared->binds[i].live) && shared->binds[i].serial == serial) return 1;
    return 0;
}

/* Running kernels may still write to a copy that was unbound just now. */
static void drop_dead_views(struct multicast *multicast)
{
    struct view **link = &multicast->views;
    while (*link) {
        struct view *view = *link;
        if (is_live(multicast->shared, view->serial)) {
            link = &view->next;
            continue;
        }
        *link = view->next;
        retire(view_free, view);
    }
}

/* A process that has ended is the program's affair; any other reason is the machine's, and said. */
static void report_unopened(const struct bind *bind, int error)
{
    static const char format[] = "multicast: cannot open the memory that process %d has bound: %s";
    if (bind->fd < 0 || error == ENOENT)
        refuse(CUDA_ERROR_OPERATING_SYSTEM, format, bind->pid, "no longer there");
    else
        soft_print(format, bind->pid, strerror(error));
}

/* The bound memory's descriptor, opened through the process that bound it; -1 when that fails. */
static int open_memory(const struct bind *bind)
{
    struct allocation_header header;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", bind->pid, bind->fd);
    int fd = bind->fd < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        report_unopened(bind, errno);
        return -1;
    }
    if (allocation_identify(fd, &header) &&
        memcmp(header.id, bind->memory_id, OBJECT_ID_BYTES) == 0)
        return fd;
    close(fd); /* the number belongs to another process now */
    return -1;
}

static struct view *make_view(struct multicast *multicast, const struct bind *bind)
{
    int fd = open_memory(bind);
    if (fd < 0) return NULL;
    void *base =
        mmap(NULL, bind->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, bind->memory_offset);
    close(fd);
    struct view *view = base == MAP_FAILED ? NULL : malloc(sizeof *view);
    if (!view) {
        if (base != MAP_FAILED) munmap(base, bind->size);
        return NULL;
    }
    *view = (struct view){multicast->views, bind->serial, base, bind->size};
    multicast->views = view;
    return view;
}

static unsigned char *view_base(struct multicast *multicast, const struct bind *bind)
{
    struct view *view = multicast->views;
    while (view && view->serial != bind->serial)
        view = view->next;
    if (!view) view = make_view(multicast, bind);
    return view ? view->base : NULL;
}

CUresult multicast_open_copies(struct multicast *multicast, uint64_t begin, uint64_t end)
{
    struct shared *shared = multicast->shared;
    CUresult result = CUDA_SUCCESS;
    if (shared_lock(shared) != 0) return CUDA_ERROR_SYSTEM_NOT_READY;
    for (unsigned i = 0; i < shared->bind_end; i++) {
        const struct bind *bind = &shared->binds[i];
        if (!atomic_load(&bind->live) || bind->offset >= end || bind->offset + bind->size <= begin)
            continue;
        if (!view_base(multicast, bind)) result = CUDA_ERROR_OPERATING_SYSTEM;
    }
    shared_unlock(shared);
    return result;
}

/* Fills the piece that begins at piece->begin: how far it goes, and its copies. */
static void fill_piece(struct multicast *multicast, struct piece *piece, uint64_t end)
{
    struct shared *shared = multicast->shared;
    unsigned found = 0;
    piece->end = end;
    for (unsigned i = 0; i < shared->bind_end; i++) {
        const struct bind *bind = &shared->binds[i];
        uint64_t bind_end = bind->offset + bind->size;
        if (!atomic_load(&bind->live) || bind_end <= piece->begin) continue;
        if (bind->offset > piece->begin) {
            if (bind->offset < piece->end) piece->end = bind->offset;
            continue;
        }
        if (bind_end < piece->end) piece->end = bind_end;
        unsigned char *base = view_base(multicast, bind);
        if (!base) continue;
        piece->copy[bind->slot] = base + (piece->begin - bind->offset);
        piece->place[bind->slot] =
            allocation_place(bind->memory_id) + bind->memory_offset + (piece->begin - bind->offset);
        found++;
    }
    piece->copies = found == shared->num_devices ? found : 0;
}

unsigned multicast_pieces(struct multicast *multicast, uint64_t begin, uint64_t end,
                          void (*visit)(void *context, const struct piece *piece), void *context)
{
    struct shared *shared = multicast->shared;
    if (shared_lock(shared) != 0) {
        struct piece nothing = {.begin = begin, .end = end};
        visit(context, &nothing);
        return atomic_load(&shared->generation) - 1; /* asks again at the next use */
    }
    unsigned generation = atomic_load(&shared->generation);
    drop_dead_views(multicast);
    while (begin < end) {
        struct piece piece = {.begin = begin};
        fill_piece(multicast, &piece, end);
        visit(context, &piece);
        begin = piece.end;
    }
    shared_unlock(shared);
    return generation;
}
