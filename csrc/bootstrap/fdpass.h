/* Messages with descriptors between processes of one host: Unix stream sockets under abstract
 * names, descriptors by SCM_RIGHTS. Every call has a deadline, a time of clock.h. Sockets are
 * close-on-exec and never raise SIGPIPE. It knows nothing of ranks. */
#ifndef SMFAR_BOOTSTRAP_FDPASS_H
#define SMFAR_BOOTSTRAP_FDPASS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../base/clock.h"
#include "../base/status.h"

/* A listening socket under the abstract name. */
enum smfar_status fdpass_listen(const char *name, int backlog, int *socket_out);

/* A connection to the abstract name, tried until the deadline while its queue is full and, when
 * `early`, while nobody listens there yet: then SMFAR_ERR_TIMEOUT. */
enum smfar_status fdpass_connect(const char *name, int early, int64_t deadline, int *socket_out);

/* The next connection and who made it. SMFAR_ERR_TIMEOUT at the deadline. */
enum smfar_status fdpass_accept(int listener, int64_t deadline, int *socket_out, pid_t *pid_out,
                                uid_t *uid_out);

/* Sends all bytes, with `count` descriptors on the first (count may be 0; at most
 * FDPASS_MAX). SMFAR_ERR_PEER when the other side is gone. */
enum { FDPASS_MAX = 64 };
enum smfar_status fdpass_send(int socket, const void *data, size_t bytes, const int *fds, int count,
                              int64_t deadline);

/* Receives exactly `bytes` and exactly `count` descriptors; on failure none stays open. */
enum smfar_status fdpass_receive(int socket, void *data, size_t bytes, int *fds, int count,
                                 int64_t deadline);

#endif
