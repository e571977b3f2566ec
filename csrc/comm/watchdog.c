/* See watchdog.h. */
#include "watchdog.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "../base/log.h"
#include "failure.h"

/* How often it looks, milliseconds: this bounds how late a failure is noticed. */
enum { PERIOD_MS = 50 };

static void report_lost(struct smfar_comm *comm, int lost)
{
    char text[PAGE_TEXT];
    if (atomic_load(&comm->page.host->words[lost].left)) return;
    snprintf(text, sizeof(text), "rank %d (process %d) has died", lost,
             (int)exchange_pid(comm->exchange, lost));
    failure_publish(comm, SMFAR_ERR_PEER, 0, text);
}

static void *watch(void *argument)
{
    struct smfar_comm *comm = argument;
    log_set_rank(comm->rank);
    while (!atomic_load(&comm->stop)) {
        int lost = exchange_wait_lost(comm->exchange, PERIOD_MS);
        if (lost >= 0) report_lost(comm, lost);
        if (failure_check(comm) == SMFAR_OK)
            failure_check_left(comm, atomic_load(&comm->page.host->words[comm->rank].begun));
    }
    return NULL;
}

enum smfar_status watchdog_start(struct smfar_comm *comm)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the program's, not this thread's */
    int code = pthread_create(&comm->watchdog, NULL, watch, comm);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code) return FAIL(SMFAR_ERR_SYSTEM, "starting the watchdog: %s", strerror(code));
    comm->watching = 1;
    return SMFAR_OK;
}

void watchdog_stop(struct smfar_comm *comm)
{
    if (!comm->watching) return;
    atomic_store(&comm->stop, 1);
    pthread_join(comm->watchdog, NULL);
    comm->watching = 0;
}
