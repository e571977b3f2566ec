/* What a case of the rms_norm kernels is beside a struct check_case, whose `count` is that of all
 * rows. All of it follows from the case. */
#ifndef SMFAR_TESTS_NORM_H
#define SMFAR_TESTS_NORM_H

#include "case.h"
#include "rig.h"

/* What becomes of the sums. */
enum norm_sums {
    NO_SUMS,     /* no residual, nobody wants them */
    OWN_SUMS,    /* a residual of each rank's own rows, in place */
    WINDOW_SUMS, /* a residual of all rows in the window, in place on every rank */
    COPIED_SUMS, /* a residual of all rows elsewhere, the sums through the window elsewhere */
    EXTRA_SUMS,  /* no residual, but the sums in the window of every rank */
    NORM_SUMS_KINDS
};

struct norm_case {
    size_t rows, hidden;
    enum norm_sums sums;
    int unlike;           /* elements by which what lies beside the chunk is out of step with it */
    uint32_t weight_type; /* NORM_WEIGHT_* */
    float eps;
};

int norm_is(enum kernel_id id);

/* Rows and their length of the nth of the sizes that checkptx goes through: elements in all. */
size_t norm_size(unsigned level, size_t *hidden_out);

/* Of a case whose rows are this long: everything else. */
void norm_case_make(const struct check_case *c, size_t hidden, struct norm_case *norm_out);

/* The inputs of a case. Of cases without reals every step is exact: all sums of a row have one
 * power of two for their size, so that results are plus or minus the weight. */
struct norm_data {
    void *input[RIG_MAX_RANKS], *residual,
        *weight;         /* residual and weight NULL where there is none */
    unsigned char *sums; /* expected bits; of real sums through the switch only an idea */
    double *exact_sums, *sums_bound; /* the bound NULL where the sums' bits are known */
    double *exact, *bound;           /* expected results; with exact cases the bound is 0 */
};
void norm_data_make(const struct check_case *c, const struct norm_case *norm,
                    struct norm_data *data_out);
void norm_data_free(struct norm_data *data);

/* Is element `i` what is expected? */
int norm_is_right(const struct check_case *c, const void *got, size_t i, const double *exact,
                  const double *bound);

/* Rank's share of the rows, and the rest that follows from the case; not the addresses. */
void norm_arguments(const struct norm_case *norm, int rank, int ranks, int threads, uint64_t seed,
                    struct norm_kargs *args);

#endif
