/* Who of the group is still there. In the host page each rank's watchdog holds a robust mutex,
 * which the kernel gives away when that thread dies, however it dies; it needs neither a descriptor
 * nor any right over the other process, and a forked child does not keep it. Makes no
 * driver call. */
#ifndef SMFAR_COMM_LIFE_H
#define SMFAR_COMM_LIFE_H

#include "comm.h"

/* By the watchdog, on one thread. */
void life_hold(struct smfar_comm *comm);
void life_release(struct smfar_comm *comm);

/* 1 once rank `rank` has died while it was part of the group. */
int life_has_ended(struct smfar_comm *comm, int rank);

/* Waits until nothing of any other rank's runs any more that began before this one left, or the
 * rank has died; 0 if not within timeout_ms. */
int life_wait_quiet(struct smfar_comm *comm, int64_t timeout_ms);

#endif
