/* Has a collective ended? Answered from host memory, without a driver call. */
#ifndef SMFAR_COMM_WORK_H
#define SMFAR_COMM_WORK_H

#include "comm.h"

enum smfar_status work_query(struct smfar_comm *comm, uint64_t sequence);
enum smfar_status work_wait(struct smfar_comm *comm, uint64_t sequence, int64_t timeout_ms);

#endif
