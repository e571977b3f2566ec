/* Copies, fills and host functions on a stream. Addresses are checked twice: when the call is made,
 * for the error it returns, and when the operation runs, since mappings may have changed by then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft_internal.h"

enum { MOST_PIECES = 8, LEAST_PIECE = 64 };

/* In checked mode a copy is made in pieces, in any order, with delays. */
struct copy_op {
    struct op op;
    uint64_t to, from;
    size_t bytes;
    uint64_t random;
    unsigned left; /* bits of the pieces to come */
};

struct fill_op {
    struct op op;
    uint64_t to;
    size_t count;
    unsigned width; /* 1 or 4 bytes */
    uint32_t value;
};

struct host_op {
    struct op op;
    CUhostFn function;
    void *argument;
};

static unsigned char *at(uint64_t address) { return (unsigned char *)(uintptr_t)address; }

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* ---- checks ---- */

/* A copy may name any memory of the process that the device may touch, and blocks of cuMemAlloc of
 * every device. */
static int copy_may_touch(const struct span *span)
{
    return span->kind == SPAN_BLOCK || span->range.kind != PTX_RANGE_FAULT;
}

static const char *why_not_read(const struct span *span)
{
    if (span->kind == SPAN_MULTICAST) return "a copy from a multicast address is undefined";
    return copy_may_touch(span) ? NULL : "not mapped, or without access";
}

static const char *why_not_write(const struct span *span)
{
    if (!copy_may_touch(span))
        return span->kind == SPAN_MULTICAST ? "multicast range without access or not fully bound"
                                            : "not mapped, or without access";
    return span->range.writable ? NULL : "not writable";
}

/* Stream operations other than copies write this device's own memory and host memory, no more. */
static const char *why_not_fill(const struct device *device, const struct span *span)
{
    if (span->kind == SPAN_MULTICAST) return "a fill of a multicast address";
    if (span->device >= 0 && span->device != device->ordinal) return "memory of another device";
    if (span->range.kind == PTX_RANGE_FAULT) return "not mapped, or without access";
    return span->range.writable ? NULL : "not writable";
}

/* NULL, or what is wrong with the first bad address of a range. */
static const char *check_copy(struct device *device, uint64_t address, size_t bytes, int write,
                              uint64_t *bad)
{
    for (size_t done = 0; done < bytes;) {
        const struct span *span = span_find(device, *bad = address + done);
        const char *why = write ? why_not_write(span) : why_not_read(span);
        if (why) return why;
        done += smaller(bytes - done, span->range.end - *bad);
    }
    return NULL;
}

static const char *check_fill(struct device *device, uint64_t address, size_t bytes, uint64_t *bad)
{
    for (size_t done = 0; done < bytes;) {
        const struct span *span = span_find(device, *bad = address + done);
        const char *why = why_not_fill(device, span);
        if (why) return why;
        done += smaller(bytes - done, span->range.end - *bad);
    }
    return NULL;
}

static void fault_at(struct device *device, const char *what, uint64_t address, const char *why)
{
    char text[256];
    snprintf(text, sizeof text, "%s at 0x%llx: %s", what, (unsigned long long)address, why);
    device_fault(device, CUDA_ERROR_ILLEGAL_ADDRESS, text);
}

/* ---- copies ---- */

static void copy_piece(const struct span *span, uint64_t to, uint64_t from, size_t bytes)
{
    if (span->kind != SPAN_MULTICAST) {
        memmove(at(to), at(from), bytes);
        return;
    }
    for (unsigned i = 0; i < span->range.copies; i++)
        memcpy(span->range.copy[i] + (to - span->range.begin), at(from), bytes);
}

static void copy_range(struct device *device, const struct copy_op *copy, size_t done, size_t end)
{
    while (done < end) {
        const struct span *span = span_find(device, copy->to + done);
        size_t piece = smaller(end - done, span->range.end - (copy->to + done));
        copy_piece(span, copy->to + done, copy->from + done, piece);
        done += piece;
    }
}

/* One turn of a copy: any of the pieces that are left, or none. */
static int step_copy(void *context)
{
    struct copy_op *copy = context;
    size_t each = (copy->bytes / MOST_PIECES | (LEAST_PIECE - 1)) + 1;
    copy->random = copy->random * 6364136223846793005u + 1442695040888963407u;
    unsigned which = copy->random >> 60 & (MOST_PIECES - 1);
    if (copy->random >> 63 || !(copy->left >> which & 1)) return 1;
    copy->left &= ~(1u << which);
    copy_range(stream_device(copy->op.stream), copy, smaller(which * each, copy->bytes),
               smaller((which + 1) * each, copy->bytes));
    return copy->left ? 2 : 0;
}

static void run_copy(struct op *op)
{
    struct copy_op *copy = (struct copy_op *)op;
    struct device *device = stream_device(op->stream);
    uint64_t bad;
    const char *why = check_copy(device, copy->from, copy->bytes, 0, &bad);
    if (why) return fault_at(device, "copy from", bad, why);
    why = check_copy(device, copy->to, copy->bytes, 1, &bad);
    if (why) return fault_at(device, "copy to", bad, why);
    if (settings.checked && copy->bytes > LEAST_PIECE) {
        copy->left = (1u << MOST_PIECES) - 1;
        turns_run(op->stream, step_copy, copy);
    } else
        copy_range(device, copy, 0, copy->bytes);
}

/* A check at the time of the call, on behalf of the stream's device. */
static CUresult check_call(struct stream *stream, uint64_t to, uint64_t from, size_t bytes)
{
    struct device *device = stream_device(stream);
    struct reader reader;
    uint64_t bad_from, bad_to;
    reader_enter(&reader);
    const char *no_read = check_copy(device, from, bytes, 0, &bad_from);
    const char *no_write = check_copy(device, to, bytes, 1, &bad_to);
    reader_leave(&reader);
    if (no_read)
        return refuse(CUDA_ERROR_INVALID_VALUE, "copy from 0x%llx: %s",
                      (unsigned long long)bad_from, no_read);
    if (no_write)
        return refuse(CUDA_ERROR_INVALID_VALUE, "copy to 0x%llx: %s", (unsigned long long)bad_to,
                      no_write);
    return CUDA_SUCCESS;
}

static void prepare_copy(struct op *op)
{
    if (settings.checked) ((struct copy_op *)op)->random = turns_seed(stream_device(op->stream));
}

static CUresult enqueue_copy(uint64_t to, uint64_t from, size_t bytes, CUstream handle)
{
    struct stream *stream;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    result = check_call(stream, to, from, bytes);
    if (result == CUDA_SUCCESS && bytes) {
        struct copy_op *copy = op_create(sizeof *copy, run_copy);
        if (copy) {
            copy->to = to;
            copy->from = from;
            copy->bytes = bytes;
            copy->op.prepare = prepare_copy;
        }
        result = copy ? stream_submit(stream, &copy->op) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    object_release((struct object *)stream);
    return result;
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyAsync, NEED_CONTEXT);
    return enqueue_copy(dst, src, bytes, stream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyHtoDAsync, NEED_CONTEXT);
    return enqueue_copy(dst, (uintptr_t)src, bytes, stream);
}

CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyDtoHAsync, NEED_CONTEXT);
    return enqueue_copy((uintptr_t)dst, src, bytes, stream);
}

/* ---- fills ---- */

static void run_fill(struct op *op)
{
    struct fill_op *fill = (struct fill_op *)op;
    struct device *device = stream_device(op->stream);
    uint64_t bad;
    const char *why = check_fill(device, fill->to, fill->count * fill->width, &bad);
    if (why) return fault_at(device, "memset", bad, why);
    if (fill->width == 1) {
        memset(at(fill->to), (int)fill->value, fill->count);
        return;
    }
    uint32_t *word = (uint32_t *)(void *)at(fill->to);
    for (size_t i = 0; i < fill->count; i++)
        word[i] = fill->value;
}

static CUresult enqueue_fill(uint64_t to, unsigned width, uint32_t value, size_t count,
                             CUstream handle)
{
    struct stream *stream;
    if (to % width || count > SIZE_MAX / width) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    struct reader reader;
    uint64_t bad;
    reader_enter(&reader);
    const char *why = check_fill(stream_device(stream), to, count * width, &bad);
    reader_leave(&reader);
    if (why)
        result =
            refuse(CUDA_ERROR_INVALID_VALUE, "memset at 0x%llx: %s", (unsigned long long)bad, why);
    else if (count) {
        struct fill_op *fill = op_create(sizeof *fill, run_fill);
        if (fill) {
            fill->to = to;
            fill->count = count;
            fill->width = width;
            fill->value = value;
        }
        result = fill ? stream_submit(stream, &fill->op) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    object_release((struct object *)stream);
    return result;
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
    ENTER(cuMemsetD8Async, NEED_CONTEXT);
    return enqueue_fill(dst, 1, value, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
    ENTER(cuMemsetD32Async, NEED_CONTEXT);
    return enqueue_fill(dst, 4, value, count, stream);
}

/* ---- host functions ---- */

static void run_host(struct op *op)
{
    struct host_op *host = (struct host_op *)op;
    in_host_function = 1;
    host->function(host->argument);
    in_host_function = 0;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *user_data)
{
    ENTER(cuLaunchHostFunc, NEED_CONTEXT);
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    struct host_op *host = op_create(sizeof *host, run_host);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    host->function = fn;
    host->argument = user_data;
    return stream_submit_to(stream, &host->op);
}
