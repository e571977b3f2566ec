/* A range allocator over offsets: which parts of a window are taken. It touches no memory. */
#ifndef SMFAR_MEMORY_HEAP_H
#define SMFAR_MEMORY_HEAP_H

#include <stddef.h>

#include "../base/status.h"

struct heap_range {
    size_t offset, bytes;
    int freed; /* by this rank; taken until every rank has freed it */
};

struct heap {
    size_t begin, end;         /* what there is to give */
    struct heap_range *ranges; /* taken, by rising offset */
    int count, capacity;
    int due; /* so many ranges, and it is time to see which all ranks have freed */
};

enum { HEAP_ALIGNMENT = 512 };

void heap_init(struct heap *heap, size_t begin, size_t end);
void heap_clear(struct heap *heap);

/* Makes room in the table for one range more: the next heap_take then fails for want of a free
 * range alone, which ranks that make the same calls find alike. */
enum smfar_status heap_make_room(struct heap *heap);

/* The lowest free range of at least `bytes` (rounded up to HEAP_ALIGNMENT; 0 counts as 1). The
 * result depends on the earlier calls alone, so ranks that make the same calls get the same. */
enum smfar_status heap_take(struct heap *heap, size_t bytes, size_t *offset_out);

/* The most bytes that are free in one piece; *last_out: those at the end. */
size_t heap_room(const struct heap *heap, size_t *last_out);

/* Gives back the range that begins at `offset`; returns 0 when there is none. */
int heap_give(struct heap *heap, size_t offset);

/* The range that holds `offset`, or NULL. */
struct heap_range *heap_find(struct heap *heap, size_t offset);

#endif
