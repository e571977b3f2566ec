/* What the checks of reductions share: memory between guards, the expected result, and reports. */
#ifndef SMFAR_TESTS_SCENE_H
#define SMFAR_TESTS_SCENE_H

#include "case.h"
#include "rig.h"

enum { SCENE_GUARD = 512 };
#define SCENE_TIMEOUT_NS (20ull * 1000 * 1000 * 1000)

/* A run of a rank's memory between two guards: as it was before the launch, and after. */
struct region {
    CUdeviceptr at; /* of the data, after the guard; 0: not used in this case */
    size_t bytes;
    unsigned char *wrote, *read; /* guards included */
};

/* Random guards round a poison, which is NaN in every float type; region_data is where to put
 * inputs. */
void region_begin(struct region *region, CUdeviceptr at, size_t bytes, uint64_t *state);
unsigned char *region_data(const struct region *region);
void region_write(const struct region *region, struct rig *rig, int rank);

/* Afterwards: what it holds now. */
const unsigned char *region_read(struct region *region, struct rig *rig, int rank);

/* Everything but [from, from + bytes) of the data is as it was written; the number of faults. */
int region_check(const struct region *region, const struct check_case *c, int rank, size_t from,
                 size_t bytes);
void region_end(struct region *region);

/* What the reduction of all ranks' `count` elements gives. */
struct expected {
    unsigned char *bits;   /* where it is exact */
    double *exact, *bound; /* where it is not */
};
void expected_make(struct expected *expected, const struct check_case *c,
                   unsigned char *const *inputs, size_t count);

/* Compares the case's count of elements with those from `first` on; the number of faults. */
int expected_check(const struct expected *expected, const struct check_case *c, int rank,
                   const unsigned char *got, size_t first);
void expected_end(struct expected *expected);

/* Prints the case and what is wrong with it; returns 1. */
int complain(const struct check_case *c, const char *format, int rank, size_t index);

void *allocate(size_t bytes);

#endif
