/* See log.h. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "env.h"

static _Thread_local int log_rank = -1;

void log_set_rank(int rank) { log_rank = rank; }

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
    va_start(args, format);
    write_line("info", format, args);
    va_end(args);
}
