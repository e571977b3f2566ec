/* One schedule: a few launches in a row on every rank, in checked mode, turn by turn. What each
 * launch leaves is copied away right behind it on its stream, while other ranks may still be at it
 * and before the next launch uses the memory again. Some schedules are ones in which a rank is
 * missing, different, aborted, or too late. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../csrc/soft/soft.h"
#include "../ref/ref.h"
#include "../soft/steps.h"
#include "check.h"
#include "scene.h"
#include "schedule.h"
#include "text.h"

/* ---- the software switch's own functions ---- */

static void (*hold)(uint64_t);
static int (*take_turns)(unsigned, int (*)(void *), void *, uint64_t *);
static unsigned (*last_steps)(unsigned, struct soft_step *, unsigned);

static void find_functions(const struct driver *driver)
{
    Dl_info info;
    void *function, *library = NULL;
    memcpy(&function, &driver->cuInit, sizeof function);
    if (dladdr(function, &info)) library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!library) abort();
    void *symbols[] = {dlsym(library, "soft_hold"), dlsym(library, "soft_take_turns"),
                       dlsym(library, "soft_last_steps")};
    memcpy(&hold, &symbols[0], sizeof hold);
    memcpy(&take_turns, &symbols[1], sizeof take_turns);
    memcpy(&last_steps, &symbols[2], sizeof last_steps);
    if (!hold || !take_turns || !last_steps) abort();
}

/* ---- reports ---- */

static int wrong(const struct schedule *s, int i, int r, const char *what, uint64_t value)
{
    static const char *const kinds[] = {"", ", a rank missing", ", a rank different", ", aborted",
                                        ", any rank too late"};
    printf("WRONG seed %llu, ", (unsigned long long)s->seed);
    case_print(&s->step[i].c, stdout);
    printf("%s: launch %d, rank %d: %s (%llu)\n", kinds[s->kind], i, r, what,
           (unsigned long long)value);
    return 1;
}

static void print_steps(const struct schedule *s)
{
    for (int r = 0; r < s->rig->ranks; r++) {
        struct soft_step steps[STEPS_SHOWN];
        unsigned count = last_steps((unsigned)s->rig->rank[r].device, steps, STEPS_SHOWN);
        const volatile struct error_record *error = rig_error(s->rig, r);
        printf("  rank %d", r);
        if (error->code)
            printf(", error %u in launch %llu waiting for rank %u at phase %u", error->code,
                   (unsigned long long)error->sequence - 1, error->peer, error->epoch);
        printf("; its last steps:\n");
        steps_print(steps, count, text_of);
    }
}

/* ---- before ---- */

enum { BEFORE = 0xee }; /* every byte of where results go */

static CUdeviceptr mark_of(const struct schedule *s, int r)
{
    return s->rig->rank[r].window + RIG_HEAP + RIG_AREA - GUARD;
}

static void begin_part(struct schedule *s, int i, int r)
{
    struct step *step = &s->step[i];
    struct part *part = &step->part[r];
    union arguments whole;
    size_t all = step->bytes + 2 * GUARD;
    schedule_arguments(s, i, r, 32, &whole);
    struct kargs args = whole.common;
    part->at = args.dst ? args.dst : args.window + args.offset;
    size_t parts = (size_t)step->parts;
    part->input = allocate(step->part_bytes * parts);
    part->before = allocate(all);
    part->after = allocate(all);
    if (norm_is(s->id))
        norm_step_begin(s->rig, r, &step->c, &step->norm, &whole.norm, part->input);
    else if (!schedule_is_barrier(s))
        case_input(&step->c, r, step->c.count * parts, part->input);
    memset(part->before, BEFORE, all);
    CUdeviceptr from = args.src ? args.src : args.window + args.offset;
    if (from == part->at) memcpy(part->before + GUARD, part->input, step->bytes);
    must(rig_write(s->rig, r, part->at - GUARD, part->before, all), "write");
    size_t stride = args.src ? args.src_part : args.part;
    for (size_t p = 0; p < parts && from != part->at; p++)
        must(rig_write(s->rig, r, from + p * stride, part->input + p * step->part_bytes,
                       step->part_bytes),
             "write");
}

static void expect_sums(const struct schedule *s, struct step *step)
{
    const void *inputs[RIG_MAX_RANKS];
    for (int r = 0; r < s->rig->ranks; r++)
        inputs[r] = step->part[r].input;
    struct ref_call call = {kernel_rows[s->id].op,
                            kernel_rows[s->id].dtype,
                            s->rig->ranks,
                            step->c.count * (size_t)step->parts,
                            inputs,
                            1.0 / s->rig->ranks};
    ref_all_reduce_twoshot_peer(&call, step->expected);
}

/* What no rank sends to this one, and what lies between outputs, is as before. */
static void expect_pulled(struct step *step)
{
    size_t ranks = (size_t)step->c.ranks;
    memset(step->expected, BEFORE, step->bytes * ranks);
    for (size_t r = 0; r < ranks; r++)
        for (size_t of = 0; of < ranks; of++)
            if (case_pulls(&step->c, (int)r, (int)of))
                memcpy(step->expected + r * step->bytes + of * step->stride,
                       step->part[of].input + (step->c.parted ? r * step->part_bytes : 0),
                       step->part_bytes);
}

static void expect(const struct schedule *s, struct step *step)
{
    size_t junk = step->part_bytes * (size_t)step->parts;
    step->expected = allocate(step->bytes * (size_t)(step->apart ? s->rig->ranks : 1));
    step->junk = allocate(junk);
    memset(step->junk, 0x5a, junk);
    if (norm_is(s->id))
        norm_step_expected(&step->c, &step->norm, step->expected);
    else if (case_is_pull(s->id))
        expect_pulled(step);
    else if (!schedule_is_barrier(s))
        expect_sums(s, step);
}

/* The chosen rank arrives at the phase without a launch. */
static void arrive(const struct schedule *s, uint32_t phase)
{
    uint64_t word = (uint64_t)phase << 32 | s->hash;
    size_t at = SIGNALS_ARRIVE + (phase & 1) * SIGNALS_LINE + (size_t)s->chosen * sizeof word;
    for (int r = 0; r < s->rig->ranks; r++)
        must(rig_write(s->rig, r, s->rig->rank[r].window + at, &word, sizeof word), "write");
}

static void begin(struct schedule *s)
{
    uint32_t epoch = schedule_random(s, 4) ? (uint32_t)random_next(&s->random)
                                           : UINT32_MAX - schedule_random(s, 4);
    must(rig_reset(s->rig, epoch), "reset");
    if (s->lost) arrive(s, epoch + 1);
    for (int i = 0; i < s->launches; i++)
        for (int r = 0; r < s->rig->ranks; r++)
            begin_part(s, i, r);
    for (int i = 0; i < s->launches; i++)
        expect(s, &s->step[i]);
    for (int r = 0; r < s->rig->ranks; r++)
        must(rig_write(s->rig, r, mark_of(s, r), &(uint32_t){0}, 4), "write");
    if (s->kind == ABORTED) *(volatile uint32_t *)(s->rig->page + PAGE_ABORT) = 1;
}

/* ---- the run ---- */

static uint64_t running; /* its seed, for: */

/* The switch takes any address of the process for host memory: a kernel that takes a wrong one from
 * stale memory ends the process. */
static void report_wild_address(int signal_number)
{
    char text[128];
    int length = snprintf(text, sizeof text, "WRONG seed %llu: a kernel used a wild address (%d)\n",
                          (unsigned long long)running, signal_number);
    if (write(STDOUT_FILENO, text, (size_t)length) != length) _exit(2);
    _exit(1);
}

static void mark(struct schedule *s, int i, int r)
{
    s->mark[i] = (uint32_t)i + 1;
    must(rig_write_later(s->rig, r, mark_of(s, r), &s->mark[i], sizeof s->mark[i]), "write");
}

static void look_at_marks(struct schedule *s, int i, int r)
{
    for (int other = 0; other < s->rig->ranks; other++)
        must(rig_read_later(s->rig, r, &s->seen[i][r][other], mark_of(s, other), 4), "read");
}

static void launch(struct schedule *s, int i, int r)
{
    const struct step *step = &s->step[i];
    union arguments args;
    unsigned most = s->rig->ranks > FEW_RANKS ? 2 : 3; /* blocks, and warps of each */
    int blocks = schedule_is_barrier(s) ? 1 : 1 + (int)schedule_random(s, most);
    int threads = schedule_is_barrier(s) ? 32 : 32 * (1 + (int)schedule_random(s, most));
    if (case_is_push(step->c.id)) threads += 32;
    if (s->lost == 1) blocks = 1;
    schedule_arguments(s, i, r, threads, &args);
    if (schedule_is_barrier(s)) mark(s, i, r);
    must(rig_launch(s->rig, r, step->c.id, blocks, threads, &args.common), "launch");
    if (schedule_is_barrier(s)) look_at_marks(s, i, r);
    must(rig_read_later(s->rig, r, step->part[r].after, step->part[r].at - GUARD,
                        step->bytes + 2 * GUARD),
         "read");
    /* the slots of a one-shot are nobody's own to spoil */
    if (s->kind == TOO_LATE && step->part_bytes && !case_has_own_slots(step->c.id))
        must(rig_write_later(s->rig, r, args.common.window + args.common.offset, step->junk,
                             step->part_bytes * (size_t)step->parts),
             "write");
}

static uint32_t expected_code(const struct schedule *s)
{
    static const uint32_t codes[] = {0, ERROR_TIMEOUT, ERROR_MISMATCH, 0, ERROR_TIMEOUT};
    return codes[s->kind];
}

/* The host may read a record as soon as its code is there. */
static int is_record_whole(const struct schedule *s, int r)
{
    const volatile struct error_record *error = rig_error(s->rig, r);
    uint32_t mine = s->hash + (s->kind == DIFFERENT && r == s->chosen);
    if (s->kind == TOO_LATE)
        return error->sequence &&
               error->mine == mine + s->hash_step * ((uint32_t)error->sequence - 1);
    if (error->sequence != 1 || error->mine != mine) return 0;
    if (s->kind == MISSING && s->lost == 2) return error->peer != (uint32_t)r;
    if (s->kind == MISSING) return error->peer == (uint32_t)s->chosen;
    if (s->kind != DIFFERENT) return 1;
    return (error->peer == (uint32_t)s->chosen) == (r != s->chosen) &&
           error->theirs == s->hash + (r != s->chosen);
}

/* The host may read a result as soon as its collective's number is there; here a device address is
 * a host address. */
static void look_at_results(struct schedule *s, int r)
{
    const volatile unsigned char *word = s->rig->page + PAGE_DONE + PAGE_WORDS * r;
    for (uint64_t done = *(const volatile uint64_t *)word; s->done[r] < done; s->done[r]++) {
        const struct step *step = &s->step[s->done[r]];
        const void *result = (const void *)(uintptr_t)step->part[r].at;
        if (done > (uint64_t)s->launches ||
            memcmp(result, step->expected + schedule_own(step, r), step->bytes) != 0)
            s->early_done = r + 1;
        if (done > (uint64_t)s->launches) return;
    }
}

static int look_at_records(void *context)
{
    struct schedule *s = context;
    for (int r = 0; r < s->rig->ranks; r++)
        if (rig_error(s->rig, r)->code && s->kind != ALL_WELL && !is_record_whole(s, r))
            s->late_record = r + 1;
    for (int r = 0; r < s->rig->ranks && schedule_may_end_well(s); r++)
        look_at_results(s, r);
    return --s->turns_left > 0;
}

static void run(struct schedule *s)
{
    unsigned streams = 0;
    uint64_t turns;
    hold(s->seed);
    for (int r = 0; r < s->rig->ranks; r++) {
        if (!schedule_takes_part(s, r)) continue;
        streams++;
        for (int i = 0; i < s->launches; i++)
            launch(s, i, r);
    }
    s->turns_left = MOST_TURNS;
    running = s->seed;
    signal(SIGSEGV, report_wild_address);
    signal(SIGBUS, report_wild_address);
    if (take_turns(streams, look_at_records, s, &turns)) return;
    wrong(s, 0, 0, "a stream does not come to its end, turns", turns);
    print_steps(s);
    exit(1); /* its kernels go on */
}

/* ---- after ---- */

/* They have ended when their streams have, of which no host may have been told. */
static void end_replays(struct schedule *s)
{
    for (int r = 0; r < s->rig->ranks && s->replayed; r++)
        s->done[r] = rig_done(s->rig, r) ? 0 : (uint64_t)s->launches;
}

static int check_data(const struct schedule *s, int i, int r)
{
    const struct step *step = &s->step[i];
    const struct part *part = &step->part[r];
    for (size_t k = 0; k < step->bytes + 2 * GUARD; k++) {
        int data = k >= GUARD && k < GUARD + step->bytes && schedule_may_end_well(s);
        if (data && s->done[r] <= (uint64_t)i) continue; /* left undone: anything */
        unsigned char want =
            data ? step->expected[schedule_own(step, r) + k - GUARD] : part->before[k];
        if (part->after[k] != want)
            return wrong(s, i, r, data ? "wrong byte" : "byte changed", k - GUARD);
    }
    return 0;
}

static int check_sums(const struct schedule *s, int i, int r)
{
    union arguments args;
    if (!norm_is(s->id) || s->done[r] <= (uint64_t)i) return 0;
    schedule_arguments(s, i, r, 32, &args);
    int at = norm_step_check(s->rig, r, &s->step[i].c, &s->step[i].norm, &args.norm);
    return at ? wrong(s, i, r, "wrong sum", (uint64_t)at - 1) : 0;
}

/* Whoever leaves a barrier must see what the others did before theirs. */
static int check_marks(const struct schedule *s, int i, int r)
{
    int ended = schedule_is_barrier(s) && s->done[r] > (uint64_t)i;
    for (int other = 0; ended && other < s->rig->ranks; other++)
        if (s->seen[i][r][other] < s->mark[i])
            return wrong(s, i, r, "left a barrier before rank", (uint64_t)other);
    return 0;
}

/* Does launch i's chunk lie at one offset on every rank, and what rank r has beside it as it does?
 */
static int lies_alike(const struct schedule *s, int i, int r)
{
    union arguments args;
    enum place place = s->step[i].c.place;
    schedule_arguments(s, i, r, 32, &args);
    uint64_t residual = args.norm.residual ? args.norm.residual ^ args.common.offset : 0;
    uint64_t spread = args.norm.spread ? args.norm.spread ^ args.common.offset : 0;
    return (place == IN_WINDOW || place_is_staged(place)) && ((residual | spread) & 15) == 0;
}

/* What lies alike must go through the switch. */
static int check_path(const struct schedule *s, int r)
{
    uint64_t apart = rig_apart(s->rig, r);
    if (!apart || s->kind != ALL_WELL || !lies_alike(s, (int)apart - 1, r)) return 0;
    return wrong(s, (int)apart - 1, r, "did not go through the switch", apart);
}

/* The first collective that this rank's kernels must have left, or 0. */
static uint64_t left_undone(const struct schedule *s, int r)
{
    return s->done[r] < (uint64_t)s->launches ? s->done[r] + 1 : 0;
}

/* Whoever takes a packet clears it. */
static int check_boxes(const struct schedule *s)
{
    for (int r = 0; r < s->rig->ranks && s->kind == ALL_WELL; r++) {
        size_t at, bytes = 2 * (size_t)s->rig->ranks * BOX;
        must(rig_find_packet(s->rig, r, bytes, &at), "boxes");
        if (at < bytes) return wrong(s, s->launches - 1, r, "a byte of the boxes is left", at);
    }
    return 0;
}

/* Somebody must have found what is wrong. */
static int check_found(const struct schedule *s)
{
    int found = s->kind != MISSING && s->kind != DIFFERENT;
    for (int r = 0; r < s->rig->ranks; r++)
        found |= rig_error(s->rig, r)->code != 0;
    return found ? 0 : wrong(s, 0, s->chosen, "nobody has a record of rank", (uint64_t)s->chosen);
}

static int check_rank(const struct schedule *s, int r)
{
    const volatile struct error_record *error = rig_error(s->rig, r);
    if (!schedule_takes_part(s, r)) return 0;
    if (error->code && error->code != expected_code(s))
        return wrong(s, 0, r, "error code", error->code);
    if (error->code && !is_record_whole(s, r)) return wrong(s, 0, r, "record", r);
    if (rig_released(s->rig, r) != left_undone(s, r))
        return wrong(s, 0, r, "says it has left undone", rig_released(s->rig, r));
    if (check_path(s, r)) return 1;
    if (rig_released(s->rig, r) && !*(volatile uint32_t *)(s->rig->page + PAGE_ABORT))
        return wrong(s, 0, r, "failed without setting the abort word", 0);
    for (int i = 0; i < s->launches; i++)
        if (check_data(s, i, r) || check_marks(s, i, r) || check_sums(s, i, r)) return 1;
    return 0;
}

static void end(struct schedule *s)
{
    for (int i = 0; i < s->launches; i++) {
        free(s->step[i].expected);
        free(s->step[i].junk);
        norm_data_free(&s->step[i].norm.data);
        for (int r = 0; r < s->rig->ranks; r++) {
            free(s->step[i].part[r].input);
            free(s->step[i].part[r].before);
            free(s->step[i].part[r].after);
        }
    }
}

int check_schedule(struct rig *rig, enum kernel_id id, uint64_t seed)
{
    struct schedule s = {.rig = rig, .id = id, .seed = seed, .random = ~seed};
    if (!hold) find_functions(rig->driver);
    schedule_draw(&s);
    begin(&s);
    int faults = 0;
    run(&s);
    end_replays(&s);
    for (int r = 0; r < rig->ranks && !faults; r++)
        faults += check_rank(&s, r);
    if (!faults) faults += check_found(&s);
    if (!faults && case_is_push(id)) faults += check_boxes(&s);
    if (s.late_record && !faults)
        faults += wrong(&s, 0, s.late_record - 1, "a record seen before it was whole", 0);
    if (s.early_done && !faults)
        faults += wrong(&s, 0, s.early_done - 1, "told done before the result was there", 0);
    for (int r = 0; r < rig->ranks && s.kind == ALL_WELL && !faults; r++)
        if (s.done[r] != (uint64_t)s.launches) faults += wrong(&s, 0, r, "told done", s.done[r]);
    if (faults) print_steps(&s);
    end(&s);
    return faults;
}
