/* The rms_norm kernels in schedules: where what lies beside the chunk is, and what becomes of the
 * sums. A launch has a part of the rank's window and buffers to itself; of that the halves and
 * quarters that its chunk leaves. */
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "check.h"
#include "norm.h"

/* More than a block's shared memory holds of a row, by this at least. */
enum { KEEP_BYTES = 47104, LONGER = 600, MOST_ROWS = 60 };

/* Rows of a length that an element or a few vectors make, or whole tiles of a warp, perhaps with an
 * element or a few vectors behind them; now and then one that is very long, among few ranks and
 * where nothing goes element by element: else it takes longer than a wait may. */
void norm_step_draw(struct check_case *c, struct norm_step *step_out)
{
    uint64_t state = c->seed;
    size_t hidden = 1 + random_below(&state, random_below(&state, 4) ? 40 : 300);
    if (c->count / hidden > MOST_ROWS) c->count = hidden * MOST_ROWS;
    c->count = c->count / hidden * hidden;
    int slow = c->ranks > 3 || c->place != IN_WINDOW ||
               c->offset % (int)(16 / ref_bytes(kernel_rows[c->id].dtype));
    if (random_below(&state, 4) == 0) {
        static const size_t more[] = {0, 0, 0, 0, 3, 40};
        hidden = (512u << random_below(&state, slow ? 1 : 3)) + more[random_below(&state, 6)];
        c->count = hidden * (1 + random_below(&state, slow ? 2 : 4));
    }
    if (random_below(&state, 8) == 0 && !slow)
        c->count = hidden = (KEEP_BYTES + LONGER) / ref_bytes(kernel_rows[c->id].dtype);
    norm_case_make(c, hidden, &step_out->norm);
    if (hidden * ref_bytes(kernel_rows[c->id].dtype) > KEEP_BYTES) {
        step_out->norm.unlike = 0;
        step_out->norm.weight_type %= NORM_WEIGHT_F64; /* there is no room for so many */
    }
    norm_data_make(c, &step_out->norm, &step_out->data);
}

static void place(const struct rig *rig, int rank, const struct norm_case *norm, size_t element,
                  size_t slot, size_t slot_bytes, struct norm_kargs *args)
{
    const struct rig_rank *me = &rig->rank[rank];
    size_t step = (size_t)norm->unlike * element, half = slot + slot_bytes / 2;
    int spreads = norm->sums != NO_SUMS && norm->sums != OWN_SUMS;
    /* what is only passed on shares a place with other launches' */
    size_t window = norm->sums == COPIED_SUMS ? slot_bytes / 2 : half + slot_bytes;
    args->weight = norm->weight_type ? me->src + half : 0;
    args->spread = spreads ? RIG_HEAP + window + step : 0;
    if (norm->sums == WINDOW_SUMS) args->residual = me->window + args->spread;
    if (norm->sums == OWN_SUMS || norm->sums == COPIED_SUMS)
        args->residual = me->src + slot + slot_bytes / 4 + step;
    if (norm->sums == COPIED_SUMS) args->sums_dst = me->dst + half + step;
}

void norm_step_arguments(const struct rig *rig, int rank, const struct check_case *c,
                         const struct norm_step *step, size_t slot, size_t slot_bytes, int threads,
                         const struct kargs *args, struct norm_kargs *whole_out)
{
    memset(whole_out, 0, sizeof *whole_out);
    whole_out->common = *args;
    if (!norm_is(c->id)) return;
    norm_arguments(&step->norm, rank, rig->ranks, threads, c->seed, whole_out);
    place(rig, rank, &step->norm, ref_bytes(kernel_rows[c->id].dtype), slot, slot_bytes, whole_out);
}

void norm_step_begin(const struct rig *rig, int rank, const struct check_case *c,
                     const struct norm_step *step, const struct norm_kargs *args, void *input_out)
{
    static const size_t bytes[] = {0, 2, 2, 4, 8};
    const struct norm_case *norm = &step->norm;
    size_t all = c->count * ref_bytes(kernel_rows[c->id].dtype);
    memcpy(input_out, step->data.input[rank], all);
    if (args->weight)
        must(rig_write(rig, rank, args->weight, step->data.weight,
                       norm->hidden * bytes[norm->weight_type]),
             "write");
    if (args->residual)
        must(rig_write(rig, rank, args->residual, step->data.residual, all), "write");
}

void norm_step_expected(const struct check_case *c, const struct norm_step *step, void *bits_out)
{
    for (size_t i = 0; i < c->count; i++)
        ref_store(kernel_rows[c->id].dtype, bits_out, i, step->data.exact[i]);
}

static CUdeviceptr sums_of(const struct rig *rig, int rank, const struct norm_kargs *args)
{
    if (args->sums_dst) return args->sums_dst;
    return args->spread ? rig->rank[rank].window + args->spread : args->residual;
}

int norm_step_check(const struct rig *rig, int rank, const struct check_case *c,
                    const struct norm_step *step, const struct norm_kargs *args)
{
    size_t element = ref_bytes(kernel_rows[c->id].dtype), wrong = 0;
    size_t begin = 0, end = c->count;
    if (step->norm.sums == NO_SUMS) return 0;
    if (step->norm.sums == OWN_SUMS) {
        begin = args->first * step->norm.hidden;
        end = begin + args->rows * step->norm.hidden;
    }
    unsigned char *got = malloc(c->count * element + 1);
    if (!got) abort();
    must(rig_read(rig, rank, got, sums_of(rig, rank, args), c->count * element), "read");
    for (size_t i = begin; i < end && !wrong; i++)
        if (memcmp(got + i * element, step->data.sums + i * element, element) != 0) wrong = i + 1;
    free(got);
    return (int)wrong;
}
