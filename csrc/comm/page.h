/* The host page: host memory shared by every rank of a group and registered with each driver. It
 * holds what host threads and GPUs of different ranks tell each other without any call: the abort
 * word, failures, completion, and what each rank has enqueued last. */
#ifndef SMFAR_COMM_PAGE_H
#define SMFAR_COMM_PAGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "../bootstrap/exchange.h"
#include "../driver/driver.h"
#include "../kernels/kargs.h"

enum { PAGE_RING = 64, PAGE_TEXT = 768, PAIR_POSTS = 32 };

/* What a rank enqueued under one sequence number. The number is written last. */
struct page_entry {
    _Atomic uint64_t sequence;
    uint32_t hash;
    int32_t collective, dtype, op, root;
    uint32_t kernel; /* enum kernel_id */
    uint32_t chain;  /* hash of this and all earlier calls */
    uint32_t row;    /* of RMS_NORM, whose scale is eps and place that of the sums */
    uint64_t count;
    double scale;   /* of PREMUL_SUM */
    uint64_t place; /* where in its window the rank wants what others copy to it; 0: in the slot */
};
static_assert(sizeof(struct page_entry) == 64, "one line");

/* The first failure of the group, by whichever rank's host found it. */
struct page_failure {
    _Atomic uint32_t state; /* 0, 1: being written, 2: there, 3: awaited in vain */
    int32_t status, rank;
    uint64_t sequence; /* of the reporting rank's collective, 0: none in particular */
    char text[PAGE_TEXT];
};

struct page_words {
    _Atomic uint64_t done;   /* number of the last collective that has ended well; written by its
                              * last kernel */
    _Atomic uint64_t begun;  /* number of the last collective that the rank has begun to enqueue */
    _Atomic uint32_t left;   /* LEFT_*: the rank has destroyed its communicator in good order */
    _Atomic uint32_t graphs; /* captured graphs with collectives of the rank that are still there */
    _Atomic uint64_t released; /* number of the first collective that the rank's kernels have left
                                * undone, after a failure of whatever rank; 0: none */
    uint8_t pad[32];
    /* a line of their own, since streams of other ranks look at it: see meeting.h and courier.h */
    _Atomic uint64_t arrived; /* the last meeting that the rank's stream has come to; written by it,
                               * or far ahead after a failure */
    _Atomic uint64_t carried; /* the last leg whose copies have been made; likewise */
    _Atomic uint64_t passed;  /* number of the last collective that the rank's stream has passed,
                               * of those that end without a kernel */
    _Atomic uint64_t place;   /* where the rank's chunk lies; written by its stream */
    _Atomic uint64_t collected; /* number of the last collective of which the rank's host has read
                                 * where the others' tensors lie */
    _Atomic uint64_t sent;      /* the last leg of inputs that the rank's copies have brought to the
                                 * others' slots; written by a stream, or far ahead after a failure */
    _Atomic uint64_t streamed;  /* number of the last collective whose end the stream alone tells */
    _Atomic uint64_t certain;   /* and of the last that is known to have ended well: see work.c */
};

/* LEFT_RUNNING: in spite of that something of the rank's own has not ended. */
enum { LEFT_NOT, LEFT_QUIET, LEFT_RUNNING };

/* See life.h. */
enum { LIFE_NONE, LIFE_HELD, LIFE_ENDED };
struct page_life {
    _Atomic uint32_t state; /* LIFE_*; ENDED: died */
    pthread_mutex_t held;
};

/* Messages from one rank to another: see mail.h. Posts are the sender's, `number` written last. */
struct page_post {
    _Atomic uint64_t number; /* 0: free */
    uint64_t bytes;
    int32_t tag;
};
/* The sizes of one call: see parts.h. */
struct page_part {
    uint64_t sent, expected;
};
struct page_pair {
    _Atomic uint64_t chosen;  /* number of the last message that the receiver has asked for */
    _Atomic uint64_t started; /* and that the sender has seen to be asked for */
    _Atomic uint64_t full;  /* pieces put into the mailbox, ever; written by the sender's stream */
    _Atomic uint64_t taken; /* pieces taken out, by the receiver's */
    struct page_post post[PAIR_POSTS];
    struct page_part part[2];
};

/* What a rank asks of all ranks together: see api_window.c. `turn` is written last. */
struct page_request {
    _Atomic uint64_t turn; /* of such calls, from 1 */
    uint64_t what, number;
    uint64_t ready; /* 0: the rank has no host memory for it */
};

struct host_page {
    _Atomic uint32_t abort;
    uint8_t pad[PAGE_ERROR - 4];
    struct error_record error[SMFAR_MAX_RANKS];
    _Atomic uint64_t apart[SMFAR_MAX_RANKS];
    struct page_words words[SMFAR_MAX_RANKS];
    struct page_failure failure;
    struct page_life life[SMFAR_MAX_RANKS];
    struct page_request request[SMFAR_MAX_RANKS][2]; /* by odd and even turns */
    struct page_entry ring[SMFAR_MAX_RANKS][PAGE_RING];
    struct page_pair pairs[]; /* [receiver * ranks + sender] */
};
static_assert(offsetof(struct host_page, abort) == PAGE_ABORT, "abort");
static_assert(offsetof(struct host_page, error) == PAGE_ERROR, "error");
static_assert(offsetof(struct host_page, apart) == PAGE_APART, "apart");
static_assert(offsetof(struct host_page, words) == PAGE_DONE, "done");
static_assert(offsetof(struct host_page, words) + offsetof(struct page_words, released) ==
                  PAGE_RELEASED,
              "released");
static_assert(offsetof(struct host_page, words) + offsetof(struct page_words, place) == PAGE_PLACE,
              "place");
static_assert(sizeof(struct page_words) == PAGE_WORDS, "words");
static_assert((int)SMFAR_MAX_RANKS == KARGS_MAX_RANKS, "ranks");

/* Number of the rank's last collective that has ended, whether a kernel or its stream has said so.
 */
static inline uint64_t page_ended(const struct page_words *words)
{
    uint64_t done = atomic_load(&words->done), passed = atomic_load(&words->passed);
    return done > passed ? done : passed;
}

/* This rank's view of the page. */
struct page {
    struct driver *driver;
    struct host_page *host;
    size_t bytes;
    CUdeviceptr device;
    int registered;
};

/* Bytes of host memory that the page of so many ranks takes, once for all of them. */
size_t page_bytes(int ranks);

/* Collective; on the current context. */
enum smfar_status page_create(struct driver *driver, struct exchange *exchange,
                              struct page *page_out);
void page_destroy(struct page *page);

#endif
