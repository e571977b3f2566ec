/* All-reduce with RMSNorm over smfar.h, ranks being threads on the software switch: every layout of
 * the sums, in the window and outside, whole and in many steps, through the switch and over peers;
 * what is refused, and what ranks must agree on. */
#include <math.h>
#include <stdlib.h>

#include "ranks.h"
#include "switch.h"

enum { LARGEST = 20000, MOST_RANKS = 4, MOST_SPLIT = 8, TIMEOUT_MS = 60000 };
#define EPS 1e-6

struct options {
    int no_multicast;
    size_t chunk_bytes;
    const char *algorithm;
};

/* One rank's memory: plain, and in the window. */
struct seat {
    smfar_comm *comm;
    int rank, ranks;
    float *plain[3], *inside[3];
};
enum { X, RESULT, SUMS };

/* What a case is, the same on every rank but for `windows`, a bit for each of X, RESULT, SUMS, and
 * `in_place`: the results go where x is. */
struct one {
    size_t rows, hidden;
    enum smfar_sums layout;
    int weighted, residual;
    unsigned windows;
    int in_place;
};

static float value_of(int rank, size_t i)
{
    return (float)((i * 37 + (size_t)rank * 11) % 101) / 16 - 3;
}

static float weight_of(size_t column) { return (float)(column % 7) / 4 + 0.5f; }

static float sum_of(const struct seat *seat, const struct one *one, size_t i)
{
    float sum = one->residual ? value_of(99, i) : 0;
    for (int r = 0; r < seat->ranks; r++)
        sum += value_of(r, i);
    return sum;
}

static float *tensor(const struct seat *seat, const struct one *one, int which)
{
    if (which == RESULT && one->in_place) which = X;
    return one->windows >> which & 1 ? seat->inside[which] : seat->plain[which];
}

static size_t first_row(const struct seat *seat, const struct one *one, int rank)
{
    return one->rows * (size_t)rank / (size_t)seat->ranks;
}

static void fill(const struct seat *seat, const struct one *one)
{
    size_t count = one->rows * one->hidden, skip = 0;
    if (one->layout == SMFAR_SUMS_SHARDED) skip = first_row(seat, one, seat->rank) * one->hidden;
    for (size_t i = 0; i < LARGEST; i++) {
        tensor(seat, one, RESULT)[i] = NAN;
        tensor(seat, one, SUMS)[i] = one->residual ? value_of(99, i + skip) : NAN;
    }
    for (size_t i = 0; i < count; i++)
        tensor(seat, one, X)[i] = value_of(seat->rank, i);
}

static int is_near(float got, double want)
{
    double difference = fabs(got - want); /* NaN is not near */
    return difference <= 1e-5 || difference <= 1e-4 * fabs(want);
}

static void expect_results(const struct seat *seat, const struct one *one, const float *got)
{
    int wrong = 0;
    for (size_t row = 0; row < one->rows; row++) {
        double squares = 0;
        for (size_t j = 0; j < one->hidden; j++)
            squares += pow(sum_of(seat, one, row * one->hidden + j), 2);
        double inverse = 1 / sqrt(squares / (double)one->hidden + EPS);
        for (size_t j = 0; j < one->hidden; j++) {
            size_t i = row * one->hidden + j;
            double weight = one->weighted ? weight_of(j) : 1;
            wrong += !is_near(got[i], sum_of(seat, one, i) * inverse * weight);
        }
    }
    EXPECT(wrong == 0, "%zu x %zu, layout %d, windows %u: rank %d: %d results wrong", one->rows,
           one->hidden, (int)one->layout, one->windows, seat->rank, wrong);
    EXPECT(isnan(got[one->rows * one->hidden]), "written behind the results");
}

/* All sums, or this rank's own; behind them what was there. */
static void expect_sums(const struct seat *seat, const struct one *one, const float *got)
{
    size_t begin = 0, end = one->rows, wrong = 0;
    if (one->layout == SMFAR_SUMS_NONE) return;
    if (one->layout == SMFAR_SUMS_SHARDED) {
        begin = first_row(seat, one, seat->rank);
        end = first_row(seat, one, seat->rank + 1);
    }
    size_t count = (end - begin) * one->hidden, from = begin * one->hidden;
    for (size_t i = 0; i < count; i++)
        wrong += !is_near(got[i], sum_of(seat, one, from + i));
    EXPECT(wrong == 0, "%zu x %zu, layout %d, windows %u: rank %d: %zu sums wrong", one->rows,
           one->hidden, (int)one->layout, one->windows, seat->rank, wrong);
    EXPECT(one->residual ? got[count] == value_of(99, from + count) : isnan(got[count]),
           "written behind the sums");
}

static void run_one(const struct seat *seat, const struct one *one)
{
    float weight[LARGEST], *sums = tensor(seat, one, SUMS);
    for (size_t j = 0; j < one->hidden; j++)
        weight[j] = weight_of(j);
    struct smfar_rms_norm norm = {.rows = one->rows,
                                  .hidden = one->hidden,
                                  .dtype = SMFAR_F32,
                                  .weight_dtype = SMFAR_F32,
                                  .weight = one->weighted ? weight : NULL,
                                  .eps = EPS,
                                  .sums_layout = one->layout};
    if (one->residual) norm.residual = sums;
    if (one->layout == SMFAR_SUMS_REPLICATED) norm.sums = sums;
    fill(seat, one);
    float *result = tensor(seat, one, RESULT);
    must(smfar_all_reduce_rms_norm(tensor(seat, one, X), result, &norm, seat->comm, NULL));
    must(smfar_comm_wait(seat->comm, smfar_comm_sequence(seat->comm), -1));
    expect_results(seat, one, result);
    expect_sums(seat, one, sums);
}

static void run_layouts(const struct seat *seat, size_t rows, size_t hidden)
{
    struct one one = {.rows = rows, .hidden = hidden};
    for (unsigned windows = 0; windows < 8; windows++) {
        one.windows = windows;
        one.weighted = windows & 1;
        one.layout = SMFAR_SUMS_NONE;
        one.residual = 0;
        run_one(seat, &one);
        one.layout = SMFAR_SUMS_REPLICATED;
        run_one(seat, &one);
        one.residual = 1;
        run_one(seat, &one);
        one.layout = SMFAR_SUMS_SHARDED;
        run_one(seat, &one);
    }
    /* where x and the results lie is each rank's own affair */
    one.windows = (unsigned)seat->rank & 3;
    run_one(seat, &one);
    one.windows = 7;
    one.in_place = seat->rank & 1;
    run_one(seat, &one);
}

static void sit(struct seat *seat, struct ranks_thread *me, const struct options *options)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .no_multicast = options->no_multicast,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 8 << 20,
                                  .chunk_bytes = options->chunk_bytes};
    *seat = (struct seat){.rank = me->rank, .ranks = me->ranks};
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &seat->comm));
    for (int i = 0; i < 3; i++) {
        void *memory;
        must(smfar_window_alloc(seat->comm, LARGEST * sizeof(float), &memory));
        seat->inside[i] = memory;
        seat->plain[i] = calloc(LARGEST, sizeof(float));
        REQUIRE(seat->plain[i], "no memory");
    }
}

static void ask(const char *algorithm)
{
    must(smfar_hint_set(&(struct smfar_hint){.algorithm = algorithm}));
}

static void stand(struct seat *seat)
{
    ask(NULL);
    smfar_comm_destroy(seat->comm); /* until then kernels of a call that failed may use them */
    for (int i = 0; i < 3; i++)
        free(seat->plain[i]);
}

static void all_layouts(struct ranks_thread *me)
{
    /* the last has two vectors more than a block's warps have in whole tiles, and fits no short
     * step */
    static const size_t sizes[][2] = {{0, 8},    {1, 33},   {3, 16},  {7, 1},
                                      {64, 100}, {40, 257}, {2, 8200}};
    const struct options *options = me->extra;
    size_t count = sizeof sizes / sizeof *sizes - (options->chunk_bytes != 0);
    struct seat seat;
    sit(&seat, me, options);
    ask(options->algorithm);
    for (size_t i = 0; i < count; i++)
        run_layouts(&seat, sizes[i][0], sizes[i][1]);
    stand(&seat);
}

static uint64_t calls_by(const struct seat *seat, const char *algorithm)
{
    struct smfar_path path;
    for (int i = 0; smfar_comm_path(seat->comm, i, &path) == SMFAR_OK; i++)
        if (strcmp(path.algorithm, algorithm) == 0) return path.calls;
    return 0;
}

/* A split gives the bits of one launch by the same way, in legs and in steps, wherever tensors lie;
 * it is not taken where every rank is to get the sums. */
static void same_bits(struct ranks_thread *me)
{
    static const size_t sizes[][2] = {{3, 16}, {64, 100}, {41, 256}, {6, 3000}};
    static float kept[MOST_SPLIT][2][LARGEST];
    float(*want)[LARGEST] = kept[me->rank];
    struct seat seat;
    uint64_t calls = 0;
    sit(&seat, me, me->extra);
    const char *split = ((const struct options *)me->extra)->algorithm;
    const char *whole = strcmp(split, "split_mc") ? "twoshot_peer" : "twoshot_mc";
    for (unsigned i = 0; i < 4 * 8 * 2; i++) {
        struct one one = {.rows = sizes[i % 4][0],
                          .hidden = sizes[i % 4][1],
                          .weighted = (int)(i & 1),
                          .windows = i / 4 % 8,
                          .layout = i / 32 ? SMFAR_SUMS_SHARDED : SMFAR_SUMS_NONE,
                          .residual = i / 32 != 0};
        size_t count = one.rows * one.hidden;
        ask(whole);
        run_one(&seat, &one);
        memcpy(want[0], tensor(&seat, &one, RESULT), sizeof want[0]);
        memcpy(want[1], tensor(&seat, &one, SUMS), sizeof want[1]);
        ask(split);
        run_one(&seat, &one);
        EXPECT(!memcmp(want[0], tensor(&seat, &one, RESULT), count * sizeof(float)) &&
                   !memcmp(want[1], tensor(&seat, &one, SUMS), sizeof want[1]),
               "%s of %zu x %zu, windows %u: rank %d of %d has other bits", split, one.rows,
               one.hidden, one.windows, seat.rank, seat.ranks);
        EXPECT_EQ(calls_by(&seat, split), ++calls);
    }
    struct one spread = {.rows = 3, .hidden = 16, .layout = SMFAR_SUMS_REPLICATED};
    run_one(&seat, &spread);
    EXPECT_EQ(calls_by(&seat, split), calls);
    stand(&seat);
}

static void expect_refusal(const struct seat *seat, const struct smfar_rms_norm *norm,
                           enum smfar_status want, const char *words)
{
    float *x = seat->plain[X];
    enum smfar_status status = smfar_all_reduce_rms_norm(x, x, norm, seat->comm, NULL);
    EXPECT(status == want, "%s instead of %s (%s)", smfar_status_name(status),
           smfar_status_name(want), words);
    EXPECT(strstr(smfar_last_error(), words), "\"%s\" is not in: %s", words, smfar_last_error());
}

static void refusals(struct ranks_thread *me)
{
    struct seat seat;
    sit(&seat, me, me->extra);
    struct smfar_rms_norm good = {.rows = 2, .hidden = 8, .dtype = SMFAR_F32, .eps = EPS}, norm;
    expect_refusal(&seat, NULL, SMFAR_ERR_ARGUMENT, "NULL");
    norm = good, norm.hidden = 0;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "rows of 0 elements");
    norm = good, norm.eps = NAN;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "eps is");
    norm = good, norm.weight = seat.plain[SUMS], norm.weight_dtype = SMFAR_I32;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "a weight of i32");
    norm = good, norm.residual = seat.plain[SUMS];
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "SMFAR_SUMS_NONE");
    norm = good, norm.sums_layout = SMFAR_SUMS_REPLICATED;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "a buffer is NULL");
    norm.sums = seat.plain[X];
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "the sums and the results share memory");
    norm.sums = seat.plain[X] + 1;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "the sums and the results share memory");
    norm.sums = seat.plain[SUMS], norm.residual = seat.plain[SUMS] + 1;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "they must be apart, or the same");
    norm.residual = seat.plain[X];
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "the residual and the results share memory");
    norm = good, norm.weight = seat.plain[X] + 1, norm.weight_dtype = SMFAR_F32;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "the weight and the results share memory");
    norm = good, norm.sums_layout = SMFAR_SUMS_SHARDED, norm.rows = (size_t)seat.ranks;
    norm.residual = seat.plain[X] + norm.hidden * (size_t)seat.rank;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "the residual and the results share memory");
    norm = good, norm.sums_layout = (enum smfar_sums)7;
    expect_refusal(&seat, &norm, SMFAR_ERR_ARGUMENT, "no smfar_sums");
    norm = good, norm.dtype = SMFAR_F64;
    expect_refusal(&seat, &norm, SMFAR_ERR_UNSUPPORTED, "f32, f16 and bf16");
    norm = good, norm.rows = 1, norm.hidden = 5000;
    expect_refusal(&seat, &norm, SMFAR_ERR_UNSUPPORTED, "SMFAR_CHUNK_BYTES");
    struct one one = {.rows = 3, .hidden = 16};
    run_one(&seat, &one); /* nothing has been harmed */
    stand(&seat);
}

struct difference {
    struct options options;
    void (*change)(struct smfar_rms_norm *norm, const struct seat *seat);
    const char *words;
};

static void another_eps(struct smfar_rms_norm *norm, const struct seat *seat)
{
    (void)seat;
    norm->eps = 1e-5;
}

static void another_shape(struct smfar_rms_norm *norm, const struct seat *seat)
{
    (void)seat;
    norm->rows = 8;
    norm->hidden = 4;
}

static void another_weight(struct smfar_rms_norm *norm, const struct seat *seat)
{
    norm->weight = seat->plain[RESULT];
    norm->weight_dtype = SMFAR_F32;
}

static void another_layout(struct smfar_rms_norm *norm, const struct seat *seat)
{
    norm->sums_layout = SMFAR_SUMS_SHARDED;
    norm->residual = seat->plain[SUMS];
    norm->sums = NULL;
}

static void another_place(struct smfar_rms_norm *norm, const struct seat *seat)
{
    norm->sums = seat->inside[X];
}

static void one_differs(struct ranks_thread *me)
{
    const struct difference *difference = me->extra;
    struct seat seat;
    sit(&seat, me, &difference->options);
    struct smfar_rms_norm norm = {.rows = 4,
                                  .hidden = 8,
                                  .dtype = SMFAR_F32,
                                  .eps = EPS,
                                  .sums_layout = SMFAR_SUMS_REPLICATED,
                                  .sums = seat.inside[SUMS]};
    if (me->rank == 1) difference->change(&norm, &seat);
    enum smfar_status status =
        smfar_all_reduce_rms_norm(seat.plain[X], seat.plain[X], &norm, seat.comm, NULL);
    if (status == SMFAR_OK) status = smfar_comm_wait(seat.comm, smfar_comm_sequence(seat.comm), -1);
    EXPECT(status == SMFAR_ERR_MISMATCH, "%s: %s", smfar_status_name(status), smfar_last_error());
    EXPECT(strstr(smfar_last_error(), difference->words), "\"%s\" is not in: %s", difference->words,
           smfar_last_error());
    stand(&seat);
}

int main(void)
{
    struct options options[] = {{0, 0, NULL},
                                {1, 0, NULL},
                                {0, 4096, NULL},
                                {1, 4096, NULL},
                                {0, 16384, "split_mc"},
                                {0, 16384, "split_peer"},
                                {0, 0, "split_mc"},
                                {1, 0, "split_peer"},
                                {0, 262144, "split_mc"},
                                {0, 262144, "split_peer"}};
    struct difference differences[] = {{{0, 0, NULL}, another_eps, "eps 1e-05"},
                                       {{0, 0, NULL}, another_shape, "rows of 4"},
                                       {{1, 0, NULL}, another_weight, "f32 weight"},
                                       {{1, 0, NULL}, another_layout, "sharded residual"},
                                       {{0, 0, NULL}, another_place, "of the window"}};
    for (int i = 0; i < 8; i++)
        for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
            ranks_run(ranks, all_layouts, &options[i]);
    for (int ranks = 2; ranks <= MOST_SPLIT; ranks += ranks > 4 ? 3 : 1)
        for (int over_peers = 0; over_peers < 2; over_peers++)
            ranks_run(ranks, same_bits, &options[over_peers + (ranks % 2 ? 6 : 8)]);
    ranks_run(3, refusals, &options[2]);
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++)
        ranks_run(3, one_differs, &differences[i]);
    switch_expect_no_leaks();
    return unit_end();
}
