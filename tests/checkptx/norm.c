/* Cases of the rms_norm kernels: sizes, inputs, what is expected. */
#include "norm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"

int norm_is(enum kernel_id id) { return strncmp(kernel_rows[id].file, "rms_norm", 8) == 0; }

/* Of 2128 elements a few vectors are left for a warp that has had a whole tile. The last does not
 * fit a block's shared memory. */
size_t norm_size(uint64_t seed, size_t *hidden_out)
{
    static const struct {
        size_t rows, hidden;
    } sizes[] = {{0, 16},   {1, 1},    {3, 2},    {2, 3},    {5, 7},    {1, 15},
                 {4, 16},   {9, 17},   {2, 255},  {7, 256},  {3, 257},  {40, 64},
                 {2, 4096}, {5, 1000}, {9, 1024}, {3, 2128}, {3, 26001}};
    unsigned i = random_below(&seed, sizeof sizes / sizeof *sizes);
    *hidden_out = sizes[i].hidden;
    return sizes[i].rows * sizes[i].hidden;
}

void norm_case_make(const struct check_case *c, size_t hidden, struct norm_case *norm_out)
{
    uint64_t state = c->seed ^ 0x5eed;
    *norm_out = (struct norm_case){
        .rows = c->count / hidden,
        .hidden = hidden,
        .sums = (enum norm_sums)random_below(&state, NORM_SUMS_KINDS),
        .unlike = random_below(&state, 4) ? 0 : 1 + (int)random_below(&state, 3),
        .weight_type = random_below(&state, 5),
        .eps = c->real ? 1e-6f : 0,
    };
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    if (memory == NULL) abort();
    return memory;
}

static double real_number(uint64_t *state)
{
    double unit = (double)(random_next(state) >> 40) * 0x1p-23 - 1;
    return ldexp(unit, (int)random_below(state, 12) - 6);
}

/* Few, so that most rows have none. */
static double special_number(size_t hidden, double otherwise, uint64_t *state)
{
    static const double numbers[] = {NAN, INFINITY, -INFINITY};
    if (random_below(state, 8 * (unsigned)hidden) != 0) return otherwise;
    return numbers[random_below(state, 3)];
}

static void make_reals(const struct check_case *c, const struct norm_case *norm,
                       struct norm_data *data, uint64_t *state)
{
    const struct kernel_row *row = &kernel_rows[c->id];
    for (size_t i = 0; i < c->count; i++) {
        for (int r = 0; r < c->ranks; r++) {
            double x = real_number(state);
            if (!row->multicast) x = special_number(norm->hidden, x, state);
            ref_store(row->dtype, data->input[r], i, x);
        }
        if (data->residual) ref_store(row->dtype, data->residual, i, real_number(state));
    }
}

/* Small integers, of which rank 0's makes the sum what it is to be. */
static void make_exact(const struct check_case *c, const struct norm_case *norm,
                       struct norm_data *data, uint64_t *state)
{
    enum smfar_dtype dtype = kernel_rows[c->id].dtype;
    int power = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (i % norm->hidden == 0) power = 1 << random_below(state, 5);
        int rest = random_below(state, 2) ? power : -power;
        for (int r = 1; r < c->ranks + (data->residual != NULL); r++) {
            int x = (int)random_below(state, 17) - 8;
            ref_store(dtype, r < c->ranks ? data->input[r] : data->residual, i, x);
            rest -= x;
        }
        ref_store(dtype, data->input[0], i, rest);
    }
}

static enum smfar_dtype weight_dtype(uint32_t weight_type)
{
    static const enum smfar_dtype dtypes[] = {SMFAR_F32, SMFAR_F16, SMFAR_BF16, SMFAR_F32,
                                              SMFAR_F64};
    return dtypes[weight_type];
}

/* For exact cases numbers that every type can hold. */
static double *make_weight(const struct check_case *c, const struct norm_case *norm,
                           struct norm_data *data, uint64_t *state)
{
    enum smfar_dtype dtype = weight_dtype(norm->weight_type);
    double *values = allocate(norm->hidden * sizeof *values);
    data->weight = allocate(norm->hidden * ref_bytes(dtype));
    for (size_t i = 0; i < norm->hidden; i++) {
        double x = c->real ? real_number(state) / 16 : (double)random_below(state, 255) / 64 - 2;
        ref_store(dtype, data->weight, i, x);
        values[i] = ref_load_double(dtype, data->weight, i);
    }
    return values;
}

static void compute_expected(const struct check_case *c, const struct norm_case *norm,
                             const double *weight, struct norm_data *data)
{
    const struct kernel_row *row = &kernel_rows[c->id];
    struct ref_norm call = {
        row->dtype,     c->ranks, norm->rows,       norm->hidden, (const void *const *)data->input,
        data->residual, weight,   (double)norm->eps};
    data->sums = allocate(c->count * ref_bytes(row->dtype));
    data->exact_sums = allocate(c->count * sizeof(double));
    data->exact = allocate(c->count * sizeof(double));
    data->bound = allocate(c->count * sizeof(double));
    ref_rms_norm_sums(&call, data->sums);
    for (size_t i = 0; i < c->count; i++)
        data->exact_sums[i] = ref_load_double(row->dtype, data->sums, i);
    if (row->multicast && c->real) {
        data->sums_bound = allocate(c->count * sizeof(double));
        ref_rms_norm_sums_bound(&call, data->exact_sums, data->sums_bound);
    }
    ref_rms_norm(&call, data->exact_sums, data->sums_bound, data->exact, data->bound);
    for (size_t i = 0; i < c->count && !c->real; i++)
        data->bound[i] = 0;
}

void norm_data_make(const struct check_case *c, const struct norm_case *norm,
                    struct norm_data *data_out)
{
    uint64_t state = c->seed + 0x4e04;
    size_t bytes = c->count * ref_bytes(kernel_rows[c->id].dtype);
    struct norm_data data = {.weight = NULL};
    double *weight = NULL;
    for (int r = 0; r < c->ranks; r++)
        data.input[r] = allocate(bytes);
    if (norm->sums != NO_SUMS && norm->sums != EXTRA_SUMS) data.residual = allocate(bytes);
    if (c->real)
        make_reals(c, norm, &data, &state);
    else
        make_exact(c, norm, &data, &state);
    if (norm->weight_type) weight = make_weight(c, norm, &data, &state);
    compute_expected(c, norm, weight, &data);
    free(weight);
    *data_out = data;
}

void norm_data_free(struct norm_data *data)
{
    for (int r = 0; r < RIG_MAX_RANKS; r++)
        free(data->input[r]);
    void *rest[] = {data->residual,   data->weight, data->sums, data->exact_sums,
                    data->sums_bound, data->exact,  data->bound};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        free(rest[i]);
}

int norm_is_right(const struct check_case *c, const void *got, size_t i, const double *exact,
                  const double *bound)
{
    double value = ref_load_double(kernel_rows[c->id].dtype, got, i);
    if (isnan(exact[i])) return isnan(value);
    if (isinf(exact[i]) || bound == NULL) return value == exact[i];
    return fabs(value - exact[i]) <= bound[i]; /* NaN is wrong */
}

void norm_arguments(const struct norm_case *norm, int rank, int ranks, int threads, uint64_t seed,
                    struct norm_kargs *args)
{
    unsigned group = 32u << random_below(&seed, 5);
    while ((unsigned)threads % group != 0)
        group /= 2;
    args->hidden = (uint32_t)norm->hidden;
    args->first = (uint32_t)(norm->rows * (size_t)rank / (size_t)ranks);
    args->rows = (uint32_t)(norm->rows * (size_t)(rank + 1) / (size_t)ranks) - args->first;
    args->group = group;
    args->kept = norm->sums == OWN_SUMS;
    args->weight_type = norm->weight_type;
    args->eps = norm->eps;
}
