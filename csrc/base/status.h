/* Errors of the core: the thread-local record behind smfar_last_error(), and the two macros that
 * every fallible line goes through. Not for the software switch, which speaks CUresult. */
#ifndef SMFAR_BASE_STATUS_H
#define SMFAR_BASE_STATUS_H

#include "../smfar.h"

/* Records `status` with a message for this thread and returns `status`. The place of the call is
 * kept for the log. */
enum smfar_status status_set_at(const char *file, int line, enum smfar_status status,
                                const char *format, ...) __attribute__((format(printf, 4, 5)));
#define FAIL(status, ...) status_set_at(__FILE__, __LINE__, status, __VA_ARGS__)

/* The same, ending with what errno says. */
enum smfar_status status_errno_at(const char *file, int line, const char *what);
#define FAIL_ERRNO(what) status_errno_at(__FILE__, __LINE__, what)

/* Propagates a failure: to the function's `fail:` label, with the status in `status`. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != SMFAR_OK) goto fail;                                                         \
    } while (0)

#endif
