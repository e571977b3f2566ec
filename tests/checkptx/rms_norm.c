/* Checks one launch of an rms_norm kernel on every rank: results, sums, guards, and that nothing
 * else was touched. The kernel of a split, which meets nobody, gets all rows on every rank over
 * peers, through the switch each rank's own. */
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "check.h"
#include "norm.h"

enum { GUARD = 512, POISON = 0xff };
#define TIMEOUT_NS (20ull * 1000 * 1000 * 1000)

/* Where a rank's regions begin in its two buffers and, less RIG_HEAP, in its window. */
enum { FIRST = 0, SECOND = 400 << 10, THIRD = 800 << 10 };

/* A run of a rank's memory between two guards. */
struct region {
    CUdeviceptr at; /* of the data; 0: not used in this case */
    size_t bytes;
    int frozen; /* the data, too, must stay as they are */
    unsigned char *wrote, *read;
};

enum { CHUNK, SRC, DST, SUMS, RESIDUAL, SUMS_DST, WEIGHT, REGIONS };

struct scene {
    const struct check_case *c;
    struct norm_case norm;
    struct norm_data data;
    size_t element, bytes;
    size_t stride, lead; /* of a split: from one slot to the next; what comes before in the chunk */
    struct norm_kargs args[RIG_MAX_RANKS];
    struct region region[RIG_MAX_RANKS][REGIONS];
};

static int is_staged(const struct check_case *c)
{
    return c->place == STAGED || c->place == STAGED_IN_PLACE;
}

/* Is it the kernel of a split through the switch? Over peers? */
static int is_split_mc(const struct check_case *c)
{
    return case_is_alone(c->id) && kernel_rows[c->id].multicast;
}

static int is_split_peer(const struct check_case *c)
{
    return case_is_alone(c->id) && !kernel_rows[c->id].multicast;
}

/* Bytes of the rows that come before this rank's own, and of its own. */
static size_t bytes_before(const struct scene *s, int r)
{
    return s->args[r].first * s->norm.hidden * s->element;
}

static size_t own_bytes(const struct scene *s, int r)
{
    return s->args[r].rows * s->norm.hidden * s->element;
}

/* Do results go where the rank's own input is, outside the window? */
static int is_in_place(const struct scene *s, int r)
{
    if (case_is_alone(s->c->id)) return s->region[r][SRC].at && !s->region[r][DST].at;
    return s->c->place == STAGED_IN_PLACE;
}

static unsigned char *allocate(size_t bytes)
{
    unsigned char *memory = malloc(bytes + 1);
    if (memory == NULL) abort();
    return memory;
}

/* ---- before ---- */

/* With NULL for data the region is poisoned: NaN in every float type. */
static void region_begin(struct region *region, CUdeviceptr at, const void *data, size_t bytes,
                         uint64_t *state)
{
    size_t all = bytes + 2 * GUARD;
    *region = (struct region){at, bytes, 0, allocate(all), allocate(all)};
    for (size_t i = 0; i < all; i++)
        region->wrote[i] = (unsigned char)random_next(state);
    if (data)
        memcpy(region->wrote + GUARD, data, bytes);
    else
        memset(region->wrote + GUARD, POISON, bytes);
}

static void place_chunk(struct scene *s, const struct rig_rank *me, int r, uint64_t *state)
{
    const struct check_case *c = s->c;
    struct region *region = s->region[r];
    int has_input = is_staged(c) || c->place == COPY_IN;
    int has_output = c->place == STAGED || c->place == COPY_OUT;
    CUdeviceptr chunk = me->window + RIG_HEAP + FIRST + GUARD + (size_t)c->offset * s->element;
    if (c->place == UNEQUAL) chunk += 256u * (unsigned)r;
    if (c->place == UNEQUAL && c->seed & 8) chunk += s->element * random_below(state, 8);
    CUdeviceptr src = me->src + FIRST + GUARD + s->element * random_below(state, 8);
    CUdeviceptr dst = me->dst + FIRST + GUARD + s->element * random_below(state, 8);
    region_begin(&region[CHUNK], chunk, has_input ? NULL : s->data.input[r], s->bytes, state);
    if (has_input) region_begin(&region[SRC], src, s->data.input[r], s->bytes, state);
    region[SRC].frozen = c->place != STAGED_IN_PLACE;
    if (has_output) region_begin(&region[DST], dst, NULL, s->bytes, state);
}

/* The others' inputs in slots; my own aligned or not, where the results go too or to another place.
 */
static void place_slots(struct scene *s, const struct rig_rank *me, int r, uint64_t *state)
{
    struct region *region = s->region[r];
    size_t off = s->c->place < 3 ? 0 : s->element * (size_t)s->c->offset;
    size_t all = s->stride * (size_t)(s->c->ranks - 1);
    unsigned char *inputs = allocate(all);
    memset(inputs, POISON, all);
    for (int other = 0, i = 0; other < s->c->ranks; other++)
        if (other != r) memcpy(inputs + s->stride * (size_t)i++, s->data.input[other], s->bytes);
    region_begin(&region[CHUNK], me->window + RIG_HEAP + GUARD, inputs, all, state);
    region[CHUNK].frozen = 1;
    free(inputs);
    region_begin(&region[SRC], me->src + FIRST + GUARD + off, s->data.input[r], s->bytes, state);
    if (s->c->place % 2 == 0) return;
    region[SRC].frozen = 1;
    region_begin(&region[DST], me->dst + FIRST + GUARD + off, NULL, s->bytes, state);
}

/* Inputs at one offset, at offsets equal modulo 16, or at any; results in place, or elsewhere in
 * the window with vectors at the same places. */
static void place_windows(struct scene *s, const struct rig_rank *me, int r, uint64_t *state)
{
    struct region *region = s->region[r];
    int kind = (int)s->c->place / 2;
    CUdeviceptr chunk = me->window + RIG_HEAP + FIRST + GUARD + (size_t)s->c->offset * s->element;
    if (kind) chunk += 256u * (unsigned)r + 16 * random_below(state, 4);
    if (kind == 2) chunk += s->element * random_below(state, 8);
    region_begin(&region[CHUNK], chunk, s->data.input[r], s->bytes, state);
    region[CHUNK].frozen = 1;
    if (s->c->place % 2 == 0) return;
    CUdeviceptr dst = me->window + RIG_HEAP + SECOND + GUARD + 16 * random_below(state, 4);
    region_begin(&region[DST], dst + (chunk + bytes_before(s, r)) % 16, NULL, own_bytes(s, r),
                 state);
}

/* Beside the chunk, in step with it modulo 16 or not: the residual and the sums. */
static void place_sums(struct scene *s, const struct rig_rank *me, int r, uint64_t *state)
{
    const struct norm_case *norm = &s->norm;
    struct region *region = s->region[r];
    size_t step = (size_t)(s->c->offset + norm->unlike) * s->element;
    CUdeviceptr sums = me->window + RIG_HEAP + SECOND + GUARD + step;
    CUdeviceptr plain = me->src + SECOND + GUARD + step;
    const unsigned char *residual = s->data.residual;
    size_t first = bytes_before(s, r);
    if (norm->sums == OWN_SUMS)
        region_begin(&region[RESIDUAL], plain + first % 16, residual + first, own_bytes(s, r),
                     state);
    if (norm->sums == COPIED_SUMS) {
        region_begin(&region[RESIDUAL], plain, residual, s->bytes, state);
        region_begin(&region[SUMS_DST], me->dst + SECOND + GUARD + step, NULL, s->bytes, state);
        region[RESIDUAL].frozen = 1;
    }
    if (norm->sums == NO_SUMS || norm->sums == OWN_SUMS) return;
    region_begin(&region[SUMS], sums, norm->sums == WINDOW_SUMS ? residual : NULL, s->bytes, state);
}

static void place_weight(struct scene *s, const struct rig_rank *me, int r, uint64_t *state)
{
    static const size_t bytes[] = {0, 2, 2, 4, 8};
    size_t each = bytes[s->norm.weight_type];
    size_t off = random_below(state, 3) ? 0 : each * random_below(state, 8);
    if (each == 0) return;
    region_begin(&s->region[r][WEIGHT], me->src + THIRD + GUARD + off, s->data.weight,
                 each * s->norm.hidden, state);
    s->region[r][WEIGHT].frozen = 1;
}

static void fill_arguments(struct scene *s, struct rig *rig, int r)
{
    struct norm_kargs *args = &s->args[r];
    const struct region *region = s->region[r];
    const struct check_case *c = s->c;
    struct kargs common;
    rig_arguments(rig, r, (int)(c->seed >> 8 & (RIG_CHANNELS - 1)), &common);
    args->common = common;
    args->common.src = region[SRC].at;
    args->common.dst = is_in_place(s, r) ? region[SRC].at : region[DST].at;
    args->common.stride = (uint32_t)s->stride;
    args->common.offset = region[CHUNK].at - common.window;
    args->common.count = c->count;
    args->common.timeout_ns = TIMEOUT_NS;
    args->common.sequence = c->seed;
    args->common.hash = (uint32_t)c->seed;
    args->weight = region[WEIGHT].at;
    args->spread = region[SUMS].at ? region[SUMS].at - common.window : 0;
    args->sums_dst = region[SUMS_DST].at;
    args->residual = s->norm.sums == WINDOW_SUMS ? region[SUMS].at : region[RESIDUAL].at;
    if (is_split_mc(c)) {
        args->common.offset -= s->lead;
        args->common.at = s->lead + bytes_before(s, r);
        if (!args->common.dst) args->common.dst = region[CHUNK].at + bytes_before(s, r);
        memcpy(rig->page + PAGE_PLACE + (size_t)r * PAGE_WORDS, &args->common.offset, 8);
    } else if (s->norm.sums == OWN_SUMS)
        args->residual -= bytes_before(s, r);
}

static void scene_begin(struct scene *s, struct rig *rig)
{
    uint64_t state = ~s->c->seed;
    norm_data_make(s->c, &s->norm, &s->data);
    for (int r = 0; r < rig->ranks; r++) {
        norm_arguments(&s->norm, r, rig->ranks, s->c->threads, s->c->seed, &s->args[r]);
        if (is_split_peer(s->c)) {
            s->args[r].first = 0;
            s->args[r].rows = (uint32_t)s->norm.rows;
            place_slots(s, &rig->rank[r], r, &state);
        } else if (is_split_mc(s->c))
            place_windows(s, &rig->rank[r], r, &state);
        else
            place_chunk(s, &rig->rank[r], r, &state);
        place_sums(s, &rig->rank[r], r, &state);
        place_weight(s, &rig->rank[r], r, &state);
        for (int i = 0; i < REGIONS; i++) {
            const struct region *region = &s->region[r][i];
            if (region->at)
                must(
                    rig_write(rig, r, region->at - GUARD, region->wrote, region->bytes + 2 * GUARD),
                    "write");
        }
        fill_arguments(s, rig, r);
    }
}

static void launch(struct scene *s, struct rig *rig)
{
    const struct check_case *c = s->c;
    for (int i = 0; i < rig->ranks; i++) {
        int r = (int)((c->seed + (uint64_t)i) % (uint64_t)rig->ranks); /* who comes first varies */
        must(rig_launch(rig, r, c->id, c->blocks, c->threads, &s->args[r].common), "launch");
    }
    for (int r = 0; r < rig->ranks; r++)
        must(rig_synchronize(rig, r), "synchronize");
}

/* ---- after ---- */

static int complain(const struct scene *s, const char *what, int rank, size_t index)
{
    static const char *const sums[] = {"no sums", "own sums", "window sums", "copied sums",
                                       "extra sums"};
    printf("WRONG ");
    case_print(s->c, stdout);
    printf(" rows=%zu hidden=%zu group=%u %s weight=%u unlike=%d: rank %d: %s (%zu)\n",
           s->norm.rows, s->norm.hidden, s->args[rank].group, sums[s->norm.sums],
           s->norm.weight_type, s->norm.unlike, rank, what, index);
    return 1;
}

static int check_guards(const struct scene *s, int r, const struct region *region)
{
    for (size_t i = 0; i < region->bytes + 2 * GUARD; i++) {
        int data = i >= GUARD && i < GUARD + region->bytes;
        if ((region->frozen || !data) && region->wrote[i] != region->read[i])
            return complain(s, "a byte outside the results was written", r, i - (size_t)GUARD);
    }
    return 0;
}

/* `region` holds what is expected and, unless `first` is NULL, rank 0's very bits. */
static int check_values(const struct scene *s, int r, const char *what, const struct region *region,
                        const struct region *first, const double *exact, const double *bound)
{
    const unsigned char *got = region->read + GUARD;
    for (size_t i = 0; i < region->bytes / s->element; i++)
        if (!norm_is_right(s->c, got, i, exact, bound)) return complain(s, what, r, i);
    if (first && memcmp(got, first->read + GUARD, region->bytes) != 0)
        return complain(s, "not the bits of rank 0", r, region->bytes);
    return 0;
}

static const struct region *result_of(const struct scene *s, int r)
{
    if (is_in_place(s, r)) return &s->region[r][SRC];
    return s->region[r][DST].at ? &s->region[r][DST] : &s->region[r][CHUNK];
}

/* Of which no other rank has any; where they are in place, the rest of the chunk is as it was. */
static int check_own_rows(const struct scene *s, int r)
{
    const struct region *region = result_of(s, r);
    size_t before = bytes_before(s, r), first = before / s->element;
    struct region own = {.bytes = own_bytes(s, r), .read = region->read};
    if (region == &s->region[r][CHUNK]) {
        own.read += before;
        memcpy(region->wrote + GUARD + before, own.read + GUARD, own.bytes);
    }
    return check_values(s, r, "an element of its own is wrong", &own, NULL, s->data.exact + first,
                        s->data.bound + first);
}

static int check_results(const struct scene *s, int r)
{
    if (is_split_mc(s->c)) return check_own_rows(s, r);
    return check_values(s, r, "an element is wrong", result_of(s, r), result_of(s, 0),
                        s->data.exact, s->data.bound);
}

static int check_sums(const struct scene *s, int r)
{
    const struct region *region = s->region[r];
    const double *exact = s->data.exact_sums, *bound = s->data.sums_bound;
    size_t first = bytes_before(s, r) / s->element;
    int faults = 0;
    if (s->norm.sums == OWN_SUMS)
        return check_values(s, r, "a sum of its own is wrong", &region[RESIDUAL], NULL,
                            exact + first, bound ? bound + first : NULL);
    if (region[SUMS].at)
        faults +=
            check_values(s, r, "a sum is wrong", &region[SUMS], &s->region[0][SUMS], exact, bound);
    if (region[SUMS_DST].at)
        faults += check_values(s, r, "a copied sum is wrong", &region[SUMS_DST],
                               &s->region[0][SUMS_DST], exact, bound);
    return faults;
}

static int check_rank(const struct scene *s, struct rig *rig, int r)
{
    const volatile struct error_record *error = rig_error(rig, r);
    int faults = 0;
    if (error->code != 0) return complain(s, "error record, code", r, error->code);
    faults += check_results(s, r) + check_sums(s, r);
    for (int i = 0; i < REGIONS; i++)
        if (s->region[r][i].at) faults += check_guards(s, r, &s->region[r][i]);
    return faults;
}

static void read_all(struct scene *s, struct rig *rig)
{
    for (int r = 0; r < rig->ranks; r++)
        for (int i = 0; i < REGIONS; i++) {
            struct region *region = &s->region[r][i];
            if (region->at)
                must(rig_read(rig, r, region->read, region->at - GUARD, region->bytes + 2 * GUARD),
                     "read");
        }
}

static void scene_end(struct scene *s)
{
    for (int i = 0; i < RIG_MAX_RANKS * REGIONS; i++) {
        free(s->region[i / REGIONS][i % REGIONS].wrote);
        free(s->region[i / REGIONS][i % REGIONS].read);
    }
    norm_data_free(&s->data);
}

/* What a split does not do, and what the slots have no room for, is left out. */
static void fit_split(struct check_case *c, struct scene *s, size_t hidden)
{
    enum { LINE = 128 };
    size_t row = hidden * s->element, others = (size_t)c->ranks - 1;
    while (is_split_peer(c) && others * (s->bytes + 3 * LINE) > RIG_AREA - 2 * GUARD)
        s->bytes -= row;
    c->count = s->bytes / s->element;
    s->stride = (s->bytes + LINE - 1) / LINE * LINE + LINE * (c->seed % 3);
    s->lead = s->element * (c->seed % 9);
    norm_case_make(c, hidden, &s->norm);
    s->norm.sums = s->norm.sums % 2 ? OWN_SUMS : NO_SUMS;
}

int check_rms_norm(struct rig *rig, const struct check_case *level)
{
    struct check_case c = *level;
    struct scene s = {.c = &c, .element = ref_bytes(kernel_rows[c.id].dtype)};
    size_t hidden;
    int faults = 0;
    c.count = norm_size(c.seed, &hidden);
    s.bytes = c.count * s.element;
    norm_case_make(&c, hidden, &s.norm);
    if (case_is_alone(c.id)) fit_split(&c, &s, hidden);
    scene_begin(&s, rig);
    launch(&s, rig);
    read_all(&s, rig);
    for (int r = 0; r < rig->ranks; r++)
        faults += check_rank(&s, rig, r);
    scene_end(&s);
    return faults;
}
