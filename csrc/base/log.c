/* See log.h. */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "env.h"

static _Thread_local int log_rank = -1;

void log_set_rank(int rank) { log_rank = rank; }

/* Since the process first asked. */
static int64_t elapsed_ms(void)
{
    static _Atomic int64_t begin;
    int64_t none = 0, now = clock_now_ms();
    return atomic_compare_exchange_strong(&begin, &none, now) ? 0 : now - none;
}

static void write_line(const char *level, const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof(text), format, args);
    if (log_rank >= 0)
        fprintf(stderr, "smfar %s [rank %d]: %s\n", level, log_rank, text);
    else
        fprintf(stderr, "smfar %s: %s\n", level, text);
}

void log_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line("warning", format, args);
    va_end(args);
}

void log_info(const char *format, ...)
{
    const char *level = env_text(ENV_DEBUG);
    if (!level || strcmp(level, "INFO") != 0) return;
    va_list args;
    char timed[32];
    snprintf(timed, sizeof(timed), "info %lld ms", (long long)elapsed_ms());
    va_start(args, format);
    write_line(timed, format, args);
    va_end(args);
}
