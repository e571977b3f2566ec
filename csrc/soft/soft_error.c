/* The software switch's errors in words: names and texts of CUresult, and the lines it prints.
 * Which call fails with what is decided elsewhere. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft_internal.h"

static const struct {
    CUresult result;
    const char *name, *text;
} results[] = {
#define RESULT(result, text) {result, #result, text}
    RESULT(CUDA_SUCCESS, "no error"),
    RESULT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    RESULT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    RESULT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    RESULT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    RESULT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    RESULT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    RESULT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    RESULT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    RESULT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    RESULT(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    RESULT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    RESULT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the PTX version is not supported"),
    RESULT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    RESULT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    RESULT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    RESULT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    RESULT(CUDA_ERROR_NOT_READY, "device not ready"),
    RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the memory is registered"),
    RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
           "pointer does not correspond to registered memory"),
    RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    RESULT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    RESULT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    RESULT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    RESULT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
           "operation not permitted when stream is capturing"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
           "operation failed due to a previous error during capture"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE,
           "operation would result in a merge of separate capture sequences"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
           "capture was not ended in the same stream as it began"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
           "dependency created on uncaptured work in another stream"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
           "operation would make the legacy stream depend on a capturing blocking stream"),
    RESULT(CUDA_ERROR_CAPTURED_EVENT,
           "operation not permitted on an event last recorded in a capturing stream"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
           "attempt to terminate a thread-local capture sequence from another thread"),
    RESULT(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef RESULT
};

static size_t find_result(CUresult result)
{
    size_t count = sizeof results / sizeof *results, i = 0;
    while (i < count && results[i].result != result)
        i++;
    return i;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    ENTER(cuGetErrorName, NEED_NOTHING);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    size_t i = find_result(error);
    int known = i < sizeof results / sizeof *results;
    *name = known ? results[i].name : NULL;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    ENTER(cuGetErrorString, NEED_NOTHING);
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    size_t i = find_result(error);
    int known = i < sizeof results / sizeof *results;
    *text = known ? results[i].text : NULL;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void print_line(const char *format, va_list list)
{
    char line[1024];
    vsnprintf(line, sizeof line, format, list);
    fprintf(stderr, "smfar software switch: %s\n", line);
}

void soft_print(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print_line(format, list);
    va_end(list);
}

CUresult refuse(CUresult result, const char *format, ...)
{
    const char *verbose = getenv("SMFAR_SOFT_VERBOSE");
    if (verbose && strcmp(verbose, "0") != 0) {
        va_list list;
        va_start(list, format);
        print_line(format, list);
        va_end(list);
    }
    return result;
}
