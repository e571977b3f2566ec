/* See scene.h. */
#include "scene.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "check.h"

enum { POISON = 0xff };

void *allocate(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    if (memory == NULL) abort();
    return memory;
}

int complain(const struct check_case *c, const char *format, int rank, size_t index)
{
    printf("WRONG ");
    case_print(c, stdout);
    printf(": rank %d: ", rank);
    printf(format, index);
    printf("\n");
    return 1;
}

/* ---- memory ---- */

static size_t all_bytes(const struct region *region) { return region->bytes + 2 * SCENE_GUARD; }

void region_begin(struct region *region, CUdeviceptr at, size_t bytes, uint64_t *state)
{
    *region = (struct region){.at = at, .bytes = bytes};
    region->wrote = allocate(all_bytes(region));
    region->read = allocate(all_bytes(region));
    for (size_t i = 0; i < 2 * SCENE_GUARD; i++)
        region->wrote[i < SCENE_GUARD ? i : bytes + i] = (unsigned char)random_next(state);
    memset(region_data(region), POISON, bytes);
}

unsigned char *region_data(const struct region *region) { return region->wrote + SCENE_GUARD; }

void region_write(const struct region *region, struct rig *rig, int rank)
{
    if (region->at == 0) return;
    must(rig_write(rig, rank, region->at - SCENE_GUARD, region->wrote, all_bytes(region)), "write");
}

const unsigned char *region_read(struct region *region, struct rig *rig, int rank)
{
    if (region->at == 0) return NULL;
    must(rig_read(rig, rank, region->read, region->at - SCENE_GUARD, all_bytes(region)), "read");
    return region->read + SCENE_GUARD;
}

int region_check(const struct region *region, const struct check_case *c, int rank, size_t from,
                 size_t bytes)
{
    if (region->at == 0) return 0;
    for (size_t i = 0; i < all_bytes(region); i++) {
        int may_change = i >= SCENE_GUARD + from && i < SCENE_GUARD + from + bytes;
        if (!may_change && region->wrote[i] != region->read[i])
            return complain(c, "byte %zd outside the result was written", rank,
                            i - (size_t)SCENE_GUARD);
    }
    return 0;
}

void region_end(struct region *region)
{
    free(region->wrote);
    free(region->read);
}

/* ---- results ---- */

void expected_make(struct expected *expected, const struct check_case *c,
                   unsigned char *const *inputs, size_t count)
{
    const struct kernel_row *row = &kernel_rows[c->id];
    struct ref_call call = {row->op, row->dtype, c->ranks, count, (const void *const *)inputs,
                            c->scale};
    *expected = (struct expected){.bits = allocate(count * ref_bytes(row->dtype))};
    ref_all_reduce_twoshot_peer(&call, expected->bits);
    if (case_keeps_order(c->id) || !c->real || !ref_is_float(row->dtype)) return;
    expected->exact = allocate(count * sizeof *expected->exact);
    expected->bound = allocate(count * sizeof *expected->bound);
    ref_all_reduce_twoshot_mc(&call, expected->exact, expected->bound);
}

/* One NaN is as good as another. */
static int is_same(enum smfar_dtype dtype, const unsigned char *got, size_t i,
                   const unsigned char *want, size_t j)
{
    size_t element = ref_bytes(dtype);
    if (memcmp(got + i * element, want + j * element, element) == 0) return 1;
    return ref_is_float(dtype) && isnan(ref_load_double(dtype, got, i)) &&
           isnan(ref_load_double(dtype, want, j));
}

int expected_check(const struct expected *expected, const struct check_case *c, int rank,
                   const unsigned char *got, size_t first)
{
    enum smfar_dtype dtype = kernel_rows[c->id].dtype;
    for (size_t i = 0; i < c->count; i++) {
        int right;
        if (expected->exact) /* written so that NaN is wrong */
            right = fabs(ref_load_double(dtype, got, i) - expected->exact[first + i]) <=
                    expected->bound[first + i];
        else
            right = is_same(dtype, got, i, expected->bits, first + i);
        if (!right) return complain(c, "element %zu is wrong", rank, i);
    }
    return 0;
}

void expected_end(struct expected *expected)
{
    free(expected->bits);
    free(expected->exact);
    free(expected->bound);
}
