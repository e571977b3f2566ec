/* See ring.h. */
#include "ring.h"

#include <stdio.h>

#include "names.h"

/* A copy of a rank's entry; returns 0 when the ring does not hold it, or is being written. */
static int read_entry(const struct smfar_comm *comm, int rank, uint64_t sequence,
                      struct page_entry *entry_out)
{
    const struct page_entry *entry = &comm->page.host->ring[rank][sequence % PAGE_RING];
    if (atomic_load_explicit(&entry->sequence, memory_order_acquire) != sequence) return 0;
    entry_out->hash = entry->hash;
    entry_out->collective = entry->collective;
    entry_out->dtype = entry->dtype;
    entry_out->op = entry->op;
    entry_out->root = entry->root;
    entry_out->kernel = entry->kernel;
    entry_out->chain = entry->chain;
    entry_out->count = entry->count;
    entry_out->scale = entry->scale;
    entry_out->row = entry->row;
    entry_out->place = entry->place;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&entry->sequence, memory_order_relaxed) == sequence;
}

int ring_place(const struct smfar_comm *comm, int rank, uint64_t sequence, uint64_t *place_out)
{
    struct page_entry mine, theirs;
    if (!read_entry(comm, comm->rank, sequence, &mine)) return 0;
    if (!read_entry(comm, rank, sequence, &theirs) || theirs.chain != mine.chain) return 0;
    *place_out = theirs.place;
    return 1;
}

int ring_has_reached(const struct smfar_comm *comm, int rank, uint64_t sequence)
{
    const struct page_entry *entry = &comm->page.host->ring[rank][sequence % PAGE_RING];
    return atomic_load(&entry->sequence) >= sequence;
}

uint32_t ring_chain(const struct smfar_comm *comm, uint64_t sequence, uint32_t hash)
{
    struct page_entry before;
    int there = read_entry(comm, comm->rank, sequence - 1, &before);
    uint64_t both = (uint64_t)(there ? before.chain : 0) << 32 | hash;
    return (uint32_t)((both * 0x9e3779b97f4a7c15u) >> 32) ^ hash;
}

/* The chains differ at `last`: where did they part? */
static uint64_t find_first(const struct smfar_comm *comm, int peer, uint64_t last)
{
    struct page_entry mine, theirs;
    uint64_t first = last;
    for (uint64_t s = last; s > 0 && last - s < PAGE_RING; s--) {
        if (!read_entry(comm, comm->rank, s, &mine) || !read_entry(comm, peer, s, &theirs)) break;
        if (mine.chain == theirs.chain) break;
        if (mine.hash != theirs.hash) first = s;
    }
    return first;
}

uint64_t ring_difference(const struct smfar_comm *comm, uint64_t sequence)
{
    struct page_entry mine, theirs;
    /* partner: the same fence of the rank that announces this number at the same time; each has
     * stored its own entry before, and reads the other's after */
    atomic_thread_fence(memory_order_seq_cst);
    if (!read_entry(comm, comm->rank, sequence, &mine)) return 0;
    for (int r = 0; r < comm->ranks; r++)
        if (read_entry(comm, r, sequence, &theirs) && theirs.chain != mine.chain)
            return find_first(comm, r, sequence);
    return 0;
}

static int describe_norm(const struct page_entry *entry, char *text, size_t size)
{
    static const char *const layouts[] = {"no residual", "sharded residual", "replicated sums",
                                          "unknown"};
    int weight = norm_weight(entry->root);
    int n = snprintf(text, size, "rows of %u, eps %.9g, %s weight, %s", entry->row, entry->scale,
                     weight < 0 ? "no" : name_dtype(weight), layouts[norm_layout(entry->root)]);
    if (entry->place && norm_layout(entry->root) == SMFAR_SUMS_REPLICATED)
        n += snprintf(text + n, size - (size_t)n, " at byte %llu of the window",
                      (unsigned long long)entry->place);
    return n + snprintf(text + n, size - (size_t)n, ", ");
}

void ring_describe_entry(const struct page_entry *entry, char *text, size_t size)
{
    int n = snprintf(text, size, "%s(", name_collective(entry->collective));
    if (entry->op >= 0) n += snprintf(text + n, size - (size_t)n, "%s, ", name_op(entry->op));
    if (entry->op == SMFAR_PREMUL_SUM)
        n += snprintf(text + n, size - (size_t)n, "scale %.17g, ", entry->scale);
    if (entry->collective == COLLECTIVE_RMS_NORM)
        n += describe_norm(entry, text + n, size - (size_t)n);
    else if (entry->root >= 0)
        n += snprintf(text + n, size - (size_t)n, "root %d, ", entry->root);
    if (entry->dtype >= 0)
        n += snprintf(text + n, size - (size_t)n, "%s, %llu elements, ", name_dtype(entry->dtype),
                      (unsigned long long)entry->count);
    snprintf(text + n, size - (size_t)n, "kernel %s)",
             entry->kernel < KERNELS ? kernel_rows[entry->kernel].file : "none");
}

/* What is known of one rank and one number. */
struct called {
    struct page_entry entry;
    int there, passed; /* passed: the ring has gone on and no longer holds it */
};

static void look_up(const struct smfar_comm *comm, int rank, uint64_t sequence,
                    struct called *called)
{
    called->there = read_entry(comm, rank, sequence, &called->entry);
    called->passed = !called->there && ring_has_reached(comm, rank, sequence);
}

static void describe_called(const struct called *called, char *text, size_t size)
{
    if (called->there)
        ring_describe_entry(&called->entry, text, size);
    else if (called->passed)
        snprintf(text, size, "one that %d or more calls have followed", PAGE_RING);
    else
        snprintf(text, size, "nothing yet");
}

void ring_describe(const struct smfar_comm *comm, int rank, uint64_t sequence, char *text,
                   size_t size)
{
    struct called called;
    look_up(comm, rank, sequence, &called);
    describe_called(&called, text, size);
}

static int say_the_same(const struct called *a, const struct called *b)
{
    if (!a->there || !b->there) return a->there == b->there && a->passed == b->passed;
    return a->entry.hash == b->entry.hash;
}

void ring_describe_all(const struct smfar_comm *comm, uint64_t sequence, char *text, size_t size)
{
    struct called called[SMFAR_MAX_RANKS];
    int told[SMFAR_MAX_RANKS] = {0};
    size_t n = 0;
    for (int r = 0; r < comm->ranks; r++)
        look_up(comm, r, sequence, &called[r]);
    for (int r = 0; r < comm->ranks && n < size; r++) {
        if (told[r]) continue;
        char call[160];
        describe_called(&called[r], call, sizeof(call));
        for (int other = r; other < comm->ranks && n < size; other++) {
            if (!say_the_same(&called[r], &called[other])) continue;
            const char *before = other > r ? ", " : r > 0 ? "; " : "";
            n += (size_t)snprintf(text + n, size - n, "%srank %d", before, other);
            told[other] = 1;
        }
        if (n < size) n += (size_t)snprintf(text + n, size - n, " called %s", call);
    }
}
