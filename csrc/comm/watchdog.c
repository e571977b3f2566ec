/* See watchdog.h. */
#include "watchdog.h"

#include <stdio.h>

#include "../base/log.h"
#include "../base/thread.h"
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
    enum smfar_status status = thread_start("the watchdog", watch, comm, &comm->watchdog);
    comm->watching = status == SMFAR_OK;
    return status;
}

void watchdog_stop(struct smfar_comm *comm)
{
    if (!comm->watching) return;
    atomic_store(&comm->stop, 1);
    pthread_join(comm->watchdog, NULL);
    comm->watching = 0;
}
