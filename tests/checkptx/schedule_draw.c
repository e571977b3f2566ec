/* What happens in a schedule: all of it follows from the seed. */
#include <string.h>

#include "../ref/ref.h"
#include "schedule.h"

enum { VECTOR = 16 };

static size_t whole_vectors(size_t bytes) { return (bytes + VECTOR - 1) / VECTOR * VECTOR; }

static size_t draw_count(struct schedule *s)
{
    unsigned size = schedule_random(s, 16);
    if (case_is_push(s->id) && s->kind == MISSING) size = 0;
    return size < 11   ? schedule_random(s, 80)
           : size < 15 ? schedule_random(s, 500)
                       : schedule_random(s, MOST_COUNT);
}

static enum place draw_place(struct schedule *s, enum kernel_id id)
{
    static const enum place scatter[] = {IN_WINDOW, UNEQUAL, STAGED, COPY_IN};
    int well = schedule_may_end_well(s);
    if (case_is_scatter(id) || case_is_pull(id)) return scatter[well ? schedule_random(s, 4) : 0];
    if (case_has_own_slots(id)) return schedule_random(s, 2) ? STAGED_IN_PLACE : STAGED;
    return well ? (enum place)schedule_random(s, PLACES) : IN_WINDOW;
}

/* Between pushes the phases, and so the boxes, are also counted by others. */
static enum kernel_id draw_id(struct schedule *s)
{
    static const char *const others[] = {"all_reduce_oneshot_peer", "all_reduce_twoshot_peer",
                                         "all_reduce_push_peer", "all_reduce_push_mc"};
    unsigned other = case_is_push(s->id) ? schedule_random(s, 10) : 4;
    if (other >= 4) return s->id;
    return kernel_find(others[other], kernel_rows[s->id].op, kernel_rows[s->id].dtype);
}

/* In half of the pulls everything lies so that vectors move it; the others are short. */
static void draw_pull(struct schedule *s, struct step *step)
{
    case_draw_pull(&s->random, &step->c);
    step->element = schedule_random(s, 2) ? VECTOR : 1;
    if (step->element == VECTOR)
        step->c.count = step->c.count * 8 + schedule_random(s, VECTOR);
    else
        step->c.count /= 2;
    step->part_bytes = step->c.count;
    step->stride = step->element == VECTOR ? whole_vectors(step->part_bytes) : step->part_bytes;
    step->bytes = step->stride * (size_t)s->rig->ranks;
}

static void draw_step(struct schedule *s, struct step *step)
{
    enum kernel_id id = draw_id(s);
    step->c = (struct check_case){
        .id = id,
        .seed = random_next(&s->random),
        .ranks = s->rig->ranks,
        .count = schedule_is_barrier(s) ? 0 : draw_count(s),
        .offset = schedule_random(s, 3) || case_has_own_slots(id) ? 0 : (int)schedule_random(s, 8),
        .place = draw_place(s, id)};
    if (case_is_push(id)) step->c.flags = schedule_random(s, 4) == 0;
    if (case_rounds(id)) step->c.real = schedule_random(s, 2) ? 2 : 0;
    if (norm_is(id)) norm_step_draw(&step->c, &step->norm);
    step->element = schedule_is_barrier(s) ? 1 : ref_bytes(kernel_rows[id].dtype);
    step->bytes = step->part_bytes = step->c.count * step->element;
    if (case_is_pull(id)) draw_pull(s, step);
    step->parts = case_is_scatter(id) || step->c.parted ? s->rig->ranks : 1;
    step->apart = case_is_scatter(id) || case_is_pull(id);
}

/* Many are too late: in few of those is something spoilt that another rank has still to read. */
static enum kind draw_kind(struct schedule *s)
{
    static const enum kind kinds[16] = {MISSING,  DIFFERENT, ABORTED, TOO_LATE,
                                        TOO_LATE, TOO_LATE,  TOO_LATE};
    unsigned kind = schedule_random(s, 16);
    return s->rig->ranks > 1 ? kinds[kind] : ALL_WELL;
}

void schedule_draw(struct schedule *s)
{
    s->kind = draw_kind(s);
    s->chosen = (int)schedule_random(s, (unsigned)s->rig->ranks);
    s->hash = 1 + (uint32_t)(random_next(&s->random) >> 33); /* nor is a later launch's 0 */
    s->launches = schedule_may_end_well(s) ? 1 + (int)schedule_random(s, MOST_LAUNCHES) : 2;
    int hurried = s->kind == MISSING && !case_is_push(s->id); /* a word waits behind packets */
    s->timeout_ns = hurried               ? SHORT_TIMEOUT_NS
                    : s->kind == TOO_LATE ? 1ull << (13 + schedule_random(s, 6))
                                          : TIMEOUT_NS;
    for (int i = 0; i < s->launches; i++)
        draw_step(s, &s->step[i]);
    s->lost =
        !schedule_takes_part(s, s->chosen) && case_is_push(s->step[0].c.id) && s->step[0].c.count;
    if (s->lost) s->lost = (int)schedule_random(s, 3);
    s->hash_step = schedule_random(s, 2);
    s->replayed = s->kind == ALL_WELL && case_is_push(s->id) && schedule_random(s, 4) == 0;
}

/* What a launch of its kind alone uses: not so the slots of two-shots. */
static void place_slots(const struct step *step, struct kargs *args)
{
    int push = case_is_push(step->c.id);
    args->offset = push ? RIG_BOXES : ONESHOTS;
    args->stride = push ? BOX : SLOT;
}

/* Where launch i's data lie in this rank's window, source and destination. */
static void place_part(const struct schedule *s, int i, int r, struct kargs *args)
{
    const struct step *step = &s->step[i];
    const struct rig_rank *me = &s->rig->rank[r];
    size_t element = step->element;
    size_t slot = GUARD + (size_t)SLOT * (place_is_staged(step->c.place) ? 0 : 1 + (unsigned)i);
    uint64_t state = step->c.seed ^ (uint64_t)r;
    args->offset = RIG_HEAP + slot + (size_t)step->c.offset * element;
    if (step->c.place == UNEQUAL)
        args->offset +=
            256u * (unsigned)r + case_shift(&step->c, element) * random_below(&state, 8);
    if (case_has_own_slots(step->c.id)) place_slots(step, args);
    slot = GUARD + (size_t)SLOT * (unsigned)i;
    if (place_has_input(step->c.place))
        args->src = me->src + slot + element * random_below(&state, 4);
    if (place_has_output(step->c.place) || step->apart)
        args->dst = me->dst + slot + element * random_below(&state, 4);
    if (step->c.place == STAGED_IN_PLACE) args->dst = args->src;
    if (!case_is_scatter(step->c.id) && !step->c.parted) return;
    size_t whole = whole_vectors(step->part_bytes);
    args->src_part = element == VECTOR ? whole : step->part_bytes;
    args->part = element == VECTOR || args->src ? whole : step->part_bytes;
    if (step->c.place == UNEQUAL) args->part += element * (unsigned)r;
}

static void place_outputs(const struct step *step, int r, struct move_kargs *args)
{
    memset(args->to, 0, sizeof args->to);
    for (int of = 0; of < step->c.ranks; of++)
        if (case_pulls(&step->c, r, of))
            args->to[of] = args->common.dst + (size_t)of * step->stride;
}

void schedule_arguments(const struct schedule *s, int i, int r, int threads,
                        union arguments *args_out)
{
    const struct step *step = &s->step[i];
    struct kargs args;
    rig_arguments(s->rig, r, 0, &args);
    args.count = step->c.count;
    args.timeout_ns = s->timeout_ns;
    args.sequence = (uint64_t)i + 1;
    args.done = s->replayed ? DONE_REPLAYED : DONE_CALLED;
    args.hash = s->hash + s->hash_step * (uint32_t)i + (s->kind == DIFFERENT && r == s->chosen);
    place_part(s, i, r, &args);
    norm_step_arguments(s->rig, r, &step->c, &step->norm, GUARD + SLOT * (size_t)i, SLOT, threads,
                        &args, &args_out->norm);
    if (case_is_pull(step->c.id)) place_outputs(step, r, &args_out->move);
}
