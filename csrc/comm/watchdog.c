/* See watchdog.h. */
#define _GNU_SOURCE /* sem_clockwait */
#include "watchdog.h"

#include <stdio.h>

#include "../base/log.h"
#include "../base/thread.h"
#include "failure.h"
#include "life.h"
#include "meeting.h"
#include "work.h"

/* How often it looks, milliseconds: this bounds how late a failure is noticed. */
enum { PERIOD_MS = 50 };

static void look_for_dead(struct smfar_comm *comm)
{
    char text[PAGE_TEXT];
    for (int r = 0; r < comm->ranks; r++) {
        if (r == comm->rank || !life_has_ended(comm, r)) continue;
        snprintf(text, sizeof(text), "rank %d (process %d) has died", r,
                 (int)exchange_pid(comm->exchange, r));
        failure_publish(comm, SMFAR_ERR_PEER, 0, text);
    }
}

/* 1 when it is time to end. */
static int wait_period(struct smfar_comm *comm)
{
    struct timespec until = thread_deadline(CLOCK_MONOTONIC, PERIOD_MS);
    return sem_clockwait(&comm->watch_stop, CLOCK_MONOTONIC, &until) == 0;
}

/* No failure is known, and nobody has left that this rank waits for. */
static int still_well(struct smfar_comm *comm)
{
    const struct page_words *words = &comm->page.host->words[comm->rank];
    return failure_check(comm) == SMFAR_OK &&
           failure_check_left(comm, atomic_load(&words->begun)) == SMFAR_OK;
}

static void *watch(void *argument)
{
    struct smfar_comm *comm = argument;
    struct meeting_watch meetings = {0, 0, 0};
    log_set_rank(comm->rank);
    life_hold(comm);
    sem_post(&comm->watch_holds);
    while (!wait_period(comm)) {
        look_for_dead(comm);
        meeting_check(comm, &meetings);
        work_has_ended(comm, UINT64_MAX);
        /* a stream that came after the release has written over it */
        if (atomic_load(&comm->page.host->abort)) meeting_release(comm);
        if (!atomic_load(&comm->ready) || still_well(comm)) continue;
        /* whoever waits for a message of a rank that has given up need not wait longer */
        exchange_interrupt(comm->exchange);
    }
    life_release(comm);
    return NULL;
}

enum smfar_status watchdog_start(struct smfar_comm *comm)
{
    sem_init(&comm->watch_holds, 0, 0);
    sem_init(&comm->watch_stop, 0, 0);
    enum smfar_status status = thread_start("the watchdog", watch, comm, &comm->watchdog);
    comm->watching = status == SMFAR_OK;
    while (comm->watching && sem_wait(&comm->watch_holds)) {
    } /* interrupted by a signal */
    return status;
}

void watchdog_stop(struct smfar_comm *comm)
{
    if (!comm->watching) return;
    sem_post(&comm->watch_stop);
    pthread_join(comm->watchdog, NULL);
    sem_destroy(&comm->watch_holds);
    sem_destroy(&comm->watch_stop);
    comm->watching = 0;
}
