/* Threads of the core. Signals are the program's: they are blocked in ours. */
#ifndef SMFAR_BASE_THREAD_H
#define SMFAR_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "status.h"

/* `what` names the thread when it cannot be started. */
enum smfar_status thread_start(const char *what, void *(*body)(void *argument), void *argument,
                               pthread_t *thread_out);

/* That many milliseconds from now on this clock, for the waits of pthread.h and semaphore.h. */
struct timespec thread_deadline(clockid_t clock, int64_t ms);

/* Locks within so many milliseconds; returns 0 when the mutex was not free by then. */
int thread_lock_within(pthread_mutex_t *mutex, int64_t ms);

/* Between two looks at a word that another thread or process writes: so many times gives way to
 * whoever can run, and then sleeps, 50 microseconds each time. `tries` counts the looks from 0. */
void thread_rest(int tries, int yields);

#endif
