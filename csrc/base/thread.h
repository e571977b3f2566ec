/* Threads of the core. Signals are the program's: they are blocked in ours. */
#ifndef SMFAR_BASE_THREAD_H
#define SMFAR_BASE_THREAD_H

#include <pthread.h>

#include "status.h"

/* `what` names the thread when it cannot be started. */
enum smfar_status thread_start(const char *what, void *(*body)(void *argument), void *argument,
                               pthread_t *thread_out);

#endif
