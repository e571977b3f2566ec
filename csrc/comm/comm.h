/* A communicator's parts. Only the files of comm/ and collectives/ and api.c look inside. */
#ifndef SMFAR_COMM_COMM_H
#define SMFAR_COMM_COMM_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "../bootstrap/exchange.h"
#include "../driver/driver.h"
#include "../kernels/kernel.h"
#include "../memory/window.h"
#include "page.h"
#include "plan_table.h"

enum { COMM_PATHS = 64 }; /* more than there are collectives by their algorithms */

/* What every rank has agreed on when the communicator was created. */
struct agreed {
    int sm_budget;        /* the smallest of all ranks'; 0: each algorithm's default */
    int resident_blocks;  /* blocks of 1024 threads that each rank can have resident */
    int multicast;        /* in use */
    int fixed_order;      /* sums in rank order, whatever the switch could do */
    int copy_engines;     /* large moves without an SM */
    int pageable;         /* some device can use ordinary host memory, where copies suit best */
    int multicast_copy;   /* copies to a multicast address have been seen to work */
    int multicast_float8; /* sums of 8-bit floats in the switch have been seen to be right */
    size_t chunk_bytes;   /* the most that a step moves: the staging slot's size */
    size_t oneshot_bytes; /* the most that a one-shot takes */
    size_t push_bytes;    /* the most that is pushed in packets */
    size_t graph_chunk_bytes, graph_oneshot_bytes, graph_push_bytes; /* the same in graphs */
    int ranks_per_device; /* the most that any device carries */
    size_t mailbox_bytes; /* of each pair of ranks, behind the staging slot */
};

/* What one rank says of itself before the others decide. */
struct capability {
    CUuuid uuid;
    int32_t sm_count, sm_budget;
    int32_t compute;   /* 90 is 9.0 */
    int32_t multicast; /* 1: as far as this rank knows */
    int32_t fixed_order, copy_engines, pageable;
    uint64_t window_bytes, chunk_bytes;
    char reason[120]; /* why not multicast */
    char device[64];
};

struct smfar_comm {
    struct driver *driver;
    CUdevice device;
    CUcontext context;
    int retained;
    int unsettled; /* the driver could not say that work has ended: memory must stay */
    int pageable;  /* the device can use ordinary host memory */
    int rank, ranks;
    int owner_pid; /* the process that made it: a forked child must not use it */
    _Atomic int64_t timeout_ms;
    struct exchange *exchange;
    struct page page;
    struct window *window;
    struct kernels *kernels;
    struct agreed agreed;
    struct capability capability[SMFAR_MAX_RANKS];
    char multicast_reason[320];   /* why multicast is on or off */
    char float8_reason[320];      /* the same of sums of 8-bit floats in the switch */
    struct plan_path plan_path;   /* this rank's; rank 0's counts */
    struct plan_table plan_table; /* rank 0's */

    pthread_mutex_t lock;      /* one call at a time; held while it waits for other ranks' calls */
    pthread_mutex_t side_lock; /* one message, or order of streams, that is posted at a time */
    CUstream stream;
    CUevent order;        /* recorded behind the last collective */
    CUstream last_stream; /* where that was */
    _Atomic uint64_t sequence;
    uint64_t turn;   /* calls so far on the window's memory, which all ranks make together */
    uint8_t *marks;  /* room for what all ranks say in these of the heap's ranges */
    uint64_t uneven; /* collectives so far in which each pair of ranks has a size of its own */
    pthread_mutex_t path_lock; /* held briefly, by whoever reads or changes the next two */
    struct smfar_path paths[COMM_PATHS];
    int path_count;
    struct plan_cache *plans;  /* of collectives/ */
    struct mail *mail;         /* NULL before the first message */
    struct courier *courier;   /* of copies into other ranks' tensors */
    struct captures *captures; /* NULL before the first captured collective */
    void *trial_memory;        /* trial.c's, on the host */

    _Atomic int finalized;      /* this rank leaves the group, or has left it: calls are refused */
    pthread_mutex_t leave_lock; /* held while it leaves; guards the next */
    int left;
    _Atomic int quiet; /* it has left, and nothing can use its memory any more */

    _Atomic int ready; /* every rank has set it up: from now on a failure is the group's */
    pthread_t watchdog;
    int watching;
    sem_t watch_holds; /* posted once the watchdog holds its life */
    sem_t watch_stop;  /* posted to end it */
};

/* Makes the communicator's context current on this thread, and undoes that. Returns 0 when the
 * context could not be made current (the error is recorded). */
enum smfar_status comm_enter(struct smfar_comm *comm);
void comm_leave(struct smfar_comm *comm);

/* Refuses a call in a forked child. */
enum smfar_status comm_check_process(const struct smfar_comm *comm);

/* The same, and after a failure, and when this rank has left. */
enum smfar_status comm_check(struct smfar_comm *comm);

/* Sets the deadline of waits, at most some thirty years: nanoseconds of it must fit a word. */
void comm_set_timeout(struct smfar_comm *comm, int64_t timeout_ms);

/* setup.c: everything from finding each other, through `store` or else by `id`, to a usable
 * communicator. A failure destroys it. */
enum smfar_status setup_run(struct smfar_comm *comm, const struct smfar_config *config,
                            const struct smfar_store *store, const struct smfar_id *id);

/* plan_table.c, collective: all ranks get rank 0's table, of the file that its plan_path names. A
 * fault in a file that somebody has asked for fails on every rank. */
enum smfar_status plan_table_share(struct smfar_comm *comm);

/* Writes what a table must say to be for this communicator: "ranks=2 ranks_per_gpu=1 …". */
void plan_table_topology(const struct smfar_comm *comm, char *text, size_t size);

/* trial.c: does multicast give the right sum on every rank, and do copies to it? Collective. A
 * failure may leave the ranks in different phases. */
enum smfar_status trial_multicast(struct smfar_comm *comm);
enum smfar_status trial_multicast_copy(struct smfar_comm *comm);

/* Of 8-bit floats, whose kernels are loaded: is a sum rounded once, to the nearest, ties to even,
 * also to a subnormal; is one past the largest number that number, and one with a NaN a NaN? PTX
 * says nothing of this. */
enum smfar_status trial_multicast_float8(struct smfar_comm *comm);
enum smfar_status trial_reset_signals(struct smfar_comm *comm);

/* Once the streams of all trials have ended: a copy may write to their host memory until then. */
void trial_free(struct smfar_comm *comm);

#endif
