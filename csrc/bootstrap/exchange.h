/* How the ranks of a group talk while it is set up, and when they allocate together.
 *
 * Ranks find each other through the key-value store, or under an id; from then on every rank holds
 * one socket to rank 0, which relays. Every function marked collective must be called by every rank
 * in the same order; each has the exchange's deadline (ranks other than 0 a second more, so that
 * they hear from rank 0 who is missing), and each fails on every rank when it fails on one.
 * After that ranks may be at different steps: every later call fails at once with the same words.
 * (A status other than SMFAR_OK that ranks agree on is no such failure.) */
#ifndef SMFAR_BOOTSTRAP_EXCHANGE_H
#define SMFAR_BOOTSTRAP_EXCHANGE_H

#include <sys/types.h>

#include "../base/status.h"

struct exchange;

/* Collective. Refuses ranks of other versions, other users, or on other hosts, naming them. A rank
 * that fails alone tells the others through the store or by connecting, whichever still works. */
enum smfar_status exchange_create(const struct smfar_store *store, int rank, int ranks,
                                  int64_t timeout_ms, struct exchange **exchange_out);

/* The same for ranks that hold one id instead of a store: rank 0 listens under the id's name. When
 * it cannot, the others wait for the deadline. */
enum smfar_status exchange_meet(const struct smfar_id *id, int rank, int ranks, int64_t timeout_ms,
                                struct exchange **exchange_out);
void exchange_destroy(struct exchange *exchange);

int exchange_rank(const struct exchange *exchange);
int exchange_ranks(const struct exchange *exchange);

/* The process of a rank. */
pid_t exchange_pid(const struct exchange *exchange, int rank);

/* Collective. all_out[r] (each `bytes` long) becomes rank r's `mine`. */
enum smfar_status exchange_all_gather(struct exchange *exchange, const void *mine, size_t bytes,
                                      void *all_out);

/* A status as it came from another rank, which may say anything. */
enum smfar_status exchange_known_status(int64_t status);

/* Collective. The worst of all ranks' statuses; smfar_last_error() then names the lowest rank that
 * had it and says what it said. `step` names what was tried. Call it after every step that can fail
 * on one rank alone, in place of a return. */
enum smfar_status exchange_agree(struct exchange *exchange, enum smfar_status status,
                                 const char *step);

/* Collective. fds_out[r] becomes a descriptor of what rank r's fd is; fds_out[mine] stays -1. All
 * are this rank's to close. A rank alone can fail, for want of free descriptors (fds_out is then
 * all -1): exchange_agree must follow, on every rank and whatever came out. */
enum smfar_status exchange_descriptors(struct exchange *exchange, int fd, int *fds_out);

/* Collective. Every rank but 0 receives a descriptor of what rank 0's fd is; rank 0 gets -1.
 * exchange_agree must follow here, too. */
enum smfar_status exchange_descriptor(struct exchange *exchange, int fd, int *fd_out);

/* Ends every connection: whoever waits in a collective function, here or on a rank at the other
 * end, fails with SMFAR_ERR_PEER at once, and so does every later one. From any thread. */
void exchange_interrupt(struct exchange *exchange);

/* Ends the exchange for every rank with `status` and this thread's error; for when this rank cannot
 * make its next call. Not while another thread is inside a collective function. Returns `status`.
 */
enum smfar_status exchange_break(struct exchange *exchange, enum smfar_status status);
int exchange_broken(const struct exchange *exchange);

#endif
