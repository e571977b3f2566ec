/* See heap.h. */
#include "heap.h"

#include <stdlib.h>
#include <string.h>

void heap_init(struct heap *heap, size_t begin, size_t end)
{
    memset(heap, 0, sizeof(*heap));
    heap->begin = begin;
    heap->end = end;
}

void heap_clear(struct heap *heap)
{
    free(heap->ranges);
    memset(heap, 0, sizeof(*heap));
}

enum smfar_status heap_make_room(struct heap *heap)
{
    if (heap->count < heap->capacity) return SMFAR_OK;
    int capacity = heap->capacity ? 2 * heap->capacity : 16;
    struct heap_range *ranges = realloc(heap->ranges, sizeof(*ranges) * (size_t)capacity);
    if (!ranges) return FAIL(SMFAR_ERR_MEMORY, "no memory for the window's range table");
    heap->ranges = ranges;
    heap->capacity = capacity;
    return SMFAR_OK;
}

enum smfar_status heap_take(struct heap *heap, size_t bytes, size_t *offset_out)
{
    if (bytes > heap->end) bytes = heap->end + 1; /* cannot fit, and cannot overflow below */
    size_t size = ((bytes ? bytes : 1) + HEAP_ALIGNMENT - 1) & ~(size_t)(HEAP_ALIGNMENT - 1);
    size_t at = heap->begin;
    int i = 0;
    while (i < heap->count && heap->ranges[i].offset - at < size) {
        at = heap->ranges[i].offset + heap->ranges[i].bytes;
        i++;
    }
    if (heap->end < at || heap->end - at < size)
        return FAIL(SMFAR_ERR_MEMORY,
                    "no %zu bytes in one piece are left in the window (%zu bytes in all); "
                    "smfar.reserve adds to it, and window_bytes or SMFAR_WINDOW_BYTES make a "
                    "larger one",
                    bytes, heap->end - heap->begin);
    enum smfar_status status = heap_make_room(heap);
    if (status != SMFAR_OK) return status;
    memmove(heap->ranges + i + 1, heap->ranges + i,
            sizeof(heap->ranges[0]) * (size_t)(heap->count - i));
    heap->ranges[i] = (struct heap_range){at, size, 0};
    heap->count++;
    *offset_out = at;
    return SMFAR_OK;
}

struct heap_range *heap_find(struct heap *heap, size_t offset)
{
    int low = 0, high = heap->count; /* the answer's index + 1 lies in [low, high] */
    while (low < high) {
        int middle = (low + high) / 2;
        if (heap->ranges[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return NULL;
    struct heap_range *range = &heap->ranges[low - 1];
    return offset - range->offset < range->bytes ? range : NULL;
}

size_t heap_room(const struct heap *heap, size_t *last_out)
{
    size_t at = heap->begin, most = 0;
    for (int i = 0; i < heap->count; i++) {
        size_t free = heap->ranges[i].offset - at;
        if (free > most) most = free;
        at = heap->ranges[i].offset + heap->ranges[i].bytes;
    }
    *last_out = heap->end > at ? heap->end - at : 0;
    return *last_out > most ? *last_out : most;
}

int heap_give(struct heap *heap, size_t offset)
{
    struct heap_range *range = heap_find(heap, offset);
    if (!range || range->offset != offset) return 0;
    int i = (int)(range - heap->ranges);
    memmove(range, range + 1, sizeof(*range) * (size_t)(heap->count - i - 1));
    heap->count--;
    return 1;
}
