/* Stream memory operations: writes of one word and waits for one, alone or in batches. Waiting
 * gives the processor away: first by yielding, then by naps that grow to a tenth of a
 * millisecond. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "soft_internal.h"

enum { MAX_BATCH = 256, YIELDS = 200, FIRST_NAP_US = 5, LONGEST_NAP_US = 100 };

struct batch_op {
    struct op op;
    unsigned count;
    CUstreamBatchMemOpParams params[];
};

static int is_write(const CUstreamBatchMemOpParams *params)
{
    return params->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
           params->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static unsigned width(const CUstreamBatchMemOpParams *params)
{
    return params->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ||
                   params->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64
               ? 8
               : 4;
}

/* ---- checks ---- */

/* Host memory must be registered, as on machines where devices cannot reach all of it. */
static const char *why_not(const struct device *device, const struct span *span,
                           const CUstreamBatchMemOpParams *params)
{
    if (span->kind == SPAN_MULTICAST) return "a multicast address";
    if (span->kind == SPAN_HOST && !host_registered(params->value.address, width(params)))
        return "host memory that is not registered";
    if (span->range.kind == PTX_RANGE_FAULT) return "not mapped, or without access";
    if (!is_write(params)) return NULL;
    if (span->device >= 0 && span->device != device->ordinal)
        return "a write to another device's memory";
    return span->range.writable ? NULL : "not writable";
}

static CUresult check_address(struct device *device, const CUstreamBatchMemOpParams *params)
{
    struct reader reader;
    if (params->value.address % width(params)) return CUDA_ERROR_INVALID_VALUE;
    reader_enter(&reader);
    const char *why = why_not(device, span_find(device, params->value.address), params);
    reader_leave(&reader);
    if (!why) return CUDA_SUCCESS;
    return refuse(CUDA_ERROR_INVALID_VALUE, "stream memory operation at 0x%llx: %s",
                  (unsigned long long)params->value.address, why);
}

static CUresult check_params(struct device *device, const CUstreamBatchMemOpParams *params)
{
    switch (params->operation) {
    case CU_STREAM_MEM_OP_BARRIER:
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        if (params->value.flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
        return check_address(device, params);
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        if (params->value.flags > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
        return check_address(device, params);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- running ---- */

static void write_value(const CUstreamBatchMemOpParams *params)
{
    uintptr_t address = params->value.address;
    if (width(params) == 8)
        atomic_store((_Atomic uint64_t *)address, params->value.value64);
    else
        atomic_store((_Atomic uint32_t *)address, (uint32_t)params->value.value64);
}

static int is_met(const CUstreamBatchMemOpParams *params)
{
    uintptr_t address = params->value.address;
    int wide = width(params) == 8;
    uint64_t memory =
        wide ? atomic_load((_Atomic uint64_t *)address) : atomic_load((_Atomic uint32_t *)address);
    uint64_t value = wide ? params->value.value64 : (uint32_t)params->value.value64;
    switch (params->value.flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return wide ? (int64_t)(memory - value) >= 0
                    : (int32_t)((uint32_t)memory - (uint32_t)value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return memory == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (memory & value) != 0;
    default:
        return wide ? ~(memory | value) != 0 : (uint32_t)~(memory | value) != 0;
    }
}

/* 0 when the wait was given up. */
static int wait_value(struct device *device, const CUstreamBatchMemOpParams *params)
{
    unsigned nap = FIRST_NAP_US;
    for (unsigned polls = 0; !is_met(params); polls++) {
        if (stream_should_stop(device)) return 0;
        if (polls < YIELDS) {
            sched_yield();
            continue;
        }
        nap_us(nap);
        nap = 2 * nap < LONGEST_NAP_US ? 2 * nap : LONGEST_NAP_US;
    }
    return 1;
}

static void run_batch(struct op *op)
{
    struct batch_op *batch = (struct batch_op *)op;
    struct device *device = stream_device(op->stream);
    for (unsigned i = 0; i < batch->count; i++) {
        const CUstreamBatchMemOpParams *params = &batch->params[i];
        if (params->operation == CU_STREAM_MEM_OP_BARRIER)
            atomic_thread_fence(memory_order_seq_cst);
        else if (check_address(device, params) != CUDA_SUCCESS) {
            device_fault(device, CUDA_ERROR_ILLEGAL_ADDRESS,
                         "stream memory operation: its address is no longer usable");
            return;
        } else if (is_write(params))
            write_value(params);
        else if (!wait_value(device, params))
            return;
    }
}

static CUresult enqueue(CUstream handle, unsigned count, const CUstreamBatchMemOpParams *params)
{
    struct stream *stream;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = check_params(stream_device(stream), &params[i]);
    if (result == CUDA_SUCCESS && count) {
        struct batch_op *batch = op_create(sizeof *batch + count * sizeof *params, run_batch);
        if (batch) {
            batch->count = count;
            memcpy(batch->params, params, count * sizeof *params);
        }
        result = batch ? stream_submit(stream, &batch->op) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    object_release((struct object *)stream);
    return result;
}

static CUresult enqueue_one(CUstream stream, CUstreamBatchMemOpType operation, CUdeviceptr address,
                            uint64_t value, unsigned flags)
{
    CUstreamBatchMemOpParams params;
    memset(&params, 0, sizeof params);
    params.value.operation = operation;
    params.value.address = address;
    params.value.value64 = value;
    params.value.flags = flags;
    return enqueue(stream, 1, &params);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags)
{
    ENTER(cuStreamWriteValue32, NEED_CONTEXT);
    return enqueue_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags)
{
    ENTER(cuStreamWriteValue64, NEED_CONTEXT);
    return enqueue_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags)
{
    ENTER(cuStreamWaitValue32, NEED_CONTEXT);
    return enqueue_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags)
{
    ENTER(cuStreamWaitValue64, NEED_CONTEXT);
    return enqueue_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params,
                            unsigned int flags)
{
    ENTER(cuStreamBatchMemOp, NEED_CONTEXT);
    if (flags || !params || count > MAX_BATCH)
        return refuse(CUDA_ERROR_INVALID_VALUE, "batch: flags, no operations, or more than 256");
    return enqueue(stream, count, params);
}
