/* Inputs that other ranks read where this rank has them: in the window, or in the staging slot with
 * their parts side by side. */
#ifndef SMFAR_COLLECTIVES_INPUTS_H
#define SMFAR_COLLECTIVES_INPUTS_H

#include "collectives.h"

struct inputs {
    const void *const *send; /* one per part */
    int parts;               /* 0: this rank has nothing that others read */
    size_t stride;           /* from one part to the next; 0: they do not lie at equal distances */
    size_t offset;           /* of the first in the window, when not staged */
    enum staging staging;
};

/* `parts` of `bytes` each. With `moved` they are staged wherever they lie. */
void inputs_find(const struct call *call, const void *const *send, int parts, size_t bytes,
                 int moved, struct inputs *inputs_out);

/* Where the kernel finds what begins `at` bytes into every part: fills `args`, and stages by copies
 * what it cannot copy itself. */
enum smfar_status inputs_place(const struct call *call, const struct inputs *inputs, size_t at,
                               size_t bytes, struct kargs *args);

#endif
