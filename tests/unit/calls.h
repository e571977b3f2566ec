/* Random collectives and what must come of them: drawn the same on every rank, but for where its
 * tensors lie; the result is compared bit by bit, and so are the bytes around it. */
#ifndef SMFAR_TESTS_CALLS_H
#define SMFAR_TESTS_CALLS_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../csrc/smfar.h"

enum { CALLS_RANKS = 5, CALLS_SPACE = 320 << 10, CALLS_GUARD = 64 };

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

/* Of what rank has for one of the others, or (part 0) for all. */
static inline int calls_part_value(int rank, int part, int number, size_t i)
{
    return calls_value(rank, number + 11 * part, i);
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

enum calls_kind {
    CALLS_ALL_REDUCE,
    CALLS_REDUCE,
    CALLS_REDUCE_SCATTER,
    CALLS_BROADCAST,
    CALLS_ALL_GATHER,
    CALLS_ALL_TO_ALL,
    CALLS_ALL_TO_ALL_V,
    CALLS_GATHER,
    CALLS_SCATTER,
    CALLS_BARRIER
};

struct calls_one {
    int number;
    enum calls_kind kind;
    enum smfar_dtype dtype;
    enum smfar_op op;      /* of a reduction */
    const char *algorithm; /* wished for; NULL: whichever suits */
    int no_sms;            /* of what only moves data: no kernel at all */
    size_t count;
    int root;
};

/* Where a rank's tensors lie: `send` and `recv` have one part, or one for each rank. */
struct calls_place {
    char *space; /* poisoned but for the inputs */
    void *send[CALLS_RANKS], *recv[CALLS_RANKS];
};

static inline int calls_is_reduction(const struct calls_one *one)
{
    return one->kind <= CALLS_REDUCE_SCATTER;
}

/* Parts of an input, on ranks that have one. */
static inline int calls_send_parts(const struct calls_one *one)
{
    int parted = one->kind == CALLS_REDUCE_SCATTER || one->kind == CALLS_ALL_TO_ALL ||
                 one->kind == CALLS_ALL_TO_ALL_V || one->kind == CALLS_SCATTER;
    return parted ? CALLS_RANKS : 1;
}

/* Of an output. */
static inline int calls_recv_parts(const struct calls_one *one)
{
    int parted = one->kind == CALLS_ALL_GATHER || one->kind == CALLS_ALL_TO_ALL ||
                 one->kind == CALLS_ALL_TO_ALL_V || one->kind == CALLS_GATHER;
    return parted ? CALLS_RANKS : one->kind != CALLS_BARRIER;
}

static inline int calls_sends(const struct calls_one *one, int rank)
{
    return one->kind != CALLS_SCATTER || rank == one->root;
}

static inline int calls_receives(const struct calls_one *one, int rank)
{
    int rooted = one->kind == CALLS_REDUCE || one->kind == CALLS_GATHER;
    return !rooted || rank == one->root;
}

/* Elements from one rank to another. */
static inline size_t calls_length(const struct calls_one *one, int from, int to)
{
    if (one->kind != CALLS_ALL_TO_ALL_V) return one->count;
    return one->count * (size_t)((from * 3 + to * 5 + one->number) % 4) / 3;
}

/* Reductions are wished another way, what moves data by one kernel or by none. */
static inline void calls_draw_wish(uint64_t *state, struct calls_one *one)
{
    static const char *const algorithms[] = {"split_mc",     "oneshot_peer", "split_peer",
                                             "twoshot_peer", "push_peer",    "twoshot_mc"};
    uint32_t wish = calls_random(state) % 9;
    if (calls_is_reduction(one)) {
        if (wish < 6) one->algorithm = algorithms[wish];
        return;
    }
    one->no_sms = wish < 3;
    if (wish == 3) one->algorithm = "pull_peer";
}

/* At most `most` elements of two tensors, where there are more parts fewer; seldom that many. */
static inline struct calls_one calls_draw(uint64_t *state, int number, size_t most)
{
    static const enum calls_kind kinds[] = {
        CALLS_ALL_REDUCE,     CALLS_ALL_REDUCE,     CALLS_ALL_REDUCE, CALLS_ALL_REDUCE,
        CALLS_ALL_REDUCE,     CALLS_ALL_REDUCE,     CALLS_REDUCE,     CALLS_REDUCE,
        CALLS_REDUCE_SCATTER, CALLS_REDUCE_SCATTER, CALLS_BROADCAST,  CALLS_BROADCAST,
        CALLS_ALL_GATHER,     CALLS_ALL_GATHER,     CALLS_ALL_TO_ALL, CALLS_ALL_TO_ALL,
        CALLS_ALL_TO_ALL_V,   CALLS_GATHER,         CALLS_SCATTER,    CALLS_BARRIER};
    static const enum smfar_dtype dtypes[] = {SMFAR_F32, SMFAR_F16, SMFAR_BF16, SMFAR_I32,
                                              SMFAR_I64};
    static const enum smfar_op ops[] = {SMFAR_SUM, SMFAR_SUM, SMFAR_MIN, SMFAR_MAX};
    struct calls_one one = {.number = number,
                            .kind = kinds[calls_random(state) % (sizeof kinds / sizeof *kinds)],
                            .dtype = dtypes[calls_random(state) % 5],
                            .op = ops[calls_random(state) % 4],
                            .root = (int)(calls_random(state) % CALLS_RANKS)};
    calls_draw_wish(state, &one);
    most = 2 * most / (size_t)(calls_send_parts(&one) + calls_recv_parts(&one));
    one.count = calls_random(state) % (2u << calls_random(state) % 15);
    if (one.count > most) one.count = most;
    return one;
}

/* Makes it one that does not block the host until all ranks have called. */
static inline void calls_keep_going(struct calls_one *one)
{
    one->no_sms = 0;
    if (one->kind == CALLS_ALL_TO_ALL_V) one->kind = CALLS_ALL_TO_ALL;
}

/* In words that name everything that was drawn. */
static inline const char *calls_text(const struct calls_one *one, char text[96])
{
    static const char *const kinds[] = {"all_reduce", "reduce",     "reduce_scatter", "broadcast",
                                        "all_gather", "all_to_all", "all_to_all_v",   "gather",
                                        "scatter",    "barrier"};
    const char *wish = one->no_sms ? "no kernel" : one->algorithm ? one->algorithm : "";
    snprintf(text, 96, "number %d: %s %s, dtype %d, op %d, %zu elements, root %d", one->number,
             kinds[one->kind], wish, (int)one->dtype, (int)one->op, one->count, one->root);
    return text;
}

/* ---- before ---- */

/* Poison in `space` (CALLS_SPACE bytes), and the rank's inputs where they lie in the place's. */
static inline void calls_put_inputs(const struct calls_one *one, const struct calls_place *place,
                                    int rank, char *space)
{
    memset(space, 0xa5, CALLS_SPACE);
    for (int part = 0; part < calls_send_parts(one) && calls_sends(one, rank); part++) {
        char *at = space + ((char *)place->send[part] - place->space);
        for (size_t i = 0; i < calls_length(one, rank, part); i++)
            calls_put(at, i, one->dtype, calls_part_value(rank, part, one->number, i));
    }
}

/* As far as the collective may have it: a rank's own part of what has more of them. */
static inline void calls_put_in_place(const struct calls_one *one, int rank,
                                      struct calls_place *place)
{
    int sent = calls_send_parts(one), received = calls_recv_parts(one);
    if (one->kind == CALLS_ALL_TO_ALL_V)
        place->recv[rank] = place->send[rank];
    else if (sent == received)
        memcpy(place->recv, place->send, sizeof place->recv);
    else if (sent > received)
        place->recv[0] = place->send[rank];
    else
        place->send[0] = place->recv[rank];
}

/* Fills the rank's inputs, at places in `space` (CALLS_SPACE bytes) that `mine` decides. */
static inline void calls_fill(const struct calls_one *one, int rank, char *space, uint64_t *mine,
                              struct calls_place *place_out)
{
    size_t element = calls_bytes(one->dtype);
    size_t shift = calls_random(mine) % 3 ? 0 : calls_random(mine) % 16;
    size_t gap = calls_random(mine) % 3 ? 0 : calls_random(mine) % 16;
    size_t stride = (one->count + gap) * element;
    char *first = space + CALLS_GUARD + element * shift;
    place_out->space = space;
    for (int r = 0; r < CALLS_RANKS; r++) {
        place_out->send[r] = first + (size_t)r * stride;
        place_out->recv[r] = first + (size_t)(calls_send_parts(one) + r) * stride;
    }
    if (calls_random(mine) % 2 && calls_receives(one, rank) && one->kind != CALLS_BARRIER)
        calls_put_in_place(one, rank, place_out);
    calls_put_inputs(one, place_out, rank, space);
}

static inline enum smfar_status calls_wish(const struct calls_one *one)
{
    struct smfar_hint hint = {.algorithm = one->algorithm,
                              .sm_budget = one->no_sms ? SMFAR_NO_SMS : 0};
    return smfar_hint_set(&hint);
}

static inline enum smfar_status calls_all_to_all_v(const struct calls_one *one, int rank,
                                                   const void *const *send, void *const *recv,
                                                   smfar_comm *comm, smfar_stream stream)
{
    size_t sent[CALLS_RANKS], received[CALLS_RANKS];
    for (int r = 0; r < CALLS_RANKS; r++) {
        sent[r] = calls_length(one, rank, r);
        received[r] = calls_length(one, r, rank);
    }
    return smfar_all_to_all_v(send, sent, recv, received, one->dtype, comm, stream);
}

static inline enum smfar_status calls_enqueue_on(const struct calls_one *one, int rank,
                                                 const struct calls_place *place, smfar_comm *comm,
                                                 smfar_stream stream)
{
    const void *const *send = (const void *const *)place->send;
    void *const *recv = place->recv;
    size_t count = one->count;
    enum smfar_dtype dtype = one->dtype;
    enum smfar_op op = one->op;
    int root = one->root;
    enum smfar_status status = calls_wish(one);
    if (status != SMFAR_OK) return status;
    switch (one->kind) {
    case CALLS_ALL_REDUCE:
        return smfar_all_reduce(send[0], recv[0], count, dtype, op, comm, stream);
    case CALLS_REDUCE:
        return smfar_reduce(send[0], recv[0], count, dtype, op, 0, root, comm, stream);
    case CALLS_REDUCE_SCATTER:
        return smfar_reduce_scatter(send, recv[0], count, dtype, op, 0, comm, stream);
    case CALLS_BROADCAST:
        return smfar_broadcast(send[0], recv[0], count, dtype, root, comm, stream);
    case CALLS_ALL_GATHER:
        return smfar_all_gather(send[0], recv, count, dtype, comm, stream);
    case CALLS_ALL_TO_ALL:
        return smfar_all_to_all(send, recv, count, dtype, comm, stream);
    case CALLS_ALL_TO_ALL_V:
        return calls_all_to_all_v(one, rank, send, recv, comm, stream);
    case CALLS_GATHER:
        return smfar_gather(send[0], recv, count, dtype, root, comm, stream);
    case CALLS_SCATTER:
        return smfar_scatter(send, recv[0], count, dtype, root, comm, stream);
    default:
        return smfar_barrier(comm, stream);
    }
}

static inline enum smfar_status calls_enqueue(const struct calls_one *one, int rank,
                                              const struct calls_place *place, smfar_comm *comm)
{
    return calls_enqueue_on(one, rank, place, comm, NULL);
}

/* ---- after ---- */

static inline int calls_reduced(const struct calls_one *one, int part, size_t i)
{
    int result = calls_part_value(0, part, one->number, i);
    for (int r = 1; r < CALLS_RANKS; r++) {
        int value = calls_part_value(r, part, one->number, i), less = value < result;
        if (one->op == SMFAR_SUM) result += value;
        if (one->op == (less ? SMFAR_MIN : SMFAR_MAX)) result = value;
    }
    return result;
}

/* In part number `from` of the rank's output. */
static inline int calls_expected(const struct calls_one *one, int rank, int from, size_t i)
{
    int part = calls_send_parts(one) > 1 ? rank : 0;
    if (calls_is_reduction(one)) return calls_reduced(one, part, i);
    if (one->kind == CALLS_BROADCAST || one->kind == CALLS_SCATTER) from = one->root;
    return calls_part_value(from, part, one->number, i);
}

/* 1 when every byte of the space is right; else *first_out is the first wrong one, counted from
 * the end of its guard. */
static inline int calls_right(const struct calls_one *one, const struct calls_place *place,
                              int rank, long *first_out)
{
    static _Thread_local char right[CALLS_SPACE];
    size_t first = 0;
    calls_put_inputs(one, place, rank, right);
    for (int part = 0; part < calls_recv_parts(one) && calls_receives(one, rank); part++) {
        char *at = right + ((char *)place->recv[part] - place->space);
        for (size_t i = 0; i < calls_length(one, part, rank); i++)
            calls_put(at, i, one->dtype, calls_expected(one, rank, part, i));
    }
    if (memcmp(right, place->space, sizeof right) == 0) return 1;
    while (right[first] == place->space[first])
        first++;
    *first_out = (long)first - CALLS_GUARD;
    return 0;
}

#endif
