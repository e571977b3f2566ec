/* The values of every parameter, and the inputs. */
#include "case.h"

#include <math.h>

#include "../ref/ref.h"

static const size_t counts[] = {0, 1, 2, 3, 7, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 100003};
static const int blocks[] = {1, 2, 4};
static const int threads[] = {32, 256, 512};

const int axis_levels[AXES] = {8, sizeof counts / sizeof *counts, 8, PLACES, 3, 3, 2};

void case_make(enum kernel_id id, const unsigned char level[AXES], uint64_t seed,
               struct check_case *case_out)
{
    *case_out = (struct check_case){
        .id = id,
        .seed = seed,
        .ranks = level[RANKS] + 1,
        .count = counts[level[COUNT]],
        .offset = level[OFFSET],
        .place = (enum place)level[PLACE],
        .blocks = blocks[level[BLOCKS]],
        .threads = threads[level[THREADS]],
        .real = level[REAL],
    };
}

void case_print(const struct check_case *c, FILE *to)
{
    static const char *const place[PLACES] = {"in window",       "unequal offsets", "staged",
                                              "staged in place", "copy in",         "copy out"};
    fprintf(to, "%s ranks=%d count=%zu offset=%d %s blocks=%d threads=%d %s",
            kernel_rows[c->id].entry, c->ranks, c->count, c->offset, place[c->place], c->blocks,
            c->threads, c->real ? "reals" : "integers");
}

/* As wide as 8 of them can be summed in without rounding. */
static int integer_limit(enum smfar_dtype dtype) { return 1 << (ref_precision(dtype) - 3); }

/* Sizes spread over powers of two; for f16 down to where numbers lose bits, and never so large
 * that 8 of them overflow. */
static float real_number(enum smfar_dtype dtype, uint64_t *state)
{
    float unit = (float)(random_next(state) >> 40) * 0x1p-23f - 1.0f;
    int exponent =
        dtype == SMFAR_F16 ? (int)random_below(state, 25) - 16 : (int)random_below(state, 40) - 20;
    return ldexpf(unit, exponent);
}

void case_input(const struct check_case *c, int rank, void *data_out)
{
    enum smfar_dtype dtype = kernel_rows[c->id].dtype;
    uint64_t state = c->seed + (uint64_t)rank * 0xd1b54a32d192ed03u;
    int limit = integer_limit(dtype);
    for (size_t i = 0; i < c->count; i++) {
        if (dtype == SMFAR_I32)
            ((uint32_t *)data_out)[i] = (uint32_t)random_next(&state);
        else if (dtype == SMFAR_I64)
            ((uint64_t *)data_out)[i] = random_next(&state);
        else if (c->real)
            ref_store(dtype, data_out, i, real_number(dtype, &state));
        else
            ref_store(dtype, data_out, i,
                      (float)((int)random_below(&state, 2 * (unsigned)limit) - limit));
    }
}
