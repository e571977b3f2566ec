/* Faults on order: makes chosen driver calls fail or block. A call that is made to fail does
 * nothing else. Not the faults that programs earn by breaking the driver's rules. */
#define _GNU_SOURCE /* pthread_getname_np */
#include "soft_faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft.h"

enum { MOST_FAULTS = 512, NAME_BYTES = 16, BLOCKED_NAP_US = 1000 };

static const char *const call_names[CALLS] = {
#define REQUIRED(name, params) #name,
#define OPTIONAL(name, params) #name,
#include "../driver/driver.def"
#define REQUIRED(name, params) #name,
#include "graphs.def"
};

struct fault {
    enum api_call call;
    char thread[NAME_BYTES]; /* empty: any */
    unsigned first, times, matches;
    int result, block_ms;
};

static struct {
    pthread_mutex_t lock;
    struct fault faults[MOST_FAULTS];
    atomic_int count;
    atomic_uint cleared; /* how often: ends what blocks */
} orders = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int find_call(const char *name)
{
    int call = 0;
    while (call < CALLS && strcmp(call_names[call], name) != 0)
        call++;
    return call < CALLS ? call : -1;
}

static int order(const struct soft_fault *wanted)
{
    int call = wanted->call ? find_call(wanted->call) : -1, index = -1;
    if (call < 0 || wanted->first == 0) return -1;
    pthread_mutex_lock(&orders.lock);
    if (atomic_load(&orders.count) < MOST_FAULTS) {
        index = atomic_load(&orders.count);
        struct fault *fault = &orders.faults[index];
        *fault = (struct fault){.call = call,
                                .first = wanted->first,
                                .times = wanted->times,
                                .result = wanted->result,
                                .block_ms = wanted->block_ms};
        if (wanted->thread) snprintf(fault->thread, sizeof fault->thread, "%s", wanted->thread);
        atomic_store(&orders.count, index + 1);
    }
    pthread_mutex_unlock(&orders.lock);
    return index;
}

/* ---- SMFAR_SOFT_FAULTS: CALL:FIRST:WHAT[xTIMES | +] , … ---- */

/* Reads one item; 0 when it makes no sense. WHAT is a CUresult, "block" or "block" and ms. */
static int read_item(const char *item, char *call, size_t size, struct soft_fault *fault)
{
    char what[32] = "", rest[32] = "";
    char format[64];
    snprintf(format, sizeof format, "%%%zu[A-Za-z0-9_]:%%u:%%31[a-z0-9]%%31s", size - 1);
    if (sscanf(item, format, call, &fault->first, what, rest) < 3) return 0;
    char *times = strchr(what, 'x');
    if (times) *times++ = 0;
    fault->call = call;
    fault->times = 1;
    if (times && (sscanf(times, "%u", &fault->times) != 1 || !fault->times)) return 0;
    if (strcmp(rest, "+") == 0)
        fault->times = 0;
    else if (*rest)
        return 0;
    if (strcmp(what, "block") == 0)
        fault->block_ms = -1;
    else if (strncmp(what, "block", 5) == 0)
        return sscanf(what + 5, "%d", &fault->block_ms) == 1;
    else
        return sscanf(what, "%d", &fault->result) == 1 && fault->result > 0;
    return 1;
}

static void read_environment(void)
{
    const char *given = getenv("SMFAR_SOFT_FAULTS");
    char *text = given ? strdup(given) : NULL, *state = NULL;
    for (char *item = text ? strtok_r(text, ",", &state) : NULL; item;
         item = strtok_r(NULL, ",", &state)) {
        char call[80];
        struct soft_fault fault = {0};
        if (!read_item(item, call, sizeof call, &fault) || order(&fault) < 0)
            soft_print("SMFAR_SOFT_FAULTS: %s makes no sense; ignored", item);
    }
    free(text);
}

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

/* ---- what soft.h offers ---- */

int soft_fault_plan(const struct soft_fault *fault)
{
    pthread_once(&environment_once, read_environment);
    return order(fault);
}

unsigned soft_fault_matches(int index)
{
    pthread_mutex_lock(&orders.lock);
    int known = index >= 0 && index < atomic_load(&orders.count);
    unsigned matches = known ? orders.faults[index].matches : 0;
    pthread_mutex_unlock(&orders.lock);
    return matches;
}

void soft_faults_clear(void)
{
    pthread_mutex_lock(&orders.lock);
    atomic_store(&orders.count, 0);
    atomic_fetch_add(&orders.cleared, 1);
    pthread_mutex_unlock(&orders.lock);
}

const char *soft_call_name(unsigned index) { return index < CALLS ? call_names[index] : NULL; }

/* ---- in every call ---- */

static int touches(struct fault *fault, enum api_call call, const char *thread)
{
    if (fault->call != call || (*fault->thread && strcmp(fault->thread, thread) != 0)) return 0;
    unsigned number = ++fault->matches;
    return number >= fault->first && (!fault->times || number - fault->first < fault->times);
}

static void block(int milliseconds, unsigned cleared)
{
    uint64_t limit = milliseconds < 0 ? UINT64_MAX : now_ns() + milliseconds * 1000000ull;
    while (now_ns() < limit && atomic_load(&orders.cleared) == cleared &&
           !atomic_load(&soft_stopping))
        nap_us(BLOCKED_NAP_US);
}

CUresult faults_apply(enum api_call call)
{
    pthread_once(&environment_once, read_environment);
    if (!atomic_load(&orders.count)) return CUDA_SUCCESS;
    char thread[NAME_BYTES] = "";
    int result = CUDA_SUCCESS, block_ms = 0;
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    pthread_mutex_lock(&orders.lock);
    unsigned cleared = atomic_load(&orders.cleared);
    for (int i = 0; i < atomic_load(&orders.count); i++)
        if (touches(&orders.faults[i], call, thread)) {
            if (orders.faults[i].result) result = orders.faults[i].result;
            if (orders.faults[i].block_ms) block_ms = orders.faults[i].block_ms;
        }
    pthread_mutex_unlock(&orders.lock);
    if (block_ms) block(block_ms, cleared);
    if (result == CUDA_SUCCESS) return CUDA_SUCCESS;
    return refuse(result, "%s: as ordered", call_names[call]);
}
