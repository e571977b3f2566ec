/* Checks one pull: every rank reads what some ranks have for it, all of their input or a part of
 * its own. Every region that a kernel may touch lies between two guards, each output's too; inputs
 * must stay as they are. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "scene.h"

struct seat {
    struct region window, src, out[RIG_MAX_RANKS];
    size_t part, src_part; /* bytes from one part to the next */
    int staged;
    CUdeviceptr to[RIG_MAX_RANKS]; /* where each rank's data go, or 0 */
    unsigned char *input;          /* the parts one after another */
};

struct scene {
    const struct check_case *c;
    size_t parts, shift; /* shift: of inputs in the window, from a vector's boundary */
    uint64_t random;
    struct seat seat[RIG_MAX_RANKS];
};

static unsigned draw(struct scene *s, unsigned limit) { return random_below(&s->random, limit); }

/* Often none, so that there are vectors. */
static size_t draw_shift(struct scene *s) { return draw(s, 2) ? draw(s, 16) : 0; }

static size_t whole_vectors(size_t bytes) { return (bytes + 15) / 16 * 16; }

static size_t span(const struct scene *s, size_t stride)
{
    return stride * (s->parts - 1) + s->c->count;
}

/* Which part of an input is for rank r. */
static size_t own(const struct scene *s, int r) { return s->parts > 1 ? (size_t)r : 0; }

static int sends(const struct scene *s, int r)
{
    for (int other = 0; other < s->c->ranks; other++)
        if (case_pulls(s->c, other, r)) return 1;
    return 0;
}

static int is_staged(const struct scene *s, int r)
{
    enum place place = s->c->place;
    return sends(s, r) && (place_is_staged(place) || (place == COPY_IN && r % 2));
}

/* COPY_OUT is in place in the window here: nothing is ever copied out of it. */
static int is_in_place(const struct check_case *c)
{
    return c->place == STAGED_IN_PLACE || c->place == COPY_OUT;
}

/* ---- before ---- */

static void fill(const struct scene *s, const struct seat *seat, const struct region *region,
                 size_t stride)
{
    for (size_t p = 0; p < s->parts; p++)
        memcpy(region_data(region) + p * stride, seat->input + p * s->c->count, s->c->count);
}

static void place_input(struct scene *s, const struct rig_rank *me, int r)
{
    struct seat *seat = &s->seat[r];
    CUdeviceptr heap = me->window + RIG_HEAP + SCENE_GUARD + s->shift;
    CUdeviceptr src = me->src + SCENE_GUARD + draw_shift(s);
    seat->staged = is_staged(s, r);
    seat->part = seat->staged || draw(s, 2) ? whole_vectors(s->c->count) : s->c->count;
    seat->src_part = draw(s, 2) ? whole_vectors(s->c->count) : s->c->count + draw(s, 40);
    if (s->c->place == UNEQUAL) {
        heap += 256u * (unsigned)r + draw_shift(s);
        seat->part += draw_shift(s);
    }
    region_begin(&seat->window, heap, span(s, seat->part), &s->random);
    if (seat->staged) {
        region_begin(&seat->src, src, span(s, seat->src_part), &s->random);
        fill(s, seat, &seat->src, seat->src_part);
    } else if (sends(s, r)) {
        fill(s, seat, &seat->window, seat->part);
    }
}

/* In place my own part is where it should go: in the window, or where it is staged from. */
static void place_outputs(struct scene *s, const struct rig_rank *me, int r)
{
    struct seat *seat = &s->seat[r];
    size_t step = whole_vectors(s->c->count) + 2 * SCENE_GUARD + 16;
    for (int of = 0; of < s->c->ranks; of++) {
        if (!case_pulls(s->c, r, of)) continue;
        if (of == r && is_in_place(s->c)) {
            seat->to[of] = seat->staged ? seat->src.at + own(s, r) * seat->src_part
                                        : seat->window.at + own(s, r) * seat->part;
            continue;
        }
        seat->to[of] = me->dst + SCENE_GUARD + (size_t)of * step + draw_shift(s);
        region_begin(&seat->out[of], seat->to[of], s->c->count, &s->random);
    }
}

static void scene_begin(struct scene *s, struct rig *rig)
{
    int level = s->c->offset;
    s->shift = level ? 2 * (size_t)level - 1 + draw(s, 3) : 0;
    for (int r = 0; r < rig->ranks; r++) {
        struct seat *seat = &s->seat[r];
        seat->input = allocate(s->c->count * s->parts);
        case_input(s->c, r, s->c->count * s->parts, seat->input);
        place_input(s, &rig->rank[r], r);
        place_outputs(s, &rig->rank[r], r);
        region_write(&seat->window, rig, r);
        region_write(&seat->src, rig, r);
        for (int of = 0; of < rig->ranks; of++)
            region_write(&seat->out[of], rig, r);
    }
}

/* ---- the launch ---- */

static void launch(struct scene *s, struct rig *rig)
{
    for (int i = 0; i < rig->ranks; i++) {
        struct move_kargs args;
        int r = check_arguments(rig, s->c, i, &args.common);
        const struct seat *seat = &s->seat[r];
        memset(args.to, 0, sizeof args.to);
        memcpy(args.to, seat->to, sizeof seat->to);
        args.common.src = seat->src.at;
        args.common.offset = seat->window.at - args.common.window;
        if (s->parts > 1) {
            args.common.part = seat->part;
            args.common.src_part = seat->src_part;
        }
        must(rig_launch(rig, r, s->c->id, s->c->blocks, s->c->threads, &args.common), "launch");
    }
    for (int r = 0; r < rig->ranks; r++)
        must(rig_synchronize(rig, r), "synchronize");
}

/* ---- after ---- */

static int check_output(struct scene *s, struct rig *rig, int r, int of)
{
    struct region *region = &s->seat[r].out[of];
    const unsigned char *got = region_read(region, rig, r);
    const unsigned char *want = s->seat[of].input + own(s, r) * s->c->count;
    for (size_t i = 0; got && i < s->c->count; i++)
        if (got[i] != want[i]) return complain(s->c, "byte %zu of an output is wrong", r, i);
    return region_check(region, s->c, r, 0, s->c->count);
}

static int check_rank(struct scene *s, struct rig *rig, int r)
{
    const volatile struct error_record *error = rig_error(rig, r);
    struct seat *seat = &s->seat[r];
    int faults = 0;
    if (error->code != 0) return complain(s->c, "error record, code %zu", r, error->code);
    for (int of = 0; of < rig->ranks; of++)
        faults += check_output(s, rig, r, of);
    region_read(&seat->window, rig, r);
    region_read(&seat->src, rig, r);
    faults += region_check(&seat->window, s->c, r, 0, seat->staged ? seat->window.bytes : 0);
    return faults + region_check(&seat->src, s->c, r, 0, 0);
}

static void scene_end(struct scene *s)
{
    for (int r = 0; r < RIG_MAX_RANKS; r++) {
        region_end(&s->seat[r].window);
        region_end(&s->seat[r].src);
        for (int of = 0; of < RIG_MAX_RANKS; of++)
            region_end(&s->seat[r].out[of]);
        free(s->seat[r].input);
    }
}

int check_pull(struct rig *rig, const struct check_case *c)
{
    struct scene s = {.c = c, .parts = c->parted ? (size_t)rig->ranks : 1, .random = ~c->seed};
    int faults = 0;
    scene_begin(&s, rig);
    launch(&s, rig);
    for (int r = 0; r < rig->ranks; r++)
        faults += check_rank(&s, rig, r);
    scene_end(&s);
    return faults;
}
