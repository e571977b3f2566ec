/* Atomics on one copy of memory, and the table of two-operand reductions that they share with the
 * switch's. A host compare-and-swap makes every one of them, at any width. */
#include "ptx_checked.h"
#include "ptx_lanes.h"

#define REDUCE(op, t, expr)                                                                        \
    static void op##_##t##_many(void *acc, const void *src, unsigned count)                        \
    {                                                                                              \
        CT_##t *a = acc;                                                                           \
        const CT_##t *b = src;                                                                     \
        unsigned n = count * (LANES_##t / PTX_LANES);                                              \
        LANE_LOOP(n)                                                                               \
        {                                                                                          \
            __auto_type x = IN_##t(a[i]);                                                          \
            __auto_type y = IN_##t(b[i]);                                                          \
            a[i] = OUT_##t(expr);                                                                  \
        }                                                                                          \
    }                                                                                              \
    static uint64_t op##_##t##_one(uint64_t old, uint64_t value)                                   \
    {                                                                                              \
        union {                                                                                    \
            uint64_t word;                                                                         \
            CT_##t element[8 / sizeof(CT_##t)];                                                    \
        } a = {old}, b = {value};                                                                  \
        op##_##t##_many(a.element, b.element, 1);                                                  \
        return a.word;                                                                             \
    }
#include "ptx_reduce.def"
#undef REDUCE

const struct ptx_reduce ptx_reduce_rows[] = {
#define REDUCE(op, t, expr) {#op, T_##t, op##_##t##_one, op##_##t##_many},
#include "ptx_reduce.def"
};
const unsigned ptx_reduce_count = sizeof ptx_reduce_rows / sizeof *ptx_reduce_rows;

const struct ptx_reduce *ptx_reduce_find(const char *op, enum ptx_type type)
{
    for (unsigned i = 0; i < ptx_reduce_count; i++)
        if (ptx_reduce_rows[i].type == type && !strcmp(ptx_reduce_rows[i].op, op))
            return &ptx_reduce_rows[i];
    return NULL;
}

/* 1 when *p was *expected and is `value` now; else *expected holds what it is. */
static int swap(void *p, uint64_t *expected, uint64_t value, unsigned size)
{
    if (size == 8)
        return __atomic_compare_exchange_n((uint64_t *)p, expected, value, 0, __ATOMIC_ACQ_REL,
                                           __ATOMIC_ACQUIRE);
    if (size == 4) {
        uint32_t old = (uint32_t)*expected;
        int done = __atomic_compare_exchange_n((uint32_t *)p, &old, (uint32_t)value, 0,
                                               __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        *expected = old;
        return done;
    }
    uint16_t old = (uint16_t)*expected;
    int done = __atomic_compare_exchange_n((uint16_t *)p, &old, (uint16_t)value, 0,
                                           __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    *expected = old;
    return done;
}

uint64_t ptx_atom_apply(struct ptx_warp *w, void *p, unsigned size,
                        uint64_t (*op)(uint64_t, uint64_t), uint64_t value)
{
    uint64_t old = ptx_memory_peek(p, size, SEM_RELAXED), next;
    do
        next = op(old, value);
    while (!swap(p, &old, next, size));
    if (next != old) w->progressed = 1;
    return old;
}

/* One lane's atomic at a checked address; returns the old value. */
static uint64_t apply(struct ptx_warp *w, const struct ptx_insn *in, unsigned lane, void *p)
{
    unsigned size = ptx_types[in->type].size;
    uint64_t value = 0, replacement = 0;
    ptx_memory_gather(w, in, lane, &value);
    if (in->fn.reduce) return ptx_atom_apply(w, p, size, in->fn.reduce->one, value);
    memcpy(&replacement, (const char *)ptx_at(w, in->c) + (size_t)lane * in->c.size, size);
    uint64_t old = value;
    if (swap(p, &old, replacement, size) && value != replacement) w->progressed = 1;
    return old;
}

/* atom and red; cas has no row of reductions and its replacement in c */
void ptx_atom_exec(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t address[PTX_LANES];
    w->polled = 1;
    if (!ptx_memory_resolve(w, in, mask, address)) return;
    int checked = w->machine->launch->checked && in->space <= SPACE_GLOBAL;
    if (checked) ptx_checked_begin(w, in);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        struct checked_atom atom;
        void *p = (void *)(uintptr_t)address[i];
        if (checked) ptx_checked_atom(w, in, address[i], &atom);
        uint64_t old = apply(w, in, i, p);
        if (checked) ptx_checked_after(w->block, &atom);
        if (in->d.base == BASE_NONE) continue;
        memcpy((char *)ptx_at(w, in->d) + (size_t)i * in->d.size, &old, in->d.size);
    }
    if (checked) ptx_checked_end(w, in);
}
