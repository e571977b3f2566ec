/* Set-up runs on a thread of its own, so that a driver call that never returns does not keep the
 * caller: the call is left to that thread and reported to every rank. */
#ifndef SMFAR_COMM_SUPERVISE_H
#define SMFAR_COMM_SUPERVISE_H

#include "comm.h"

typedef enum smfar_status (*supervise_step)(struct smfar_comm *comm,
                                            const struct smfar_config *config);

/* Runs `step` and waits for it. When it fails, or a driver call of it takes longer than half the
 * timeout (the other ranks, who wait for this one, hear of it before they give up), the
 * communicator is destroyed, in the second case once the call has returned. */
enum smfar_status supervise_run(struct smfar_comm *comm, const struct smfar_config *config,
                                supervise_step step);

#endif
