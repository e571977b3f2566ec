/* Checks one all-reduce. Every region that a kernel may touch lies between two guards; regions that
 * it must fill hold a poison first, which is NaN in every float type. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "check.h"

enum { GUARD = 512, POISON = 0xff };
#define TIMEOUT_NS (20ull * 1000 * 1000 * 1000)

/* A run of a rank's memory, guards included, and what it must hold afterwards. */
struct region {
    CUdeviceptr at; /* of the data, after the guard; 0: not used in this case */
    unsigned char *wrote, *read;
};

struct scene {
    const struct check_case *c;
    size_t bytes, element;
    struct region window[RIG_MAX_RANKS], src[RIG_MAX_RANKS], dst[RIG_MAX_RANKS];
    unsigned char *input[RIG_MAX_RANKS];
    unsigned char *bits;   /* the expected result, where it is exact */
    double *exact, *bound; /* where it is not */
};

/* What is being checked, for must. */
static const struct check_case *current;

void must(enum smfar_status status, const char *what)
{
    if (status == SMFAR_OK) return;
    printf("WRONG %s: %s: %s\n", what, smfar_status_name(status), smfar_last_error());
    if (current) case_print(current, stdout);
    printf("\n");
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    if (memory == NULL) abort();
    return memory;
}

static int has_input_buffer(const struct check_case *c)
{
    return c->place == STAGED || c->place == STAGED_IN_PLACE || c->place == COPY_IN;
}

static int has_output_buffer(const struct check_case *c)
{
    return c->place == STAGED || c->place == STAGED_IN_PLACE || c->place == COPY_OUT;
}

/* ---- before ---- */

static void region_begin(struct region *region, struct scene *s, CUdeviceptr at,
                         const unsigned char *data, uint64_t *state)
{
    region->at = at;
    region->wrote = allocate(s->bytes + 2 * GUARD);
    region->read = allocate(s->bytes + 2 * GUARD);
    for (size_t i = 0; i < 2 * GUARD; i++)
        region->wrote[i < GUARD ? i : s->bytes + i] = (unsigned char)random_next(state);
    if (data)
        memcpy(region->wrote + GUARD, data, s->bytes);
    else
        memset(region->wrote + GUARD, POISON, s->bytes);
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
    CUdeviceptr heap = me->window + RIG_HEAP + GUARD + (size_t)c->offset * element;
    if (c->place == UNEQUAL) heap += 256u * (unsigned)r + element * random_below(state, 8);
    CUdeviceptr src = me->src + GUARD + element * draw_shift(c, state);
    CUdeviceptr dst = me->dst + GUARD + element * draw_shift(c, state);
    if (!case_is_push(c->id))
        region_begin(&s->window[r], s, heap, has_input_buffer(c) ? NULL : s->input[r], state);
    if (has_input_buffer(c)) region_begin(&s->src[r], s, src, s->input[r], state);
    if (has_output_buffer(c) && c->place != STAGED_IN_PLACE)
        region_begin(&s->dst[r], s, dst, NULL, state);
}

static void write_region(const struct scene *s, struct rig *rig, int r, const struct region *region)
{
    if (region->at == 0) return;
    must(rig_write(rig, r, region->at - GUARD, region->wrote, s->bytes + 2 * GUARD), "write");
}

static void scene_begin(struct scene *s, struct rig *rig)
{
    uint64_t state = ~s->c->seed;
    for (int r = 0; r < rig->ranks; r++) {
        s->input[r] = allocate(s->bytes);
        case_input(s->c, r, s->input[r]);
        place_rank(s, rig, r, &state);
        write_region(s, rig, r, &s->window[r]);
        write_region(s, rig, r, &s->src[r]);
        write_region(s, rig, r, &s->dst[r]);
    }
}

static void compute_reference(struct scene *s)
{
    const struct kernel_row *row = &kernel_rows[s->c->id];
    struct ref_call call = {
        row->op, row->dtype, s->c->ranks, s->c->count, (const void *const *)s->input, s->c->scale};
    s->bits = allocate(s->bytes);
    ref_all_reduce_twoshot_peer(&call, s->bits);
    if (!row->multicast || !s->c->real || !ref_is_float(row->dtype)) return;
    s->exact = allocate(s->c->count * sizeof *s->exact);
    s->bound = allocate(s->c->count * sizeof *s->bound);
    ref_all_reduce_twoshot_mc(&call, s->exact, s->bound);
}

/* ---- the launch ---- */

static void launch(const struct scene *s, struct rig *rig)
{
    const struct check_case *c = s->c;
    for (int i = 0; i < rig->ranks; i++) {
        int r = (int)((c->seed + (uint64_t)i) % (uint64_t)rig->ranks); /* who comes first varies */
        struct kargs args;
        rig_arguments(rig, r, (int)(c->seed >> 8 & (RIG_CHANNELS - 1)), &args);
        args.src = s->src[r].at;
        args.dst = c->place == STAGED_IN_PLACE ? s->src[r].at : s->dst[r].at;
        args.offset = case_is_push(c->id) ? RIG_BOXES : s->window[r].at - args.window;
        if (case_is_push(c->id)) args.stride = (uint32_t)case_box_bytes(s->bytes);
        args.count = c->count;
        args.timeout_ns = TIMEOUT_NS;
        args.sequence = c->seed;
        args.hash = (uint32_t)c->seed;
        args.scale = c->scale;
        must(rig_launch(rig, r, c->id, case_blocks(c, r), c->threads, &args), "launch");
    }
    for (int r = 0; r < rig->ranks; r++)
        must(rig_synchronize(rig, r), "synchronize");
}

/* ---- after ---- */

static int complain(const struct check_case *c, const char *format, int rank, size_t index)
{
    printf("WRONG ");
    case_print(c, stdout);
    printf(": rank %d: ", rank);
    printf(format, index);
    printf("\n");
    return 1;
}

/* Everything of `region` but its data, and with `frozen` the data too, is as it was written. */
static int check_untouched(const struct scene *s, int r, const struct region *region, int frozen)
{
    for (size_t i = 0; i < s->bytes + 2 * GUARD; i++) {
        int data = i >= GUARD && i < GUARD + s->bytes;
        if ((frozen || !data) && region->wrote[i] != region->read[i])
            return complain(s->c, "byte %zd outside the result was written", r, i - (size_t)GUARD);
    }
    return 0;
}

/* One NaN is as good as another. */
static int is_same(const struct scene *s, const unsigned char *got, size_t i)
{
    enum smfar_dtype dtype = kernel_rows[s->c->id].dtype;
    if (memcmp(got + i * s->element, s->bits + i * s->element, s->element) == 0) return 1;
    return ref_is_float(dtype) && isnan(ref_load_double(dtype, got, i)) &&
           isnan(ref_load_double(dtype, s->bits, i));
}

static int check_values(const struct scene *s, int r, const unsigned char *got)
{
    enum smfar_dtype dtype = kernel_rows[s->c->id].dtype;
    for (size_t i = 0; i < s->c->count; i++) {
        int right;
        if (s->exact) /* written so that NaN is wrong */
            right = fabs(ref_load_double(dtype, got, i) - s->exact[i]) <= s->bound[i];
        else
            right = is_same(s, got, i);
        if (!right) return complain(s->c, "element %zu is wrong", r, i);
    }
    return 0;
}

static void read_region(const struct scene *s, struct rig *rig, int r, struct region *region)
{
    if (region->at == 0) return;
    must(rig_read(rig, r, region->read, region->at - GUARD, s->bytes + 2 * GUARD), "read");
}

/* Where rank r's result is. */
static const struct region *result_of(const struct scene *s, int r)
{
    if (s->c->place == STAGED_IN_PLACE) return &s->src[r];
    return has_output_buffer(s->c) ? &s->dst[r] : &s->window[r];
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
    read_region(s, rig, r, &s->window[r]);
    read_region(s, rig, r, &s->src[r]);
    read_region(s, rig, r, &s->dst[r]);
    if (error->code != 0) return complain(s->c, "error record, code %zu", r, error->code);
    const unsigned char *got = result_of(s, r)->read + GUARD;
    int faults = check_values(s, r, got) + check_boxes(s, rig, r);
    if (s->window[r].at) faults += check_untouched(s, r, &s->window[r], 0);
    if (memcmp(got, result_of(s, 0)->read + GUARD, s->bytes) != 0)
        faults += complain(s->c, "not the bits of rank 0 (%zu bytes)", r, s->bytes);
    if (s->src[r].at) faults += check_untouched(s, r, &s->src[r], s->c->place != STAGED_IN_PLACE);
    if (s->dst[r].at) faults += check_untouched(s, r, &s->dst[r], 0);
    return faults;
}

static void scene_end(struct scene *s)
{
    for (int r = 0; r < RIG_MAX_RANKS; r++) {
        struct region *regions[] = {&s->window[r], &s->src[r], &s->dst[r]};
        for (int i = 0; i < 3; i++) {
            free(regions[i]->wrote);
            free(regions[i]->read);
        }
        free(s->input[r]);
    }
    free(s->bits);
    free(s->exact);
    free(s->bound);
}

int check_all_reduce(struct rig *rig, const struct check_case *c)
{
    struct scene s = {.c = c, .element = ref_bytes(kernel_rows[c->id].dtype)};
    int faults = 0;
    current = c;
    s.bytes = c->count * s.element;
    scene_begin(&s, rig);
    compute_reference(&s);
    launch(&s, rig);
    for (int r = 0; r < rig->ranks; r++)
        faults += check_rank(&s, rig, r);
    scene_end(&s);
    current = NULL;
    return faults;
}
