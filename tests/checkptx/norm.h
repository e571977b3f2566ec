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

/* One of the sizes that checkptx goes through: elements of all rows, and of one. */
size_t norm_size(uint64_t seed, size_t *hidden_out);

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

/* ---- in schedules: norm_step.c. One launch, of an exact case; `slot` is where its part of the
 * rank's buffers begins, and its part of the window one further ---- */

struct norm_step {
    struct norm_case norm;
    struct norm_data data;
};

/* Makes the case's count one of whole rows, and the rest of the step. */
void norm_step_draw(struct check_case *c, struct norm_step *step_out);

/* `args` with what follows them for the rms_norm kernels, for others with nothing. */
void norm_step_arguments(const struct rig *rig, int rank, const struct check_case *c,
                         const struct norm_step *step, size_t slot, size_t slot_bytes, int threads,
                         const struct kargs *args, struct norm_kargs *whole_out);

/* Writes weight and residual; fills the rank's input. */
void norm_step_begin(const struct rig *rig, int rank, const struct check_case *c,
                     const struct norm_step *step, const struct norm_kargs *args, void *input_out);

/* Fills the results to expect. */
void norm_step_expected(const struct check_case *c, const struct norm_step *step, void *bits_out);

/* 0 when the sums are as expected, else one more than the number of the first that is not. */
int norm_step_check(const struct rig *rig, int rank, const struct check_case *c,
                    const struct norm_step *step, const struct norm_kargs *args);

#endif
