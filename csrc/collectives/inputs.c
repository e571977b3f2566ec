/* See inputs.h. */
#include "inputs.h"

enum { ALIGNMENT = 16 }; /* of the parts in the slot: what the kernels load at once */

/* 0 also when they do not rise. */
static size_t distance(const void *const *send, int parts)
{
    const char *first = send[0];
    size_t stride = 0;
    if (parts > 1 && (const char *)send[1] > first)
        stride = (size_t)((const char *)send[1] - first);
    for (int r = 1; r < parts; r++)
        if ((const char *)send[r] != first + (size_t)r * stride) return 0;
    return stride;
}

void inputs_find(const struct call *call, const void *const *send, int parts, size_t bytes,
                 int moved, struct inputs *inputs_out)
{
    const struct smfar_comm *comm = call->comm;
    *inputs_out = (struct inputs){send, parts, 0, 0, STAGED_BY_COPY};
    if (parts == 0) return;
    inputs_out->stride = distance(send, parts);
    if (parts > 1 && inputs_out->stride < bytes) return;
    size_t all = inputs_out->stride * (size_t)(parts - 1) + bytes;
    if (!moved && window_offset(comm->window, send[0], all, &inputs_out->offset))
        inputs_out->staging = STAGED_NOT;
    else if (!copies_suit(call, send[0], bytes))
        inputs_out->staging = STAGED_BY_KERNEL;
}

enum smfar_status inputs_place(const struct call *call, const struct inputs *inputs, size_t at,
                               size_t bytes, struct kargs *args)
{
    enum smfar_status status;
    size_t packed = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    int in_place = inputs->staging == STAGED_NOT;
    args->offset = in_place ? inputs->offset + at : call->channel->slot;
    if (inputs->parts > 1) args->part = in_place ? inputs->stride : packed;
    for (int r = 0; r < inputs->parts && bytes && inputs->staging == STAGED_BY_COPY; r++)
        TRY(copy_to_slot(call, (const char *)inputs->send[r] + at, (size_t)r * args->part, bytes));
    if (inputs->staging != STAGED_BY_KERNEL) return SMFAR_OK;
    args->src = (uint64_t)(uintptr_t)inputs->send[0] + at;
    args->src_part = inputs->stride;
    return SMFAR_OK;
fail:
    return status;
}
