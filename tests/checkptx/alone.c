/* Checks kernels that meet nobody: copies inside a GPU, and the kernel's part of a split
 * all-reduce, for which the streams have met. Everything that a launch is told of lies between
 * guards, and all of it but the result must be as it was; after a failure the result too, and every
 * rank must have been told.
 *
 * What a case's place and offset mean is each kernel's own: see the functions named place_. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "check.h"
#include "norm.h"
#include "scene.h"

enum { GUARD = 512, LINE = 128, POISON = 0xff };
#define HALF ((size_t)RIG_AREA / 2)

/* A stretch of a rank's memory, guards included. */
struct area {
    CUdeviceptr at;
    size_t bytes; /* 0: not used */
    unsigned char *before, *after;
};

enum { INPUT, OUTPUT, WINDOW, AREAS };

struct seat {
    struct area area[AREAS];
    size_t chunk;       /* offset of the chunk in the window */
    size_t from, count; /* elements of it that this rank reduces */
    CUdeviceptr result;
    unsigned char *input;
};

struct scene {
    const struct check_case *c;
    struct rig *rig;
    enum check_end end;
    size_t element, total, stride; /* total: elements of a rank's input */
    int apart;                     /* chunks do not lie at one offset */
    uint64_t random;
    struct seat seat[RIG_MAX_RANKS];
    unsigned char *bits;
    double *exact, *bound; /* NULL where the bits are exact */
};

static unsigned draw(struct scene *s, unsigned limit) { return random_below(&s->random, limit); }

static int is_file(const struct check_case *c, const char *file)
{
    return strcmp(kernel_rows[c->id].file, file) == 0;
}

/* ---- before ---- */

/* `bytes` at `at`, between guards, full of poison. */
static struct area *area_begin(struct scene *s, int r, int which, CUdeviceptr at, size_t bytes)
{
    struct area *area = &s->seat[r].area[which];
    *area = (struct area){at - GUARD, bytes + 2 * GUARD, NULL, NULL};
    area->before = allocate(area->bytes);
    area->after = allocate(area->bytes);
    memset(area->before, POISON, area->bytes);
    for (size_t i = 0; i < 2 * GUARD; i++)
        area->before[i < GUARD ? i : bytes + i] = (unsigned char)random_next(&s->random);
    return area;
}

static void put(const struct area *area, CUdeviceptr at, const void *data, size_t bytes)
{
    memcpy(area->before + (at - area->at), data, bytes);
}

/* From one plain buffer to another: both aligned, or one of them, or neither, alike or not. */
static void place_stage(struct scene *s)
{
    const struct check_case *c = s->c;
    for (int r = 0; r < s->rig->ranks; r++) {
        struct seat *seat = &s->seat[r];
        size_t from = c->place < 2 ? 0 : (size_t)c->offset, to = c->place % 2 ? 0 : from;
        if (c->place == COPY_OUT) to = draw(s, 16);
        CUdeviceptr src = s->rig->rank[r].src + GUARD + from;
        seat->result = s->rig->rank[r].dst + GUARD + to;
        put(area_begin(s, r, INPUT, src, s->total), src, seat->input, s->total);
        area_begin(s, r, OUTPUT, seat->result, s->total);
        seat->count = s->total;
    }
}

/* The others' inputs in the slot; my own in a buffer, aligned in half of the cases, where the
 * result goes too or to another. */
static void place_split_peer(struct scene *s)
{
    const struct check_case *c = s->c;
    size_t bytes = s->total * s->element,
           shift = s->element * (size_t)(c->place < 3 ? 0 : c->offset);
    int ranks = s->rig->ranks;
    s->stride = (bytes + LINE - 1) / LINE * LINE + LINE * draw(s, 3);
    for (int r = 0; r < ranks; r++) {
        struct seat *seat = &s->seat[r];
        CUdeviceptr src = s->rig->rank[r].src + GUARD + shift, slot = s->rig->rank[r].window;
        slot += seat->chunk = RIG_HEAP + GUARD;
        put(area_begin(s, r, INPUT, src, bytes), src, seat->input, bytes);
        seat->result = src;
        if (c->place % 2) {
            seat->result =
                s->rig->rank[r].dst + GUARD + s->element * (c->place == 1 ? 0 : draw(s, 8));
            area_begin(s, r, OUTPUT, seat->result, bytes);
        }
        area_begin(s, r, WINDOW, slot, (size_t)(ranks - 1) * s->stride);
        for (int other = 0; other < ranks; other++)
            if (other != r)
                put(&seat->area[WINDOW], slot + (size_t)(other < r ? other : other - 1) * s->stride,
                    s->seat[other].input, bytes);
        seat->count = s->total;
    }
}

/* Where rank r's share of the chunk ends: near whole lines, some shares being empty. */
static size_t cut(struct scene *s, int r, size_t begin)
{
    size_t even = s->total * (size_t)(r + 1) / (size_t)s->rig->ranks;
    size_t end = even / 64 * 64 + (draw(s, 2) ? draw(s, 9) : 0);
    if (r + 1 == s->rig->ranks || end > s->total) end = s->total;
    return end > begin ? end : begin;
}

/* Chunks at one offset, at offsets equal modulo 16, or at any; results in place, or elsewhere in
 * the window with vectors at the same places. */
static void place_split_mc(struct scene *s)
{
    const struct check_case *c = s->c;
    size_t bytes = s->total * s->element, from = 0;
    int kind = (int)c->place / 2; /* 0: one offset; 1: equal modulo 16; 2: any */
    for (int r = 0; r < s->rig->ranks; r++) {
        struct seat *seat = &s->seat[r];
        CUdeviceptr window = s->rig->rank[r].window;
        seat->chunk = RIG_HEAP + GUARD + s->element * (size_t)c->offset;
        if (kind) seat->chunk += 256u * (unsigned)r + 16 * draw(s, 4);
        if (kind == 2) seat->chunk += s->element * draw(s, 8);
        if (seat->chunk != s->seat[0].chunk) s->apart = 1;
        seat->from = from;
        from = cut(s, r, from);
        seat->count = from - seat->from;
        put(area_begin(s, r, WINDOW, window + seat->chunk, bytes), window + seat->chunk,
            seat->input, bytes);
        size_t at = seat->chunk + seat->from * s->element;
        seat->result = window + at;
        if (c->place % 2 == 0) continue;
        seat->result = window + RIG_HEAP + HALF + GUARD + 16 * draw(s, 4) + at % 16;
        area_begin(s, r, OUTPUT, seat->result, seat->count * s->element);
    }
}

static void write_place(const struct scene *s, int r)
{
    uint64_t place = s->seat[r].chunk;
    memcpy(s->rig->page + PAGE_PLACE + (size_t)r * PAGE_WORDS, &place, sizeof place);
}

static void make_input(struct scene *s, int r)
{
    s->seat[r].input = allocate(s->c->count * s->element);
    if (!is_file(s->c, "stage_peer")) return case_input(s->c, r, s->c->count, s->seat[r].input);
    for (size_t i = 0; i < s->total; i++)
        s->seat[r].input[i] = (unsigned char)random_next(&s->random);
}

static void begin(struct scene *s)
{
    const struct check_case *c = s->c;
    must(rig_reset(s->rig, 0), "reset");
    for (int r = 0; r < s->rig->ranks; r++)
        make_input(s, r);
    if (is_file(c, "stage_peer"))
        place_stage(s);
    else if (is_file(c, "all_reduce_split_peer"))
        place_split_peer(s);
    else
        place_split_mc(s);
    for (int r = 0; r < s->rig->ranks; r++) {
        write_place(s, r);
        for (int i = 0; i < AREAS; i++) {
            struct area *area = &s->seat[r].area[i];
            if (area->bytes)
                must(rig_write(s->rig, r, area->at, area->before, area->bytes), "write");
        }
        uint32_t failed = s->end == END_FAILED;
        must(rig_write(s->rig, r, s->rig->rank[r].window + SIGNALS_FAILED, &failed, 4), "write");
    }
    if (s->end == END_ABORTED) *(volatile uint32_t *)(s->rig->page + PAGE_ABORT) = 1;
}

static void compute_reference(struct scene *s)
{
    const struct kernel_row *row = &kernel_rows[s->c->id];
    const void *inputs[RIG_MAX_RANKS];
    struct ref_call call = {row->op, row->dtype, s->c->ranks, s->total, inputs, s->c->scale};
    if (is_file(s->c, "stage_peer")) return;
    for (int r = 0; r < s->rig->ranks; r++)
        inputs[r] = s->seat[r].input;
    s->bits = allocate(s->total * s->element);
    ref_all_reduce_twoshot_peer(&call, s->bits);
    if (!row->multicast || !s->c->real || s->apart) return;
    s->exact = allocate(s->total * sizeof *s->exact);
    s->bound = allocate(s->total * sizeof *s->bound);
    ref_all_reduce_twoshot_mc(&call, s->exact, s->bound);
}

/* ---- the launch ---- */

static uint64_t sequence_of(const struct check_case *c) { return c->seed | 1; }

static void launch(const struct scene *s)
{
    const struct check_case *c = s->c;
    for (int r = 0; r < s->rig->ranks; r++) {
        const struct seat *seat = &s->seat[r];
        struct kargs args;
        rig_arguments(s->rig, r, 0, &args);
        if (seat->area[INPUT].bytes) args.src = seat->area[INPUT].at + GUARD;
        args.dst = seat->result;
        args.offset = seat->chunk;
        args.stride = (uint32_t)s->stride;
        args.at = seat->from * s->element;
        args.count = seat->count;
        args.sequence = sequence_of(c);
        args.scale = c->scale;
        must(rig_launch(s->rig, r, c->id, c->blocks, c->threads, &args), "launch");
    }
    for (int r = 0; r < s->rig->ranks; r++)
        must(rig_synchronize(s->rig, r), "synchronize");
}

/* ---- after ---- */

static int wrong(const struct scene *s, int r, const char *what, size_t index)
{
    static const char *const ends[] = {"", ", after a failure", ", aborted"};
    printf("WRONG ");
    case_print(s->c, stdout);
    printf("%s, seed %llu: rank %d: %s (%zu)\n", ends[s->end], (unsigned long long)s->c->seed, r,
           what, index);
    return 1;
}

static int is_right(const struct scene *s, int r, const unsigned char *got, size_t i)
{
    const struct seat *seat = &s->seat[r];
    enum smfar_dtype dtype = kernel_rows[s->c->id].dtype;
    if (!s->bits) return got[i] == seat->input[i];
    size_t at = seat->from + i;
    if (s->exact) /* written so that NaN is wrong */
        return fabs(ref_load_double(dtype, got, i) - s->exact[at]) <= s->bound[at];
    return memcmp(got + i * s->element, s->bits + at * s->element, s->element) == 0 ||
           (isnan(ref_load_double(dtype, got, i)) && isnan(ref_load_double(dtype, s->bits, at)));
}

/* Everything of the area but the result is as it was; and so is that, unless all went well. */
static int check_area(const struct scene *s, int r, const struct area *area)
{
    const struct seat *seat = &s->seat[r];
    CUdeviceptr begin = seat->result, end = begin + seat->count * s->element;
    if (area->bytes) must(rig_read(s->rig, r, area->after, area->at, area->bytes), "read");
    for (size_t i = 0; i < area->bytes; i++) {
        CUdeviceptr at = area->at + i;
        if (s->end == END_WELL && at >= begin && at < end) continue;
        if (area->before[i] != area->after[i]) return wrong(s, r, "byte was changed", i);
    }
    if (s->end != END_WELL || begin < area->at || begin >= area->at + area->bytes) return 0;
    for (size_t i = 0; i < seat->count; i++)
        if (!is_right(s, r, area->after + (begin - area->at), i))
            return wrong(s, r, "element is wrong", i);
    return 0;
}

/* Left undone here, and told to all; or nothing of the sort. */
static int check_told(const struct scene *s, int r)
{
    uint32_t failed = 0, bad = s->end != END_WELL;
    must(rig_read(s->rig, r, &failed, s->rig->rank[r].window + SIGNALS_FAILED, 4), "read");
    if (failed != bad) return wrong(s, r, "its signals say failed", failed);
    if (rig_released(s->rig, r) != (bad ? sequence_of(s->c) : 0))
        return wrong(s, r, "says it has left undone", rig_released(s->rig, r));
    if (*(volatile uint32_t *)(s->rig->page + PAGE_ABORT) != bad)
        return wrong(s, r, "the abort word", !bad);
    if (rig_done(s->rig, r)) return wrong(s, r, "marked done", rig_done(s->rig, r));
    if (rig_error(s->rig, r)->code)
        return wrong(s, r, "an error record", rig_error(s->rig, r)->code);
    return 0;
}

static int check_apart(const struct scene *s, int r)
{
    uint64_t apart = *(volatile uint64_t *)(s->rig->page + PAGE_APART + 8 * (size_t)r);
    uint64_t expected = s->apart && s->end == END_WELL ? sequence_of(s->c) : 0;
    return apart == expected ? 0 : wrong(s, r, "tells of offsets apart", apart);
}

static void finish(struct scene *s)
{
    for (int r = 0; r < s->rig->ranks; r++) {
        for (int i = 0; i < AREAS; i++) {
            free(s->seat[r].area[i].before);
            free(s->seat[r].area[i].after);
        }
        free(s->seat[r].input);
    }
    free(s->bits);
    free(s->exact);
    free(s->bound);
    must(rig_reset(s->rig, 0), "reset");
}

/* The slot holds seven others' inputs, and the window two halves. */
static size_t most_elements(const struct check_case *c, size_t element)
{
    size_t room = HALF - 8 * LINE * RIG_MAX_RANKS;
    if (is_file(c, "all_reduce_split_peer") && c->ranks > 2) room = room * 2 / (size_t)c->ranks;
    return room / element;
}

int check_alone(struct rig *rig, const struct check_case *c, enum check_end end)
{
    struct scene s = {.c = c, .rig = rig, .end = end, .random = ~c->seed, .total = c->count};
    int plain = kernel_rows[c->id].dtype == SMFAR_DTYPES, faults = 0; /* bytes */
    s.element = plain ? 1 : ref_bytes(kernel_rows[c->id].dtype);
    if (s.total > most_elements(c, s.element)) s.total = most_elements(c, s.element);
    begin(&s);
    compute_reference(&s);
    launch(&s);
    for (int r = 0; r < rig->ranks; r++) {
        for (int i = 0; i < AREAS; i++)
            faults += check_area(&s, r, &s.seat[r].area[i]);
        faults += check_told(&s, r) + check_apart(&s, r);
    }
    finish(&s);
    return faults;
}

int check_alone_seed(struct rig *rig, enum kernel_id id, uint64_t seed)
{
    static const unsigned most[] = {80, 80, 500, 3000};
    unsigned char level[AXES];
    struct check_case c;
    uint64_t random = ~seed;
    for (int a = 0; a < AXES; a++)
        level[a] = (unsigned char)random_below(&random, (unsigned)axis_levels[a]);
    level[RANKS] = (unsigned char)(rig->ranks - 1);
    case_make(id, level, seed, &c);
    c.count = random_below(&random, most[random_below(&random, 4)]);
    if (random_below(&random, 2)) c.threads = 32;
    if (norm_is(id)) {
        must(rig_reset(rig, 0), "reset"); /* whatever has failed before */
        return check_rms_norm(rig, &c);
    }
    enum check_end end = random_below(&random, 8) ? END_WELL : END_FAILED;
    /* nobody else goes on after an abort */
    if (end == END_FAILED && is_file(&c, "all_reduce_split_mc") && random_below(&random, 2))
        end = END_ABORTED;
    return check_alone(rig, &c, end);
}
