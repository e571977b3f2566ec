/* What every address means to one device: a sorted table that operations search without a lock
 * while mappings change. A table is never changed, only replaced; replaced ones are retired. */
#include <stdlib.h>
#include <string.h>

#include "soft_internal.h"

/* Below: no pointer that is not null by mistake. Above: no address of a process at all. */
#define USER_BEGIN 0x10000ull
#ifdef __x86_64__
#define USER_END (1ull << 47)
#else
#define USER_END (1ull << 48)
#endif

struct table {
    size_t count, capacity;
    struct span *spans; /* from 0 to UINT64_MAX without a gap */
};

/* A table being filled, from low addresses to high. */
struct builder {
    struct table *table;
    const struct device *device;
    uint64_t at; /* where the next span begins */
    int failed;
    const struct mapping *mapping; /* the multicast mapping whose pieces are being visited */
};

static struct span *append(struct builder *builder, uint64_t end, enum span_kind kind)
{
    static struct span scrap; /* written to, never read, when memory ran out */
    struct table *table = builder->table;
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 32;
        struct span *spans = realloc(table->spans, capacity * sizeof *spans);
        if (!spans) {
            builder->failed = 1;
            return &scrap;
        }
        table->spans = spans;
        table->capacity = capacity;
    }
    struct span *span = &table->spans[table->count++];
    memset(span, 0, sizeof *span);
    span->range.begin = span->range.place = builder->at;
    span->range.end = builder->at = end;
    span->kind = kind;
    span->device = -1;
    span->range.kind = kind == SPAN_NOTHING ? PTX_RANGE_FAULT : PTX_RANGE_PLAIN;
    span->range.writable = kind == SPAN_HOST;
    return span;
}

static void fill_to(struct builder *builder, uint64_t end, enum span_kind kind)
{
    if (builder->at < end) append(builder, end, kind);
}

static void add_memory(struct builder *builder, const struct mapping *mapping)
{
    int access = mapping->access[builder->device->ordinal];
    struct span *span = append(builder, mapping->end, SPAN_MEMORY);
    span->device = mapping->allocation->device;
    span->range.place = allocation_place(mapping->allocation->id) + mapping->offset;
    if (!(access & CU_MEM_ACCESS_FLAGS_PROT_READ)) span->range.kind = PTX_RANGE_FAULT;
    span->range.writable = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static void add_piece(void *context, const struct piece *piece)
{
    struct builder *builder = context;
    const struct mapping *mapping = builder->mapping;
    int access = mapping->access[builder->device->ordinal];
    uint64_t end = mapping->begin + (piece->end - mapping->offset);
    struct span *span = append(builder, end, SPAN_MULTICAST);
    int usable = piece->copies && (access & CU_MEM_ACCESS_FLAGS_PROT_READ);
    span->range.kind = usable ? PTX_RANGE_MULTICAST : PTX_RANGE_FAULT;
    span->range.writable = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    span->range.copies = piece->copies;
    memcpy(span->range.copy, piece->copy, piece->copies * sizeof *piece->copy);
    memcpy(span->range.copy_place, piece->place, piece->copies * sizeof *piece->place);
}

static void add_multicast(struct builder *builder, const struct mapping *mapping)
{
    struct multicast *multicast = mapping->allocation->multicast;
    size_t first = builder->table->count;
    builder->mapping = mapping;
    uint64_t end = mapping->offset + (mapping->end - mapping->begin);
    unsigned seen = multicast_pieces(multicast, mapping->offset, end, add_piece, builder);
    for (size_t i = first; i < builder->table->count; i++) {
        builder->table->spans[i].generation = multicast_generation(multicast);
        builder->table->spans[i].seen = seen;
    }
}

static void add_region(struct builder *builder, const struct region *region)
{
    fill_to(builder, region->begin, SPAN_HOST);
    if (region->device >= 0) {
        struct span *span = append(builder, region->begin + region->block_size, SPAN_BLOCK);
        span->device = region->device;
        span->range.writable = 1;
        if (region->device != builder->device->ordinal) span->range.kind = PTX_RANGE_FAULT;
    }
    for (const struct mapping *mapping = region->mappings; mapping; mapping = mapping->next) {
        fill_to(builder, mapping->begin, SPAN_NOTHING);
        if (mapping->allocation->multicast)
            add_multicast(builder, mapping);
        else
            add_memory(builder, mapping);
    }
    fill_to(builder, region->end, SPAN_NOTHING);
}

static void table_free(void *argument)
{
    struct table *table = argument;
    free(table->spans);
    free(table);
}

static struct table *build(const struct device *device)
{
    struct builder builder = {.device = device, .table = calloc(1, sizeof(struct table))};
    if (!builder.table) return NULL;
    fill_to(&builder, USER_BEGIN, SPAN_NOTHING);
    for (const struct region *region = regions; region; region = region->next)
        add_region(&builder, region);
    fill_to(&builder, USER_END, SPAN_HOST);
    fill_to(&builder, UINT64_MAX, SPAN_NOTHING);
    if (!builder.failed) return builder.table;
    table_free(builder.table);
    return NULL;
}

static void rebuild(struct device *device)
{
    struct table *table = build(device);
    if (!table) return device_fault(device, CUDA_ERROR_OUT_OF_MEMORY, "no memory for its tables");
    struct table *old = atomic_exchange(&device->table, table);
    if (old) retire(table_free, old);
}

void table_rebuild(struct device *device)
{
    if (device) return rebuild(device);
    for (int i = 0; i < settings.devices; i++)
        if (atomic_load(&devices[i].table)) rebuild(&devices[i]);
}

static const struct span *search(const struct table *table, uint64_t address)
{
    size_t low = 0, high = table->count - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (address < table->spans[middle].range.end)
            high = middle;
        else
            low = middle + 1;
    }
    return &table->spans[low];
}

static int is_current(const struct span *span)
{
    return !span->generation ||
           atomic_load_explicit(span->generation, memory_order_acquire) == span->seen;
}

const struct span *span_find(struct device *device, uint64_t address)
{
    const struct span *span = search(atomic_load(&device->table), address);
    if (is_current(span)) return span;
    memory_lock();
    span = search(atomic_load(&device->table), address);
    if (!is_current(span)) {
        rebuild(device);
        span = search(atomic_load(&device->table), address);
    }
    memory_unlock();
    return span;
}

const struct ptx_range *span_range(void *device, uint64_t address)
{
    return &span_find(device, address)->range;
}
