/* Checks one all-reduce. Every region that a kernel may touch lies between two guards. */
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "check.h"
#include "scene.h"

struct scene {
    const struct check_case *c;
    size_t bytes, element;
    struct region window[RIG_MAX_RANKS], src[RIG_MAX_RANKS], dst[RIG_MAX_RANKS];
    unsigned char *input[RIG_MAX_RANKS];
    struct expected expected;
};

/* ---- before ---- */

static void begin(struct scene *s, struct region *region, CUdeviceptr at, const void *data,
                  uint64_t *state)
{
    region_begin(region, at, s->bytes, state);
    if (data) memcpy(region_data(region), data, s->bytes);
}

/* Vectors need both buffers aligned, or each of the two. */
static unsigned draw_shift(const struct check_case *c, uint64_t *state)
{
    int aligned = case_is_push(c->id) && random_below(state, 2);
    return random_below(state, aligned ? 1 : 8);
}

/* Offsets in elements past a boundary: the buffers' differ from the window's and among ranks. */
static void place_rank(struct scene *s, struct rig *rig, int r, uint64_t *state)
{
    const struct check_case *c = s->c;
    const struct rig_rank *me = &rig->rank[r];
    size_t element = s->element;
    CUdeviceptr heap = me->window + RIG_HEAP + SCENE_GUARD + (size_t)c->offset * element;
    if (c->place == UNEQUAL)
        heap += 256u * (unsigned)r + case_shift(c, element) * random_below(state, 8);
    CUdeviceptr src = me->src + SCENE_GUARD + element * draw_shift(c, state);
    CUdeviceptr dst = me->dst + SCENE_GUARD + element * draw_shift(c, state);
    if (!case_is_push(c->id))
        begin(s, &s->window[r], heap, place_has_input(c->place) ? NULL : s->input[r], state);
    if (place_has_input(c->place)) begin(s, &s->src[r], src, s->input[r], state);
    if (place_has_output(c->place) && c->place != STAGED_IN_PLACE)
        begin(s, &s->dst[r], dst, NULL, state);
}

static void scene_begin(struct scene *s, struct rig *rig)
{
    uint64_t state = ~s->c->seed;
    for (int r = 0; r < rig->ranks; r++) {
        s->input[r] = allocate(s->bytes);
        case_input(s->c, r, s->c->count, s->input[r]);
        place_rank(s, rig, r, &state);
        region_write(&s->window[r], rig, r);
        region_write(&s->src[r], rig, r);
        region_write(&s->dst[r], rig, r);
    }
    expected_make(&s->expected, s->c, s->input, s->c->count);
}

/* ---- the launch ---- */

static void launch(const struct scene *s, struct rig *rig)
{
    for (int i = 0; i < rig->ranks; i++) {
        struct kargs args;
        int r = check_arguments(rig, s->c, i, &args);
        args.src = s->src[r].at;
        args.dst = s->c->place == STAGED_IN_PLACE ? s->src[r].at : s->dst[r].at;
        args.offset = case_is_push(s->c->id) ? RIG_BOXES : s->window[r].at - args.window;
        if (case_is_push(s->c->id)) args.stride = (uint32_t)case_box_bytes(s->bytes);
        must(rig_launch(rig, r, s->c->id, case_blocks(s->c, r), s->c->threads, &args), "launch");
    }
    for (int r = 0; r < rig->ranks; r++)
        must(rig_synchronize(rig, r), "synchronize");
}

/* ---- after ---- */

/* Where rank r's result is. */
static const struct region *result_of(const struct scene *s, int r)
{
    if (s->c->place == STAGED_IN_PLACE) return &s->src[r];
    return place_has_output(s->c->place) ? &s->dst[r] : &s->window[r];
}

/* Whoever takes a packet clears it. */
static int check_boxes(const struct scene *s, const struct rig *rig, int r)
{
    size_t at, bytes = 2 * (size_t)rig->ranks * case_box_bytes(s->bytes);
    if (!case_is_push(s->c->id)) return 0;
    must(rig_find_packet(rig, r, bytes, &at), "boxes");
    return at < bytes ? complain(s->c, "byte %zu of the boxes is left", r, at) : 0;
}

static int check_rank(struct scene *s, struct rig *rig, int r)
{
    const volatile struct error_record *error = rig_error(rig, r);
    region_read(&s->window[r], rig, r);
    region_read(&s->src[r], rig, r);
    region_read(&s->dst[r], rig, r);
    if (error->code != 0) return complain(s->c, "error record, code %zu", r, error->code);
    const unsigned char *got = result_of(s, r)->read + SCENE_GUARD;
    int faults = expected_check(&s->expected, s->c, r, got, 0) + check_boxes(s, rig, r);
    if (memcmp(got, result_of(s, 0)->read + SCENE_GUARD, s->bytes) != 0)
        faults += complain(s->c, "not the bits of rank 0 (%zu bytes)", r, s->bytes);
    faults += region_check(&s->window[r], s->c, r, 0, s->bytes);
    faults += region_check(&s->src[r], s->c, r, 0, s->c->place == STAGED_IN_PLACE ? s->bytes : 0);
    return faults + region_check(&s->dst[r], s->c, r, 0, s->bytes);
}

static void scene_end(struct scene *s)
{
    for (int r = 0; r < RIG_MAX_RANKS; r++) {
        region_end(&s->window[r]);
        region_end(&s->src[r]);
        region_end(&s->dst[r]);
        free(s->input[r]);
    }
    expected_end(&s->expected);
}

int check_all_reduce(struct rig *rig, const struct check_case *c)
{
    struct scene s = {.c = c, .element = ref_bytes(kernel_rows[c->id].dtype)};
    int faults = 0;
    s.bytes = c->count * s.element;
    scene_begin(&s, rig);
    launch(&s, rig);
    for (int r = 0; r < rig->ranks; r++)
        faults += check_rank(&s, rig, r);
    scene_end(&s);
    return faults;
}
