/* The thread that notices what no call is looking for: a rank that died, a kernel that gave up, a
 * failure that another rank has told. It also holds this rank's life (life.h) for the others to
 * see. While the communicator is set up it looks for deaths alone: trials may fail in peace. It
 * makes no driver call. */
#ifndef SMFAR_COMM_WATCHDOG_H
#define SMFAR_COMM_WATCHDOG_H

#include "comm.h"

/* The host page must be there. The caller then agrees with the others, so that nobody relies on a
 * rank that nobody watches. */
enum smfar_status watchdog_start(struct smfar_comm *comm);

/* Ends the thread; the caller has left the group (life.h) if it was part of one. */
void watchdog_stop(struct smfar_comm *comm);

#endif
