/* Has a collective ended? Answered from host memory, without a driver call
 * while the group is well. */
#ifndef SMFAR_COMM_WORK_H
#define SMFAR_COMM_WORK_H

#include "comm.h"

/* 1 once the stream has passed the collective, whatever came of it. After a failure kernels leave
 * without marking their collective done: the stream is asked then, under the communicator's lock.
 */
int work_released(struct smfar_comm *comm, uint64_t sequence);

/* Has it ended well? The watchdog asks now and then: what has been seen to have ended stays so,
 * whatever follows. */
int work_has_ended(const struct smfar_comm *comm, uint64_t sequence);

enum smfar_status work_query(struct smfar_comm *comm, uint64_t sequence);
enum smfar_status work_wait(struct smfar_comm *comm, uint64_t sequence, int64_t timeout_ms);

#endif
