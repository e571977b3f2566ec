/* The plan table: algorithms, blocks and threads that were measured on a machine, or written by
 * hand, and that take the place of the plan's defaults. docs/plan.md describes the file.
 *
 * A file has sections, one for each topology; a communicator uses the one that is its own, as rank
 * 0 has it. Nothing here decides what a call takes: that is collectives/plan.c. */
#ifndef SMFAR_COMM_PLAN_TABLE_H
#define SMFAR_COMM_PLAN_TABLE_H

#include <stdint.h>
#include <stdio.h>

#include "names.h"

enum { PLAN_ROWS = 64 };

struct plan_row {
    int32_t collective, algorithm;
    int32_t blocks, threads; /* 0: the plan's own */
    int32_t line, pad;
    uint64_t from, to; /* bytes of one rank's tensor, both included */
    uint64_t chunk;    /* most bytes of one step; 0: the plan's own */
};

struct plan_table {
    char source[320]; /* in words: how many rows of which file, or why there are none */
    int32_t count, pad;
    struct plan_row row[PLAN_ROWS];
};

/* Where a table would be. */
struct plan_path {
    char file[4096]; /* "": nowhere */
    size_t length;   /* of the path, which may be longer than that */
    int asked;       /* somebody has named it: it must be there, and right */
};

/* What a section must be for. */
struct plan_topology {
    int ranks, per_device, multicast;
    int resident_blocks; /* of each rank; 0: not known */
    const char *device;  /* its name */
};

/* `option` ("0": none; NULL: not said), else SMFAR_PLAN_TABLE, else the place in the user's
 * configuration that `python -m smfar tune` writes to. */
void plan_table_choose(const char *option, struct plan_path *path_out);

/* The rows for `here` of a file that is open. All of it is checked. SMFAR_ERR_ARGUMENT, naming
 * file, line and field, and what would do. */
enum smfar_status plan_table_read(FILE *file, const char *path, const struct plan_topology *here,
                                  struct plan_table *table_out);

/* The row for so many bytes, or NULL; a table of NULL has none. */
const struct plan_row *plan_table_row(const struct plan_table *table, enum collective collective,
                                      uint64_t bytes);

#endif
