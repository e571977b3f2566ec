/* Units of memory/heap: ranges never overlap, equal histories give equal offsets on every rank, and
 * what is given back can be taken again, neighbours joined. */
#include "../../csrc/memory/heap.h"

#include "unit.h"

enum { BEGIN = 4096, END = 4096 + 64 * HEAP_ALIGNMENT, STEPS = 3000 };

static size_t take(struct heap *heap, size_t bytes)
{
    size_t offset = 0;
    enum smfar_status status = heap_take(heap, bytes, &offset);
    EXPECT(status == SMFAR_OK, "%zu bytes: %s", bytes, smfar_last_error());
    EXPECT_EQ(offset % HEAP_ALIGNMENT, 0);
    EXPECT(offset >= BEGIN && offset + bytes <= END, "offset %zu is outside", offset);
    return offset;
}

static void check_lowest_fit(void)
{
    struct heap heap;
    heap_init(&heap, BEGIN, END);
    size_t a = take(&heap, 1), b = take(&heap, HEAP_ALIGNMENT + 1), c = take(&heap, 0);
    EXPECT_EQ(a, BEGIN);
    EXPECT_EQ(b, a + HEAP_ALIGNMENT);
    EXPECT_EQ(c, b + 2 * HEAP_ALIGNMENT);
    EXPECT_EQ(heap_give(&heap, b), 1);
    EXPECT_EQ(heap_give(&heap, b), 0);
    EXPECT_EQ(heap_give(&heap, a + 1), 0);
    EXPECT_EQ(take(&heap, 2 * HEAP_ALIGNMENT), b);
    heap_give(&heap, a);
    heap_give(&heap, b);
    EXPECT_EQ(take(&heap, 3 * HEAP_ALIGNMENT), a); /* two neighbours became one range */
    heap_clear(&heap);
}

static void check_full(void)
{
    struct heap heap;
    size_t offset = 77;
    heap_init(&heap, BEGIN, END);
    EXPECT_EQ(heap_take(&heap, END - BEGIN + 1, &offset), SMFAR_ERR_MEMORY);
    EXPECT_EQ(heap_take(&heap, SIZE_MAX, &offset), SMFAR_ERR_MEMORY);
    EXPECT_EQ(heap_take(&heap, SIZE_MAX - 100, &offset), SMFAR_ERR_MEMORY);
    EXPECT_EQ(offset, 77);
    size_t all = take(&heap, END - BEGIN);
    EXPECT_EQ(heap_take(&heap, 1, &offset), SMFAR_ERR_MEMORY);
    EXPECT_EQ(heap_give(&heap, all), 1);
    EXPECT_EQ(take(&heap, END - BEGIN), BEGIN);
    heap_clear(&heap);
}

static void check_find(void)
{
    struct heap heap;
    heap_init(&heap, BEGIN, END);
    size_t a = take(&heap, 600), b = take(&heap, 600);
    EXPECT(heap_find(&heap, BEGIN - 1) == NULL, "before the heap");
    EXPECT(heap_find(&heap, b + 2 * HEAP_ALIGNMENT) == NULL, "past the last range");
    struct heap_range *range = heap_find(&heap, b - 1);
    REQUIRE(range != NULL, "nothing holds the first range's end");
    EXPECT_EQ(range->offset, a);
    range = heap_find(&heap, b + 599);
    REQUIRE(range != NULL, "nothing holds the second range");
    EXPECT_EQ(range->offset, b);
    heap_clear(&heap);
}

/* Random steps against a map of who owns each unit; a second heap follows step by step. */
static void check_random(unsigned seed)
{
    struct heap heap, twin;
    unsigned char owner[(END - BEGIN) / HEAP_ALIGNMENT] = {0};
    size_t held[4] = {0}, length[4] = {0}, offset, twin_offset;
    heap_init(&heap, BEGIN, END);
    heap_init(&twin, BEGIN, END);
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        int slot = seed >> 30;
        if (held[slot]) {
            EXPECT_EQ(heap_give(&heap, held[slot]), 1);
            EXPECT_EQ(heap_give(&twin, held[slot]), 1);
            memset(owner + (held[slot] - BEGIN) / HEAP_ALIGNMENT, 0, length[slot]);
            held[slot] = 0;
            continue;
        }
        length[slot] = (seed >> 12) % 20 + 1;
        enum smfar_status status = heap_take(&heap, length[slot] * HEAP_ALIGNMENT, &offset);
        EXPECT_EQ(heap_take(&twin, length[slot] * HEAP_ALIGNMENT, &twin_offset), status);
        if (status != SMFAR_OK) continue;
        EXPECT_EQ(offset, twin_offset);
        held[slot] = offset;
        for (size_t i = 0; i < length[slot]; i++) {
            unsigned char *unit = &owner[(offset - BEGIN) / HEAP_ALIGNMENT + i];
            EXPECT(*unit == 0, "unit is slot %d's", *unit - 1);
            *unit = (unsigned char)(slot + 1);
        }
    }
    heap_clear(&heap);
    heap_clear(&twin);
}

int main(void)
{
    check_lowest_fit();
    check_full();
    check_find();
    check_random(1);
    check_random(2);
    return unit_end();
}
