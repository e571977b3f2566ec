/* What has gone wrong in a group, for good: found by a kernel (an error record in the host page),
 * by a host (the page's failure), told to every rank, and put in words. Makes no driver call. */
#ifndef SMFAR_COMM_FAILURE_H
#define SMFAR_COMM_FAILURE_H

#include "comm.h"

/* SMFAR_OK, or the failure, with its text as this thread's error. */
enum smfar_status failure_check(struct smfar_comm *comm);

/* The same for one collective that is not done: those before the one that failed may still be. */
enum smfar_status failure_check_sequence(struct smfar_comm *comm, uint64_t sequence);

/* Fails the group when a rank has destroyed its communicator without collective number `sequence`,
 * which this rank has begun: it will never come. */
enum smfar_status failure_check_left(struct smfar_comm *comm, uint64_t sequence);

/* Tells every rank; the first caller of the group wins. Releases every kernel that waits. */
void failure_publish(struct smfar_comm *comm, enum smfar_status status, uint64_t sequence,
                     const char *text);

/* Tells every rank that rank `late` did not come to collective number `sequence` in time, by what
 * rank `finder` has seen. Returns SMFAR_ERR_TIMEOUT. */
enum smfar_status failure_late(struct smfar_comm *comm, int finder, int late, uint64_t sequence);

/* Tells every rank that ranks called different collectives as number `sequence`, and what each
 * called. Returns SMFAR_ERR_MISMATCH. */
enum smfar_status failure_mismatch(struct smfar_comm *comm, uint64_t sequence);

#endif
