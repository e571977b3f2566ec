/* What the files of the public interface share. */
#ifndef SMFAR_API_H
#define SMFAR_API_H

#include "collectives/collectives.h"
#include "comm/capture.h"

/* The communicator's lock and context around one call; api_enter has refused what cannot go on. */
enum smfar_status api_enter(struct smfar_comm *comm);
void api_leave(struct smfar_comm *comm);

/* The same with another of its locks, for calls that need not wait for one which holds comm->lock
 * until every rank has called (courier_meet, allocations). */
enum smfar_status api_enter_by(struct smfar_comm *comm, pthread_mutex_t *lock);
void api_leave_by(struct smfar_comm *comm, pthread_mutex_t *lock);

/* A call with nothing but these set. */
struct call api_call(struct smfar_comm *comm, smfar_stream stream, enum collective collective,
                     uint64_t count);

/* A call with a type, on its channel; the communicator is locked. */
enum smfar_status api_prepare(struct smfar_comm *comm, smfar_stream stream,
                              enum collective collective, uint64_t count, int dtype,
                              struct call *call_out);

/* The same, and locks the communicator for it, unless it is refused. */
enum smfar_status api_begin(struct smfar_comm *comm, smfar_stream stream,
                            enum collective collective, uint64_t count, int dtype,
                            struct call *call_out);

/* Where `count` elements at `ptr` lie in the window, if they are registered; else `ptr`. */
void *api_view(const struct call *call, const void *ptr, uint64_t count);

/* Refuses what cannot be `count` elements of `dtype` in both places, and an output that shares a
 * part of its memory with an input: what arrives there would be read in a later step. */
enum smfar_status api_check_buffers(const char *what, const void *send, const void *recv,
                                    uint64_t count, int dtype);

/* Refuses outputs of which two share memory: a rank's result would be lost. Each is of `count`
 * elements or, where `counts` is not NULL, of as many as that says. */
enum smfar_status api_check_outputs(const char *what, const struct smfar_comm *comm,
                                    void *const *recv, const size_t *counts, size_t count,
                                    int dtype);

/* Refuses what is no smfar_op. */
enum smfar_status api_check_op(const char *what, enum smfar_op op);

#endif
