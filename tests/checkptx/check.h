/* The kinds of check on a rig. Both print what is wrong and return the number of faults (0 or
 * more); a failed driver call ends the program, since nothing after it would mean anything. */
#ifndef SMFAR_TESTS_CHECK_H
#define SMFAR_TESTS_CHECK_H

#include "case.h"
#include "rig.h"

/* Runs one case and compares every rank's result, the guards round every buffer, the input where it
 * must survive, and the error records. */
int check_case(struct rig *rig, const struct check_case *c);
int check_all_reduce(struct rig *rig, const struct check_case *c);
int check_reduce_scatter(struct rig *rig, const struct check_case *c);
int check_pull(struct rig *rig, const struct check_case *c);

/* The arguments that follow from the case alone, of the i-th rank to be launched, which is
 * returned: who comes first varies. */
int check_arguments(const struct rig *rig, const struct check_case *c, int i,
                    struct kargs *args_out);

/* The same for the rms_norm kernels; the case's count is replaced by one of their own sizes. */
int check_rms_norm(struct rig *rig, const struct check_case *c);

/* Barrier and failure behaviour of kernel `id`: waits for every rank; says who is missing, who is
 * different; leaves on every rank after that or an abort, and does nothing from then on. */
int check_failures(struct rig *rig, enum kernel_id id, uint64_t seed);

/* The same for one launch on every rank of a kernel of case_is_alone: when all is well; when a
 * kernel has failed before, or, for those that look at it, the abort word is set. */
enum check_end { END_WELL, END_FAILED, END_ABORTED };
int check_alone(struct rig *rig, const struct check_case *c, enum check_end end);

/* With everything drawn from the seed, of few elements. */
int check_alone_seed(struct rig *rig, enum kernel_id id, uint64_t seed);

/* Runs one schedule in checked mode: a few launches in a row on every rank, all of whose choices
 * (kernel `id` apart) follow from the seed. Prints what is wrong, and each rank's last steps. */
int check_schedule(struct rig *rig, enum kernel_id id, uint64_t seed);

/* Ends the program unless `status` is SMFAR_OK, saying which case it was. */
void must(enum smfar_status status, const char *what);

#endif
