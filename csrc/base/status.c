/* See status.h. */
#include "status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

static _Thread_local char last_error[1024] = "no error";

static const char *const names[] = {
    [SMFAR_OK] = "SMFAR_OK",
    [SMFAR_PENDING] = "SMFAR_PENDING",
    [SMFAR_ERR_ARGUMENT] = "SMFAR_ERR_ARGUMENT",
    [SMFAR_ERR_UNSUPPORTED] = "SMFAR_ERR_UNSUPPORTED",
    [SMFAR_ERR_MEMORY] = "SMFAR_ERR_MEMORY",
    [SMFAR_ERR_DRIVER] = "SMFAR_ERR_DRIVER",
    [SMFAR_ERR_SYSTEM] = "SMFAR_ERR_SYSTEM",
    [SMFAR_ERR_TIMEOUT] = "SMFAR_ERR_TIMEOUT",
    [SMFAR_ERR_MISMATCH] = "SMFAR_ERR_MISMATCH",
    [SMFAR_ERR_PEER] = "SMFAR_ERR_PEER",
    [SMFAR_ERR_ABORTED] = "SMFAR_ERR_ABORTED",
};

const char *smfar_status_name(enum smfar_status status)
{
    size_t index = (size_t)status;
    return index < sizeof(names) / sizeof(names[0]) ? names[index] : "unknown status";
}

const char *smfar_last_error(void) { return last_error; }

const char *smfar_version(void) { return SMFAR_VERSION; }

enum smfar_status status_set_at(const char *file, int line, enum smfar_status status,
                                const char *format, ...)
{
    char text[sizeof(last_error)]; /* the arguments may point into last_error */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    memcpy(last_error, text, sizeof(text));
    const char *name = strrchr(file, '/');
    log_info("%s at %s:%d: %s", smfar_status_name(status), name ? name + 1 : file, line, text);
    return status;
}

enum smfar_status status_errno_at(const char *file, int line, const char *what)
{
    int code = errno;
    return status_set_at(file, line, SMFAR_ERR_SYSTEM, "%s: %s", what, strerror(code));
}
