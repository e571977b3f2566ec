/* The values of every parameter, and the inputs. */
#include "case.h"

#include <math.h>
#include <string.h>

#include "../ref/ref.h"

static const size_t counts[] = {0, 1, 2, 3, 7, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 100003};
static const int blocks[] = {1, 2, 4};
static const int threads[] = {32, 256, 512};

enum {
    MOST_PUSHED = 8191, /* longs, whose packets fill RIG_BOXES_BYTES with 8 ranks */
    MOST_BLOCKS = 4
};

const int axis_levels[AXES] = {8, sizeof counts / sizeof *counts, 8, PLACES, 3, 3, 2};

int case_is_push(enum kernel_id id)
{
    return strncmp(kernel_rows[id].file, "all_reduce_push_", 16) == 0;
}

int case_has_own_slots(enum kernel_id id)
{
    return case_is_push(id) || strncmp(kernel_rows[id].file, "all_reduce_oneshot_", 19) == 0;
}

/* As many bytes of flags, and 32 vectors of 16 bytes side by side. */
size_t case_box_bytes(size_t bytes) { return (bytes + 511) / 512 * 1024; }

int case_blocks(const struct check_case *c, int rank)
{
    return c->uneven ? 1 + (c->blocks + rank) % MOST_BLOCKS : c->blocks;
}

int case_is_alone(enum kernel_id id)
{
    const char *file = kernel_rows[id].file;
    return id == KERNEL_stage_peer || strncmp(file, "all_reduce_split_", 17) == 0 ||
           strncmp(file, "rms_norm_split_", 15) == 0;
}

int case_meets_nobody(enum kernel_id id) { return id == KERNEL_finish_peer || case_is_alone(id); }

int case_keeps_order(enum kernel_id id) { return !kernel_rows[id].multicast || case_is_push(id); }

int case_rounds(enum kernel_id id)
{
    enum smfar_dtype dtype = kernel_rows[id].dtype;
    int float8 = dtype == SMFAR_F8_E4M3 || dtype == SMFAR_F8_E5M2;
    return case_is_push(id) || (float8 && case_keeps_order(id));
}

int case_is_scatter(enum kernel_id id)
{
    return strncmp(kernel_rows[id].file, "reduce_scatter_", 15) == 0;
}

int case_is_pull(enum kernel_id id) { return id == KERNEL_pull_peer; }

static int root_of(const struct check_case *c) { return (int)(c->seed % (uint64_t)c->ranks); }

int case_pulls(const struct check_case *c, int rank, int of)
{
    if (c->pulled == OF_ALL) return 1;
    return (c->pulled == OF_ROOT ? of : rank) == root_of(c);
}

int case_is_dataless(enum kernel_id id)
{
    return kernel_rows[id].dtype == SMFAR_DTYPES && id != KERNEL_stage_peer && !case_is_pull(id);
}

size_t case_shift(const struct check_case *c, size_t element) { return c->seed & 8 ? element : 16; }

int place_is_staged(enum place place) { return place == STAGED || place == STAGED_IN_PLACE; }

int place_has_input(enum place place) { return place_is_staged(place) || place == COPY_IN; }

int place_has_output(enum place place) { return place_is_staged(place) || place == COPY_OUT; }

/* The rig has room for so many elements of a rank's input, all parts of it; and of a pull's
 * outputs. */
static size_t part_of(size_t count, int parts)
{
    size_t most = counts[sizeof counts / sizeof *counts - 1] / (size_t)parts;
    return count < most ? count : most;
}

static enum place place_of(enum kernel_id id, int level)
{
    if (!case_has_own_slots(id)) return (enum place)level;
    return level % 2 ? STAGED_IN_PLACE : STAGED;
}

/* All boxes must fit. */
static size_t count_of(enum kernel_id id, const unsigned char level[AXES])
{
    size_t count = counts[level[COUNT]];
    if (case_is_scatter(id) || case_is_pull(id)) return part_of(count, level[RANKS] + 1);
    return case_is_push(id) && count > MOST_PUSHED ? MOST_PUSHED : count;
}

/* A push has one warp beside those that move data, and may have more than others; a pull twice as
 * many. */
static int threads_of(enum kernel_id id, int level)
{
    int few = threads[level] == 32, most = threads[level] == 512;
    if (case_is_pull(id) && most) return 1024;
    if (case_is_push(id) && few) return 64;
    return case_is_push(id) && most ? 640 : threads[level];
}

void case_draw_pull(uint64_t *state, struct check_case *c)
{
    c->parted = (int)random_below(state, 2);
    c->pulled = (enum pulled)(random_below(state, 2) ? OF_ALL : random_below(state, PULLS));
}

void case_make(enum kernel_id id, const unsigned char level[AXES], uint64_t seed,
               struct check_case *case_out)
{
    uint64_t state = seed;
    *case_out = (struct check_case){
        .id = id,
        .seed = seed,
        .ranks = level[RANKS] + 1,
        .count = count_of(id, level),
        .offset = case_has_own_slots(id) ? 0 : level[OFFSET], /* which are aligned */
        .place = place_of(id, level[PLACE]),
        .blocks = blocks[level[BLOCKS]],
        .threads = threads_of(id, level[THREADS]),
        .real = level[REAL],
        .flags = case_is_push(id) && seed % 4 == 0,
        .uneven = case_is_push(id) && seed % 3 == 0,
        .rooted = case_is_scatter(id) && random_below(&state, 4) == 0,
        .scale = seed & 1 ? 0.3 : 1.0 / (level[RANKS] + 1),
    };
    if (case_is_pull(id)) case_draw_pull(&state, case_out);
}

void case_print(const struct check_case *c, FILE *to)
{
    static const char *const place[PLACES] = {"in window",       "unequal offsets", "staged",
                                              "staged in place", "copy in",         "copy out"};
    static const char *const parts[PLACES] = {"in window",       "unequal offsets", "staged",
                                              "staged in place", "some staged",     "in place"};
    static const char *const pulls[PULLS] = {"", " of a root", " by a root"};
    int apart = case_is_scatter(c->id) || case_is_pull(c->id);
    const char *const *names = apart ? parts : place;
    fprintf(to, "%s%s%s%s ranks=%d count=%zu offset=%d %s blocks=%d%s threads=%d %s",
            kernel_rows[c->id].entry, c->rooted ? " to a root" : "", pulls[c->pulled],
            c->parted ? " in parts" : "", c->ranks, c->count, c->offset, names[c->place], c->blocks,
            c->uneven ? " and others" : "", c->threads,
            case_is_pull(c->id) ? "bytes"
            : c->flags          ? "flags"
            : c->real           ? "reals"
                                : "integers");
}

/* As wide as 8 of them can be summed in without rounding. */
static int integer_limit(enum smfar_dtype dtype)
{
    int bits = ref_precision(dtype) - 3;
    return 1 << (bits < 30 ? bits : 30);
}

/* Powers of two: for f16 down to where numbers lose bits, and never so large that 8 numbers
 * overflow; for floats of 8 bits so large that some sums do. */
static int real_exponent(enum smfar_dtype dtype, uint64_t *state)
{
    switch (dtype) {
    case SMFAR_F8_E4M3:
        return random_below(state, 4) ? (int)random_below(state, 20) - 11 : 8;
    case SMFAR_F8_E5M2:
        return random_below(state, 4) ? (int)random_below(state, 34) - 18 : 15;
    case SMFAR_F16:
        return (int)random_below(state, 25) - 16;
    default:
        return (int)random_below(state, 40) - 20;
    }
}

static double real_number(enum smfar_dtype dtype, uint64_t *state)
{
    double unit = (double)(random_next(state) >> 40) * 0x1p-23 - 1;
    int exponent = real_exponent(dtype, state);
    if (dtype == SMFAR_F64) unit += (double)random_below(state, 1 << 30) * 0x1p-54;
    return ldexp(unit, exponent);
}

/* What the switch would sum in another order, with another result. */
static double special_number(uint64_t *state)
{
    static const double numbers[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0};
    return numbers[random_below(state, sizeof numbers / sizeof *numbers)];
}

static double float_input(const struct check_case *c, uint64_t *state)
{
    const struct kernel_row *row = &kernel_rows[c->id];
    if (c->real == 1 && case_keeps_order(c->id) && random_below(state, 16) == 0)
        return special_number(state);
    if (c->real) return real_number(row->dtype, state);
    int limit = integer_limit(row->dtype);
    return (double)random_below(state, 2 * (unsigned)limit) - limit;
}

/* Words of 32 bits, of whatever type. */
static void flag_input(size_t bytes, uint64_t *state, unsigned char *data_out)
{
    for (size_t i = 0; i < bytes; i++)
        data_out[i] = i % 4 == 0 && random_below(state, 2);
}

static void byte_input(size_t bytes, uint64_t *state, unsigned char *data_out)
{
    for (size_t i = 0; i < bytes; i++)
        data_out[i] = (unsigned char)random_next(state);
}

void case_input(const struct check_case *c, int rank, size_t count, void *data_out)
{
    enum smfar_dtype dtype = kernel_rows[c->id].dtype;
    uint64_t state = c->seed + (uint64_t)rank * 0xd1b54a32d192ed03u;
    if (case_is_pull(c->id)) {
        byte_input(count, &state, data_out);
        return;
    }
    if (c->flags) {
        flag_input(count * ref_bytes(dtype), &state, data_out);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (ref_is_float(dtype))
            ref_store(dtype, data_out, i, float_input(c, &state));
        else
            ref_store_integer(dtype, data_out, i, (int64_t)random_next(&state));
    }
}
