/* The thread that notices what no call is looking for: a rank that died (its socket ends), a kernel
 * that gave up, a failure that another rank has told. It makes no driver call. */
#ifndef SMFAR_COMM_WATCHDOG_H
#define SMFAR_COMM_WATCHDOG_H

#include "comm.h"

enum smfar_status watchdog_start(struct smfar_comm *comm);
void watchdog_stop(struct smfar_comm *comm);

#endif
