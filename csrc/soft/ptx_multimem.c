/* multimem: one address, every copy. The switch's sum is made here: each instruction draws its own
 * order of the copies; a sum of halves with .acc::f32 is rounded once, one of 8-bit floats with
 * .acc::f16 to f16 at every step, and once more at the end. */
#include "ptx_checked.h"
#include "ptx_float8.h"

enum { VECTOR_BYTES = 16, WARP_BYTES = PTX_LANES * VECTOR_BYTES };

/* Where a run of bytes lies in each copy, in the order in which they are summed. */
struct copies {
    unsigned count;
    unsigned char *at[PTX_MAX_COPIES];
};

/* ---- addresses ---- */

static const struct ptx_range *check(struct ptx_warp *w, const struct ptx_insn *in,
                                     uint64_t address, uint64_t bytes, unsigned align, int write)
{
    if (address & (align - 1)) {
        ptx_machine_fail(w, in, PTX_MISALIGNED, "address 0x%llx is not a multiple of %u",
                         (unsigned long long)address, align);
        return NULL;
    }
    const struct ptx_range *range = ptx_memory_range(w, address);
    const char *why = range->kind == PTX_RANGE_FAULT   ? "not accessible"
                      : range->kind == PTX_RANGE_PLAIN ? "not a multicast address"
                      : !range->copies                 ? "bound to no memory"
                      : write && !range->writable      ? "read-only"
                      : bytes > range->end - address   ? "too close to the end of its range"
                                                       : NULL;
    if (!why) return range;
    ptx_machine_fail(w, in, PTX_BAD_ADDRESS, "address 0x%llx is %s", (unsigned long long)address,
                     why);
    return NULL;
}

static void locate(const struct ptx_range *range, uint64_t address, struct copies *copies)
{
    copies->count = range->copies;
    copies->at[0] = range->copy[0];
    for (unsigned k = 0; k < range->copies; k++)
        copies->at[k] = range->copy[k] + (address - range->begin);
}

/* One draw for the warp's instruction; the same order for all of its lanes. */
static void shuffle(struct copies *copies, uint64_t random)
{
    for (unsigned k = copies->count; k > 1; k--) {
        unsigned other = (unsigned)((random & 0xffff) * k >> 16);
        random = random >> 16 | random << 48;
        unsigned char *at = copies->at[k - 1];
        copies->at[k - 1] = copies->at[other];
        copies->at[other] = at;
    }
}

static void count(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask, uint64_t *which)
{
    unsigned lanes = ptx_lanes(mask);
    *which += lanes;
    w->machine->counts.multimem_bytes += (uint64_t)lanes * in->vector * ptx_types[in->type].size;
}

/* ---- sums ---- */

static int is_brain(const struct ptx_insn *in)
{
    return in->type == T_bf16 || in->type == T_bf16x2;
}

/* Halves are summed as the two ends of 32-bit words, so that no lane has to be moved. */
static inline float low_bf16(uint32_t word) { return float_of_bits(word << 16); }

static inline float high_bf16(uint32_t word) { return float_of_bits(word & 0xffff0000u); }

static inline float low_f16(uint32_t word) { return f16_to_f32((uint16_t)word); }

static inline float high_f16(uint32_t word) { return f16_to_f32((uint16_t)(word >> 16)); }

/* Sums `words` words over all copies, three more to a pass, and rounds once. */
#define SUM_HALVES(type)                                                                           \
    static void sum_##type(const struct copies *copies, unsigned words, uint32_t *restrict out)    \
    {                                                                                              \
        float low[WARP_BYTES / 4], high[WARP_BYTES / 4];                                           \
        const uint32_t *a = (const uint32_t *)(const void *)copies->at[0];                         \
        for (unsigned i = 0; i < words; i++)                                                       \
            low[i] = low_##type(a[i]), high[i] = high_##type(a[i]);                                \
        unsigned k = 1;                                                                            \
        for (; k + 2 < copies->count; k += 3) {                                                    \
            const uint32_t *b = (const uint32_t *)(const void *)copies->at[k];                     \
            const uint32_t *c = (const uint32_t *)(const void *)copies->at[k + 1];                 \
            const uint32_t *d = (const uint32_t *)(const void *)copies->at[k + 2];                 \
            for (unsigned i = 0; i < words; i++) {                                                 \
                low[i] = low[i] + low_##type(b[i]) + low_##type(c[i]) + low_##type(d[i]);          \
                high[i] = high[i] + high_##type(b[i]) + high_##type(c[i]) + high_##type(d[i]);     \
            }                                                                                      \
        }                                                                                          \
        for (; k < copies->count; k++) {                                                           \
            const uint32_t *b = (const uint32_t *)(const void *)copies->at[k];                     \
            for (unsigned i = 0; i < words; i++)                                                   \
                low[i] += low_##type(b[i]), high[i] += high_##type(b[i]);                          \
        }                                                                                          \
        for (unsigned i = 0; i < words; i++)                                                       \
            out[i] = type##_bits_of_f32(low[i]) | type##_bits_of_f32(high[i]) << 16;               \
    }
SUM_HALVES(bf16)
SUM_HALVES(f16)

/* A byte each. */
#define SUM_FLOAT8(type)                                                                           \
    static void sum_##type(const struct copies *copies, unsigned bytes, uint8_t *restrict out)     \
    {                                                                                              \
        float sum[WARP_BYTES];                                                                     \
        for (unsigned i = 0; i < bytes; i++)                                                       \
            sum[i] = type##_to_f32(copies->at[0][i]);                                              \
        for (unsigned k = 1; k < copies->count; k++)                                               \
            for (unsigned i = 0; i < bytes; i++)                                                   \
                sum[i] = f16_to_f32(f16_of_f32(sum[i] + type##_to_f32(copies->at[k][i])));         \
        for (unsigned i = 0; i < bytes; i++)                                                       \
            out[i] = type##_of_f32(sum[i]);                                                        \
    }
SUM_FLOAT8(e4m3)
SUM_FLOAT8(e5m2)

/* A sum that is kept in another type than its own. */
static void sum_wider(const struct ptx_insn *in, const struct copies *copies, unsigned bytes,
                      void *out)
{
    if (in->accumulate == T_f16) {
        int is_e4m3 = in->type == T_e4m3 || in->type == T_e4m3x2 || in->type == T_e4m3x4;
        (is_e4m3 ? sum_e4m3 : sum_e5m2)(copies, bytes, out);
        return;
    }
    (is_brain(in) ? sum_bf16 : sum_f16)(copies, bytes / 4, out);
}

/* Element by element: each is read once, whole. */
static void copy_elements(void *to, const unsigned char *from, unsigned bytes, unsigned size)
{
    for (unsigned at = 0; at < bytes; at += size) {
        uint64_t value = ptx_memory_peek(from + at, size, SEM_RELAXED);
        memcpy((char *)to + at, &value, size);
    }
}

/* Sums what has been read of each copy. */
static void reduce_rows(const struct ptx_insn *in, const struct copies *rows, unsigned bytes,
                        unsigned char *out)
{
    if (in->accumulate) {
        sum_wider(in, rows, bytes, out);
        return;
    }
    memcpy(out, rows->at[0], bytes);
    for (unsigned k = 1; k < rows->count; k++)
        in->fn.reduce->many(out, rows->at[k], bytes / ptx_types[in->type].size);
}

static void reduce_lane(const struct ptx_insn *in, const struct copies *copies, unsigned bytes,
                        unsigned char *out)
{
    unsigned char row[PTX_MAX_COPIES][VECTOR_BYTES] __attribute__((aligned(16)));
    struct copies rows = {.count = copies->count};
    for (unsigned k = 0; k < copies->count; k++) {
        copy_elements(row[k], copies->at[k], bytes, ptx_types[in->type].size);
        rows.at[k] = row[k];
    }
    reduce_rows(in, &rows, bytes, out);
}

/* The common sums of the main path, in one pass over the copies. */
static void sum_f32(const struct copies *copies, unsigned bytes, float *restrict out)
{
    const float *a = (const float *)(const void *)copies->at[0];
    const float *b = (const float *)(const void *)copies->at[1];
    unsigned n = bytes / 4, k = 2;
    if (copies->count >= 4) {
        const float *c = (const float *)(const void *)copies->at[2];
        const float *d = (const float *)(const void *)copies->at[3];
        for (unsigned i = 0; i < n; i++)
            out[i] = a[i] + b[i] + c[i] + d[i];
        k = 4;
    } else {
        for (unsigned i = 0; i < n; i++)
            out[i] = a[i] + b[i];
    }
    for (; k < copies->count; k++) {
        const float *more = (const float *)(const void *)copies->at[k];
        for (unsigned i = 0; i < n; i++)
            out[i] += more[i];
    }
}

static void reduce_run(const struct ptx_insn *in, const struct copies *copies, unsigned bytes,
                       unsigned char *out)
{
    if (in->accumulate) {
        sum_wider(in, copies, bytes, out);
    } else if (in->type == T_f32 && copies->count > 1) {
        sum_f32(copies, bytes, (float *)(void *)out);
    } else {
        memcpy(out, copies->at[0], bytes);
        for (unsigned k = 1; k < copies->count; k++)
            in->fn.reduce->many(out, copies->at[k], bytes / ptx_types[in->type].size);
    }
}

/* The next warp's piece follows this one's. */
static void prefetch(const struct copies *copies, unsigned bytes)
{
    for (unsigned k = 0; k < copies->count; k++)
        for (unsigned at = 0; at < bytes; at += 64)
            __builtin_prefetch(copies->at[k] + bytes + at);
}

/* ---- checked mode: a lane at a time, through ptx_checked.h ---- */

static void load_checked(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                         uint64_t random)
{
    uint64_t address[PTX_LANES];
    unsigned bytes = in->vector * ptx_types[in->type].size;
    unsigned char row[PTX_MAX_COPIES][VECTOR_BYTES] __attribute__((aligned(16))), out[VECTOR_BYTES];
    ptx_memory_addresses(w, in, address);
    ptx_checked_begin(w, in);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        const struct ptx_range *range = check(w, in, address[i], bytes, bytes, 0);
        if (!range) break;
        struct copies rows = {.count = range->copies};
        ptx_checked_load_copies(w, in, range, address[i], row);
        for (unsigned k = 0; k < rows.count; k++)
            rows.at[k] = row[k];
        shuffle(&rows, random);
        reduce_rows(in, &rows, bytes, out);
        ptx_memory_scatter(w, in, i, out);
    }
    ptx_checked_end(w, in);
}

static void store_checked(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t address[PTX_LANES];
    unsigned bytes = in->vector * ptx_types[in->type].size;
    unsigned char from[VECTOR_BYTES];
    ptx_memory_addresses(w, in, address);
    ptx_checked_begin(w, in);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        const struct ptx_range *range = check(w, in, address[i], bytes, bytes, 1);
        if (!range) break;
        ptx_memory_gather(w, in, i, from);
        ptx_checked_store_copies(w, in, range, address[i], from);
    }
    ptx_checked_end(w, in);
}

/* ---- executors ---- */

void ptx_multimem_load(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t address[PTX_LANES], random = ptx_machine_random(w->machine);
    unsigned bytes = in->vector * ptx_types[in->type].size;
    unsigned char out[WARP_BYTES] __attribute__((aligned(64)));
    struct copies copies;
    count(w, in, mask, &w->machine->counts.multimem_loads);
    w->polled = 1;
    if (w->machine->launch->checked) {
        load_checked(w, in, mask, random);
        return;
    }
    if (ptx_memory_run(w, in, mask, bytes, address)) {
        const struct ptx_range *range = check(w, in, address[0], PTX_LANES * bytes, bytes, 0);
        if (!range) return;
        locate(range, address[0], &copies);
        shuffle(&copies, random);
        prefetch(&copies, PTX_LANES * bytes);
        reduce_run(in, &copies, PTX_LANES * bytes, out);
        ptx_memory_scatter_all(w, in, out);
    } else {
        ptx_memory_addresses(w, in, address);
        for (unsigned i = 0; i < PTX_LANES; i++) {
            if (!(mask >> i & 1)) continue;
            const struct ptx_range *range = check(w, in, address[i], bytes, bytes, 0);
            if (!range) return;
            locate(range, address[i], &copies);
            shuffle(&copies, random);
            reduce_lane(in, &copies, bytes, out);
            ptx_memory_scatter(w, in, i, out);
        }
    }
    if (in->semantics == SEM_ACQUIRE) __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

static void store_elements(unsigned char *to, const unsigned char *from, unsigned bytes,
                           unsigned size)
{
    for (unsigned at = 0; at < bytes; at += size) {
        uint64_t value = 0;
        memcpy(&value, from + at, size);
        ptx_memory_poke(to + at, value, size, SEM_RELAXED);
    }
}

static void store_run(const struct ptx_insn *in, const struct copies *copies, unsigned bytes,
                      const unsigned char *from)
{
    for (unsigned k = 0; k < copies->count; k++) {
        if (bytes == WARP_BYTES)
            memcpy(copies->at[k], from, WARP_BYTES);
        else
            store_elements(copies->at[k], from, bytes, ptx_types[in->type].size);
    }
}

void ptx_multimem_store(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t address[PTX_LANES];
    unsigned bytes = in->vector * ptx_types[in->type].size;
    unsigned char from[WARP_BYTES] __attribute__((aligned(64)));
    struct copies copies;
    count(w, in, mask, &w->machine->counts.multimem_stores);
    w->progressed = 1;
    if (w->machine->launch->checked) {
        store_checked(w, in, mask);
        return;
    }
    if (in->semantics == SEM_RELEASE) __atomic_thread_fence(__ATOMIC_RELEASE);
    if (ptx_memory_run(w, in, mask, bytes, address)) {
        const struct ptx_range *range = check(w, in, address[0], PTX_LANES * bytes, bytes, 1);
        if (!range) return;
        locate(range, address[0], &copies);
        ptx_memory_gather_all(w, in, from);
        store_run(in, &copies, PTX_LANES * bytes, from);
        return;
    }
    ptx_memory_addresses(w, in, address);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        const struct ptx_range *range = check(w, in, address[i], bytes, bytes, 1);
        if (!range) return;
        locate(range, address[i], &copies);
        ptx_memory_gather(w, in, i, from);
        for (unsigned k = 0; k < copies.count; k++)
            store_elements(copies.at[k], from, bytes, ptx_types[in->type].size);
    }
}

/* An atomic per element and copy. */
void ptx_multimem_reduce(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t address[PTX_LANES];
    unsigned size = ptx_types[in->type].size, bytes = in->vector * size;
    unsigned char from[VECTOR_BYTES];
    struct copies copies;
    count(w, in, mask, &w->machine->counts.multimem_reds);
    w->progressed = 1;
    if (in->semantics == SEM_RELEASE) __atomic_thread_fence(__ATOMIC_RELEASE);
    ptx_memory_addresses(w, in, address);
    int checked = w->machine->launch->checked;
    if (checked) ptx_checked_begin(w, in);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        const struct ptx_range *range = check(w, in, address[i], bytes, bytes, 1);
        if (!range) break;
        locate(range, address[i], &copies);
        ptx_memory_gather(w, in, i, from);
        for (unsigned k = 0; k < copies.count * in->vector; k++) {
            uint64_t value = 0;
            unsigned at = k % in->vector * size;
            memcpy(&value, from + at, size);
            struct checked_atom atom;
            if (checked) ptx_checked_red_copy(w, in, range, address[i] + at, k / in->vector, &atom);
            ptx_atom_apply(w, copies.at[k / in->vector] + at, size, in->fn.reduce->one, value);
            if (checked) ptx_checked_after(w->block, &atom);
        }
    }
    if (checked) ptx_checked_end(w, in);
}
