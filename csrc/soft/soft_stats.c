/* Counts that tests and reports read through soft.h: calls, what kernels executed, what is held.
 * Nothing decides by them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft.h"
#include "soft_internal.h"

static atomic_ullong calls[CALLS];
static atomic_llong held[HELD_KINDS];

static struct {
    pthread_mutex_t lock;
    struct soft_kernel_stats *rows;
    size_t count, capacity;
} kernels = {.lock = PTHREAD_MUTEX_INITIALIZER};

void stats_count_call(enum api_call call)
{
    atomic_fetch_add_explicit(&calls[call], 1, memory_order_relaxed);
}

uint64_t soft_call_count(const char *name)
{
    for (unsigned i = 0; i < CALLS; i++)
        if (strcmp(soft_call_name(i), name) == 0)
            return atomic_load_explicit(&calls[i], memory_order_relaxed);
    return 0;
}

/* The row of a kernel, made if need be; NULL when out of memory. */
static struct soft_kernel_stats *find_row(const char *kernel)
{
    for (size_t i = 0; i < kernels.count; i++)
        if (strncmp(kernels.rows[i].name, kernel, sizeof kernels.rows[i].name - 1) == 0)
            return &kernels.rows[i];
    if (kernels.count == kernels.capacity) {
        size_t capacity = kernels.capacity ? 2 * kernels.capacity : 16;
        struct soft_kernel_stats *rows = realloc(kernels.rows, capacity * sizeof *rows);
        if (!rows) return NULL;
        kernels.rows = rows;
        kernels.capacity = capacity;
    }
    struct soft_kernel_stats *row = &kernels.rows[kernels.count++];
    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", kernel);
    return row;
}

void stats_count_launch(const char *kernel, const struct ptx_counts *counts)
{
    pthread_mutex_lock(&kernels.lock);
    struct soft_kernel_stats *row = find_row(kernel);
    if (row) {
        row->launches++;
        row->instructions += counts->instructions;
        row->multimem_loads += counts->multimem_loads;
        row->multimem_stores += counts->multimem_stores;
        row->multimem_reds += counts->multimem_reds;
        row->multimem_bytes += counts->multimem_bytes;
    }
    pthread_mutex_unlock(&kernels.lock);
}

int soft_kernel_stats(unsigned index, struct soft_kernel_stats *out)
{
    pthread_mutex_lock(&kernels.lock);
    int found = index < kernels.count;
    if (found) *out = kernels.rows[index];
    pthread_mutex_unlock(&kernels.lock);
    return found;
}

void soft_stats_reset(void)
{
    pthread_mutex_lock(&kernels.lock);
    kernels.count = 0;
    pthread_mutex_unlock(&kernels.lock);
    for (int i = 0; i < CALLS; i++)
        atomic_store_explicit(&calls[i], 0, memory_order_relaxed);
}

void held_add(enum held kind, int change)
{
    atomic_fetch_add_explicit(&held[kind], change, memory_order_relaxed);
}

void soft_leaks(struct soft_leaks *out)
{
    out->handles = atomic_load(&held[HELD_HANDLES]);
    out->mappings = atomic_load(&held[HELD_MAPPINGS]);
    out->ranges = atomic_load(&held[HELD_RANGES]);
    out->streams = atomic_load(&held[HELD_STREAMS]);
    out->events = atomic_load(&held[HELD_EVENTS]);
    out->modules = atomic_load(&held[HELD_MODULES]);
    out->descriptors = atomic_load(&held[HELD_DESCRIPTORS]);
    out->graphs = atomic_load(&held[HELD_GRAPHS]);
}

void stats_print_leaks(void)
{
    static const char *const names[HELD_KINDS] = {[HELD_HANDLES] = "allocation handles",
                                                  [HELD_MAPPINGS] = "mappings",
                                                  [HELD_RANGES] = "address ranges",
                                                  [HELD_STREAMS] = "streams",
                                                  [HELD_EVENTS] = "events",
                                                  [HELD_MODULES] = "modules",
                                                  [HELD_DESCRIPTORS] = "descriptors",
                                                  [HELD_GRAPHS] = "graphs"};
    for (int i = 0; i < HELD_KINDS; i++) {
        long long count = atomic_load(&held[i]);
        if (count) soft_print("leak: %lld %s still held at exit", count, names[i]);
    }
}
