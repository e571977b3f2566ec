/* Random collectives and what must come of them: drawn the same on every rank, but for where its
 * tensors lie; the result is compared bit by bit, and so are the bytes around it. */
#ifndef SMFAR_TESTS_CALLS_H
#define SMFAR_TESTS_CALLS_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../csrc/smfar.h"

enum { CALLS_RANKS = 5, CALLS_SPACE = 256 << 10, CALLS_GUARD = 64 };

static inline uint32_t calls_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

/* ---- values: whole numbers so small that every type holds every sum exactly ---- */

static inline int calls_value(int rank, int number, size_t i)
{
    return (int)((i * 7 + (size_t)rank * 5 + (size_t)number * 3) % 17) - 8;
}

static inline size_t calls_bytes(enum smfar_dtype dtype)
{
    return dtype == SMFAR_I64 ? 8 : dtype == SMFAR_F32 || dtype == SMFAR_I32 ? 4 : 2;
}

/* bf16 is the upper half of an f32, and so is f16 but for its smaller exponent. */
static inline void calls_put(void *at, size_t i, enum smfar_dtype dtype, int value)
{
    float real = (float)value;
    uint32_t bits;
    memcpy(&bits, &real, sizeof bits);
    uint32_t sign = bits >> 31, exponent = bits >> 23 & 255;
    uint16_t half =
        (uint16_t)(sign << 15 | (value ? exponent - 127 + 15 : 0) << 10 | (bits >> 13 & 1023));
    switch (dtype) {
    case SMFAR_F32:
        memcpy((char *)at + 4 * i, &bits, 4);
        break;
    case SMFAR_I32:
        ((int32_t *)at)[i] = value;
        break;
    case SMFAR_I64:
        ((int64_t *)at)[i] = value;
        break;
    case SMFAR_BF16:
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
        break;
    default:
        ((uint16_t *)at)[i] = half;
    }
}

/* ---- one collective ---- */

enum calls_kind { CALLS_ALL_REDUCE, CALLS_BROADCAST, CALLS_ALL_GATHER, CALLS_BARRIER };

struct calls_one {
    int number;
    enum calls_kind kind;
    enum smfar_dtype dtype;
    enum smfar_op op;      /* of an all-reduce */
    const char *algorithm; /* wished for; NULL: whichever suits */
    size_t count;
    int root;
};

/* Where a rank's tensors lie. */
struct calls_place {
    char *space; /* poisoned but for the tensor */
    char *recv;
    void *parts[CALLS_RANKS];
};

/* At most `most` elements (of an all-gather a fifth of that), seldom that many. */
static inline struct calls_one calls_draw(uint64_t *state, int number, size_t most)
{
    static const enum smfar_dtype dtypes[] = {SMFAR_F32, SMFAR_F16, SMFAR_BF16, SMFAR_I32,
                                              SMFAR_I64};
    static const enum smfar_op ops[] = {SMFAR_SUM, SMFAR_SUM, SMFAR_MIN, SMFAR_MAX};
    static const char *const algorithms[] = {"split_mc",     "oneshot_peer", "split_peer",
                                             "twoshot_peer", "push_peer",    "twoshot_mc"};
    uint32_t kind = calls_random(state) % 10;
    struct calls_one one = {.number = number,
                            .kind = kind < 6   ? CALLS_ALL_REDUCE
                                    : kind < 8 ? CALLS_BROADCAST
                                    : kind < 9 ? CALLS_ALL_GATHER
                                               : CALLS_BARRIER,
                            .dtype = dtypes[calls_random(state) % 5],
                            .op = ops[calls_random(state) % 4],
                            .root = (int)(calls_random(state) % CALLS_RANKS)};
    uint32_t wish = calls_random(state) % 9;
    if (wish < 6) one.algorithm = algorithms[wish];
    if (one.kind == CALLS_ALL_GATHER) most /= CALLS_RANKS;
    one.count = calls_random(state) % (2u << calls_random(state) % 15);
    if (one.count > most) one.count = most;
    return one;
}

/* In words that name everything that was drawn. */
static inline const char *calls_text(const struct calls_one *one, char text[96])
{
    static const char *const kinds[] = {"all_reduce", "broadcast", "all_gather", "barrier"};
    snprintf(text, 96, "number %d: %s %s, dtype %d, op %d, %zu elements, root %d", one->number,
             kinds[one->kind], one->algorithm ? one->algorithm : "", (int)one->dtype, (int)one->op,
             one->count, one->root);
    return text;
}

/* Fills the rank's input, at a place in `space` (CALLS_SPACE bytes) that `mine` decides. */
static inline void calls_fill(const struct calls_one *one, int rank, char *space, uint64_t *mine,
                              struct calls_place *place_out)
{
    size_t element = calls_bytes(one->dtype), bytes = one->count * element;
    size_t shift = calls_random(mine) % 3 ? 0 : calls_random(mine) % 16;
    place_out->space = space;
    place_out->recv = space + CALLS_GUARD + element * shift;
    memset(space, 0xa5, CALLS_SPACE);
    for (size_t i = 0; i < one->count; i++)
        calls_put(place_out->recv, i, one->dtype, calls_value(rank, one->number, i));
    for (int r = 0; r < CALLS_RANKS; r++)
        place_out->parts[r] = place_out->recv + (size_t)(1 + r) * bytes;
}

static inline enum smfar_status calls_wish(const struct calls_one *one)
{
    int streams = one->algorithm && one->kind != CALLS_ALL_REDUCE;
    struct smfar_hint hint = {.algorithm = one->algorithm, .sm_budget = streams ? SMFAR_NO_SMS : 0};
    return smfar_hint_set(&hint);
}

static inline enum smfar_status calls_enqueue_on(const struct calls_one *one,
                                                 const struct calls_place *place, smfar_comm *comm,
                                                 smfar_stream stream)
{
    void *at = place->recv;
    enum smfar_status status = calls_wish(one);
    if (status != SMFAR_OK) return status;
    switch (one->kind) {
    case CALLS_ALL_REDUCE:
        return smfar_all_reduce(at, at, one->count, one->dtype, one->op, comm, stream);
    case CALLS_BROADCAST:
        return smfar_broadcast(at, at, one->count, one->dtype, one->root, comm, stream);
    case CALLS_ALL_GATHER:
        return smfar_all_gather(at, place->parts, one->count, one->dtype, comm, stream);
    default:
        return smfar_barrier(comm, stream);
    }
}

static inline enum smfar_status calls_enqueue(const struct calls_one *one,
                                              const struct calls_place *place, smfar_comm *comm)
{
    return calls_enqueue_on(one, place, comm, NULL);
}

/* ---- after ---- */

static inline int calls_reduced(const struct calls_one *one, size_t i)
{
    int result = calls_value(0, one->number, i);
    for (int r = 1; r < CALLS_RANKS; r++) {
        int value = calls_value(r, one->number, i), less = value < result;
        if (one->op == SMFAR_SUM) result += value;
        if (one->op == (less ? SMFAR_MIN : SMFAR_MAX)) result = value;
    }
    return result;
}

static inline int calls_expected(const struct calls_one *one, int rank, size_t part, size_t i)
{
    if (one->kind == CALLS_BROADCAST) return calls_value(one->root, one->number, i);
    if (one->kind == CALLS_ALL_GATHER) return calls_value((int)part, one->number, i);
    if (one->kind == CALLS_BARRIER) return calls_value(rank, one->number, i);
    return calls_reduced(one, i);
}

/* 1 when every byte of the space is right; else *first_out is the first wrong one, counted from
 * where the results begin. */
static inline int calls_right(const struct calls_one *one, const struct calls_place *place,
                              int rank, long *first_out)
{
    static _Thread_local char right[CALLS_SPACE];
    size_t bytes = one->count * calls_bytes(one->dtype), first = 0;
    size_t at = (size_t)(place->recv - place->space);
    int gather = one->kind == CALLS_ALL_GATHER;
    memset(right, 0xa5, sizeof right);
    for (size_t i = 0; gather && i < one->count; i++)
        calls_put(right + at, i, one->dtype, calls_value(rank, one->number, i));
    if (gather) at += bytes;
    for (size_t part = 0; part < (gather ? CALLS_RANKS : 1); part++)
        for (size_t i = 0; i < one->count; i++)
            calls_put(right + at + part * bytes, i, one->dtype, calls_expected(one, rank, part, i));
    if (memcmp(right, place->space, sizeof right) == 0) return 1;
    while (right[first] == place->space[first])
        first++;
    *first_out = (long)first - (long)at;
    return 0;
}

#endif
