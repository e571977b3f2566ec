/* Checks one reduce-scatter, or a reduce to a root by the same kernel: one part, which the root
 * alone wants. Every region that a kernel may touch lies between two guards; inputs must stay as
 * they are, but for what a rank's result replaces. */
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "check.h"
#include "scene.h"

struct seat {
    struct region window, src, dst;
    size_t part, src_part; /* bytes from one part to the next */
    int staged;
    unsigned char *input; /* the parts one after another */
};

struct scene {
    const struct check_case *c;
    size_t bytes, element; /* bytes of one part */
    int parts, root;       /* root: -1 where every rank has a part of its own */
    struct seat seat[RIG_MAX_RANKS];
    struct expected expected;
};

static int is_staged(const struct check_case *c, int r)
{
    return c->place == STAGED || c->place == STAGED_IN_PLACE || (c->place == COPY_IN && r % 2);
}

/* COPY_OUT is in place in the window here: nothing is ever copied out of it. */
static int is_in_place(const struct check_case *c)
{
    return c->place == STAGED_IN_PLACE || c->place == COPY_OUT;
}

static int wants(const struct scene *s, int r) { return s->root < 0 || s->root == r; }

/* Which part is rank r's. */
static size_t own(const struct scene *s, int r) { return s->root < 0 ? (size_t)r : 0; }

static size_t span(const struct scene *s, size_t stride)
{
    return stride * (size_t)(s->parts - 1) + s->bytes;
}

/* ---- before ---- */

static void fill(const struct scene *s, const struct seat *seat, const struct region *region,
                 size_t stride)
{
    for (size_t p = 0; p < (size_t)s->parts; p++)
        memcpy(region_data(region) + p * stride, seat->input + p * s->bytes, s->bytes);
}

static void place_rank(struct scene *s, struct rig *rig, int r, uint64_t *state)
{
    const struct check_case *c = s->c;
    const struct rig_rank *me = &rig->rank[r];
    struct seat *seat = &s->seat[r];
    CUdeviceptr heap = me->window + RIG_HEAP + SCENE_GUARD + (size_t)c->offset * s->element;
    CUdeviceptr src = me->src + SCENE_GUARD + s->element * random_below(state, 8);
    /* often as the window's parts, so that there are vectors */
    CUdeviceptr dst = me->dst + SCENE_GUARD + s->element * (size_t)c->offset;
    if (random_below(state, 4) == 0) dst += s->element * random_below(state, 8);
    seat->staged = is_staged(c, r);
    seat->part = seat->staged ? (s->bytes + 15) / 16 * 16 : s->bytes;
    seat->src_part = s->bytes + s->element * random_below(state, 4);
    if (c->place == UNEQUAL) {
        heap += 256u * (unsigned)r + case_shift(c, s->element) * random_below(state, 8);
        seat->part += case_shift(c, s->element) * random_below(state, 40);
    }
    region_begin(&seat->window, heap, span(s, seat->part), state);
    if (seat->staged) {
        region_begin(&seat->src, src, span(s, seat->src_part), state);
        fill(s, seat, &seat->src, seat->src_part);
    } else {
        fill(s, seat, &seat->window, seat->part);
    }
    if (!is_in_place(c) && wants(s, r)) region_begin(&seat->dst, dst, s->bytes, state);
}

static void scene_begin(struct scene *s, struct rig *rig)
{
    uint64_t state = ~s->c->seed;
    unsigned char *inputs[RIG_MAX_RANKS];
    size_t count = s->c->count * (size_t)s->parts;
    for (int r = 0; r < rig->ranks; r++) {
        struct seat *seat = &s->seat[r];
        inputs[r] = seat->input = allocate(count * s->element);
        case_input(s->c, r, count, seat->input);
        place_rank(s, rig, r, &state);
        region_write(&seat->window, rig, r);
        region_write(&seat->src, rig, r);
        region_write(&seat->dst, rig, r);
    }
    expected_make(&s->expected, s->c, inputs, count);
}

/* ---- the launch ---- */

/* The region that rank r's result is in, and where in it. */
static struct region *result_of(struct scene *s, int r, size_t *at_out)
{
    struct seat *seat = &s->seat[r];
    *at_out = 0;
    if (!is_in_place(s->c)) return &seat->dst;
    *at_out = own(s, r) * (seat->staged ? seat->src_part : seat->part);
    return seat->staged ? &seat->src : &seat->window;
}

static void launch(struct scene *s, struct rig *rig)
{
    for (int i = 0; i < rig->ranks; i++) {
        struct kargs args;
        size_t at;
        int r = check_arguments(rig, s->c, i, &args);
        const struct region *result = result_of(s, r, &at);
        args.src = s->seat[r].src.at;
        args.dst = wants(s, r) ? result->at + at : 0;
        args.offset = s->seat[r].window.at - args.window;
        if (s->parts > 1) {
            args.part = s->seat[r].part;
            args.src_part = s->seat[r].src_part;
        }
        must(rig_launch(rig, r, s->c->id, s->c->blocks, s->c->threads, &args), "launch");
    }
    for (int r = 0; r < rig->ranks; r++)
        must(rig_synchronize(rig, r), "synchronize");
}

/* ---- after ---- */

static int check_region(const struct scene *s, int r, const struct region *region,
                        const struct region *result, size_t at)
{
    const struct seat *seat = &s->seat[r];
    int is_result = region == result && wants(s, r);
    if (region == &seat->window && seat->staged) /* the slot */
        return region_check(region, s->c, r, 0, region->bytes);
    return region_check(region, s->c, r, at, is_result ? s->bytes : 0);
}

static int check_rank(struct scene *s, struct rig *rig, int r)
{
    const volatile struct error_record *error = rig_error(rig, r);
    struct seat *seat = &s->seat[r];
    struct region *regions[] = {&seat->window, &seat->src, &seat->dst};
    size_t at;
    const struct region *result = result_of(s, r, &at);
    int faults = 0;
    for (int i = 0; i < 3; i++)
        region_read(regions[i], rig, r);
    if (error->code != 0) return complain(s->c, "error record, code %zu", r, error->code);
    if (wants(s, r))
        faults += expected_check(&s->expected, s->c, r, result->read + SCENE_GUARD + at,
                                 own(s, r) * s->c->count);
    for (int i = 0; i < 3; i++)
        faults += check_region(s, r, regions[i], result, at);
    return faults;
}

static void scene_end(struct scene *s)
{
    for (int r = 0; r < RIG_MAX_RANKS; r++) {
        region_end(&s->seat[r].window);
        region_end(&s->seat[r].src);
        region_end(&s->seat[r].dst);
        free(s->seat[r].input);
    }
    expected_end(&s->expected);
}

int check_reduce_scatter(struct rig *rig, const struct check_case *c)
{
    struct scene s = {.c = c,
                      .element = ref_bytes(kernel_rows[c->id].dtype),
                      .parts = c->rooted ? 1 : rig->ranks,
                      .root = c->rooted ? (int)(c->seed % (uint64_t)rig->ranks) : -1};
    int faults = 0;
    s.bytes = c->count * s.element;
    scene_begin(&s, rig);
    launch(&s, rig);
    for (int r = 0; r < rig->ranks; r++)
        faults += check_rank(&s, rig, r);
    scene_end(&s);
    return faults;
}
