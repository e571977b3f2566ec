/* A small set of rows in which every pair of values occurs: repeatedly the best of some random
 * rows, each of which holds at least one pair that is still missing. */
#include <stdlib.h>
#include <string.h>

#include "case.h"

enum { MOST_LEVELS = 16, TRIES = 24, MOST_ROWS = 2000 };

struct pairs {
    unsigned char seen[AXES][AXES][MOST_LEVELS][MOST_LEVELS]; /* for a < b */
    size_t missing;
};

static size_t count_pairs(void)
{
    size_t pairs = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++)
            pairs += (size_t)(axis_levels[a] * axis_levels[b]);
    return pairs;
}

/* How many missing pairs the row holds; with `take`, they are missing no more. */
static size_t new_pairs(struct pairs *pairs, const unsigned char row[AXES], int take)
{
    size_t found = 0;
    for (int a = 0; a < AXES; a++) {
        for (int b = a + 1; b < AXES; b++) {
            unsigned char *seen = &pairs->seen[a][b][row[a]][row[b]];
            found += !*seen;
            *seen |= (unsigned char)take;
        }
    }
    if (take) pairs->missing -= found;
    return found;
}

/* Puts the missing pair after a random point into the row. */
static void plant_missing(const struct pairs *pairs, uint64_t *state, unsigned char row[AXES])
{
    const unsigned char *seen = &pairs->seen[0][0][0][0];
    unsigned at = random_below(state, sizeof pairs->seen);
    for (;; at = (at + 1) % sizeof pairs->seen) {
        int y = at % MOST_LEVELS, x = at / MOST_LEVELS % MOST_LEVELS;
        int b = at / (MOST_LEVELS * MOST_LEVELS) % AXES;
        int a = at / (MOST_LEVELS * MOST_LEVELS) / AXES;
        if (a >= b || x >= axis_levels[a] || y >= axis_levels[b] || seen[at]) continue;
        row[a] = (unsigned char)x;
        row[b] = (unsigned char)y;
        return;
    }
}

size_t sample_pairs(uint64_t seed, unsigned char (**rows_out)[AXES])
{
    struct pairs *pairs = calloc(1, sizeof *pairs);
    unsigned char(*rows)[AXES] = calloc(MOST_ROWS, sizeof *rows);
    size_t count = 0;
    if (pairs == NULL || rows == NULL) abort();
    pairs->missing = count_pairs();
    for (; pairs->missing > 0 && count < MOST_ROWS; count++) {
        size_t best = 0;
        for (int i = 0; i < TRIES; i++) {
            unsigned char row[AXES];
            for (int a = 0; a < AXES; a++)
                row[a] = (unsigned char)random_below(&seed, (unsigned)axis_levels[a]);
            plant_missing(pairs, &seed, row);
            size_t gain = new_pairs(pairs, row, 0);
            if (gain <= best) continue;
            best = gain;
            memcpy(rows[count], row, sizeof row);
        }
        new_pairs(pairs, rows[count], 1);
    }
    if (pairs->missing > 0) abort();
    free(pairs);
    *rows_out = rows;
    return count;
}
