/* Plain loads and stores, and what every access to memory shares: addresses, the range cache, the
 * checks, and the shuffle between memory (a lane's vector side by side) and registers (an
 * element of all lanes side by side). */
#include "ptx_checked.h"

typedef uint32_t quad __attribute__((vector_size(16)));

/* ---- ranges ---- */

static const struct ptx_range *range_miss(struct ptx_warp *w, uint64_t address)
{
    const struct ptx_memory *memory = &w->machine->launch->memory;
    const struct ptx_range *range = memory->range(memory->context, address);
    w->range[w->range_next++ % PTX_RANGE_CACHE] = range;
    return range;
}

const struct ptx_range *ptx_memory_range(struct ptx_warp *w, uint64_t address)
{
    for (unsigned i = 0; i < PTX_RANGE_CACHE; i++) {
        const struct ptx_range *range = w->range[i];
        if (range && address >= range->begin && address < range->end) return range;
    }
    return range_miss(w, address);
}

static int check_plain(struct ptx_warp *w, const struct ptx_insn *in, uint64_t address,
                       uint64_t bytes, int write)
{
    const struct ptx_range *range = ptx_memory_range(w, address);
    const char *why = address < 65536                  ? "close to null"
                      : range->kind == PTX_RANGE_FAULT ? "not accessible"
                      : range->kind == PTX_RANGE_MULTICAST
                          ? "multicast, which only multimem may touch"
                      : write && !range->writable ? "read-only"
                                                  : NULL;
    if (why) {
        ptx_machine_fail(w, in, PTX_BAD_ADDRESS, "address 0x%llx is %s",
                         (unsigned long long)address, why);
        return 0;
    }
    if (bytes <= range->end - address) return 1;
    return check_plain(w, in, range->end, bytes - (range->end - address), write);
}

int ptx_memory_check(struct ptx_warp *w, const struct ptx_insn *in, uint64_t address,
                     uint64_t bytes, unsigned align, int write)
{
    if (address & (align - 1)) {
        ptx_machine_fail(w, in, PTX_MISALIGNED, "address 0x%llx is not a multiple of %u",
                         (unsigned long long)address, align);
        return 0;
    }
    return check_plain(w, in, address, bytes, write);
}

/* ---- addresses ---- */

/* A window space's extent and host address for one lane; shared, local, param. */
static uint64_t window(const struct ptx_warp *w, unsigned space, unsigned lane, uint64_t *size_out)
{
    const struct ptx_machine *m = w->machine;
    const struct ptx_kernel_info *info = &m->kernel->info;
    switch (space) {
    case SPACE_SHARED:
        *size_out = info->shared_bytes + m->launch->shared_bytes;
        return (uintptr_t)w->block->shared;
    case SPACE_LOCAL:
        *size_out = info->local_bytes;
        return (uintptr_t)w->local + lane * info->local_bytes;
    default:
        *size_out = info->param_bytes;
        return (uintptr_t)m->launch->params;
    }
}

void ptx_memory_addresses(struct ptx_warp *w, const struct ptx_insn *in, uint64_t *address_out)
{
    uint64_t offset = (uint64_t)in->address.offset;
    const void *at = ptx_at(w, in->address.reg);
    if (in->address.reg.base == BASE_NONE)
        for (unsigned i = 0; i < PTX_LANES; i++)
            address_out[i] = offset;
    else if (in->address.reg.size == 8)
        for (unsigned i = 0; i < PTX_LANES; i++)
            address_out[i] = ((const uint64_t *)at)[i] + offset;
    else
        for (unsigned i = 0; i < PTX_LANES; i++)
            address_out[i] = (uint32_t)(((const uint32_t *)at)[i] + (uint32_t)offset);
}

static int contiguous(const uint64_t *address, uint64_t step)
{
    uint64_t differ = 0;
    for (unsigned i = 1; i < PTX_LANES; i++)
        differ |= address[i] ^ (address[0] + i * step);
    return differ == 0;
}

int ptx_memory_run(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask, uint64_t step,
                   uint64_t *first_out)
{
    if (mask != PTX_ALL_LANES || in->address.reg.base == BASE_NONE || in->address.reg.size != 8)
        return 0;
    const uint64_t *at = ptx_at(w, in->address.reg);
    *first_out = at[0] + (uint64_t)in->address.offset;
    return contiguous(at, step);
}

/* Turns window offsets into host addresses; 0 after a failure. */
static int translate(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask, unsigned bytes,
                     uint64_t *address)
{
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint64_t size, base = window(w, in->space, i, &size);
        if (!(mask >> i & 1)) continue;
        if (address[i] > size || bytes > size - address[i]) {
            ptx_machine_fail(w, in, PTX_BAD_ADDRESS, "offset 0x%llx is past the %llu bytes there",
                             (unsigned long long)address[i], (unsigned long long)size);
            return 0;
        }
        if (address[i] & (bytes - 1)) {
            ptx_machine_fail(w, in, PTX_MISALIGNED, "offset 0x%llx is not a multiple of %u",
                             (unsigned long long)address[i], bytes);
            return 0;
        }
        address[i] += base;
    }
    return 1;
}

/* Every active lane's checked host address; 0 after a failure. Sets *run_out when all 32 lanes
 * follow each other: then one check serves them all, and only the first address may be set. */
static int resolve(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask, int write,
                   uint64_t *address, int *run_out)
{
    unsigned bytes = in->vector * ptx_types[in->type].size;
    *run_out = in->space < SPACE_SHARED && ptx_memory_run(w, in, mask, bytes, address);
    if (*run_out)
        return ptx_memory_check(w, in, address[0], (uint64_t)PTX_LANES * bytes, bytes, write);
    ptx_memory_addresses(w, in, address);
    if (in->space >= SPACE_SHARED) {
        *run_out = mask == PTX_ALL_LANES && contiguous(address, bytes);
        return translate(w, in, mask, bytes, address);
    }
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1) || (i && address[i] == address[0] && mask & 1)) continue;
        if (!ptx_memory_check(w, in, address[i], bytes, bytes, write)) return 0;
    }
    return 1;
}

int ptx_memory_resolve(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                       uint64_t *address_out)
{
    int run;
    return resolve(w, in, mask, 1, address_out, &run);
}

/* ---- between memory and registers ---- */

static uint64_t extend(uint64_t value, unsigned type)
{
    unsigned spare = 64 - 8 * ptx_types[type].size;
    if (ptx_types[type].is_signed) return (uint64_t)((int64_t)(value << spare) >> spare);
    return value;
}

/* `value` in each of 32 lanes of `size` bytes. */
static void broadcast(void *d, uint64_t value, unsigned size)
{
    if (size == 4)
        for (unsigned i = 0; i < PTX_LANES; i++)
            ((uint32_t *)d)[i] = (uint32_t)value;
    else if (size == 8)
        for (unsigned i = 0; i < PTX_LANES; i++)
            ((uint64_t *)d)[i] = value;
    else
        for (unsigned i = 0; i < PTX_LANES; i++)
            memcpy((char *)d + (size_t)i * size, &value, size);
}

void ptx_memory_scatter(struct ptx_warp *w, const struct ptx_insn *in, unsigned lane,
                        const void *bytes)
{
    unsigned size = ptx_types[in->type].size;
    for (unsigned e = 0; e < in->vector; e++) {
        if (in->v[e].base == BASE_NONE) continue;
        uint64_t value = 0;
        memcpy(&value, (const char *)bytes + e * size, size);
        value = extend(value, in->type);
        memcpy((char *)ptx_at(w, in->v[e]) + (size_t)lane * in->v[e].size, &value, in->v[e].size);
    }
}

void ptx_memory_gather(const struct ptx_warp *w, const struct ptx_insn *in, unsigned lane,
                       void *bytes)
{
    unsigned size = ptx_types[in->type].size;
    for (unsigned e = 0; e < in->vector; e++)
        memcpy((char *)bytes + e * size,
               (const char *)ptx_at(w, in->v[e]) + (size_t)lane * in->v[e].size, size);
}

/* Four vectors of four words, rows to columns. */
static inline void transpose(const quad in[4], quad out[4])
{
    quad a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
    quad b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
    quad c = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    quad d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
    out[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    out[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

static int is_quad(const struct ptx_insn *in)
{
    int plain = in->vector == 4 && ptx_types[in->type].size == 4;
    for (unsigned e = 0; plain && e < 4; e++)
        plain = in->v[e].base != BASE_NONE && in->v[e].size == 4;
    return plain;
}

void ptx_memory_scatter_all(struct ptx_warp *w, const struct ptx_insn *in, const void *bytes)
{
    unsigned size = ptx_types[in->type].size;
    if (in->vector == 1 && in->v[0].size == size) {
        memcpy(ptx_at(w, in->v[0]), bytes, (size_t)PTX_LANES * size);
    } else if (is_quad(in)) {
        for (unsigned i = 0; i < PTX_LANES; i += 4) {
            quad rows[4], columns[4];
            memcpy(rows, (const char *)bytes + 16 * i, 64);
            transpose(rows, columns);
            for (unsigned e = 0; e < 4; e++)
                memcpy((char *)ptx_at(w, in->v[e]) + 4 * i, &columns[e], 16);
        }
    } else {
        for (unsigned i = 0; i < PTX_LANES; i++)
            ptx_memory_scatter(w, in, i, (const char *)bytes + (size_t)i * in->vector * size);
    }
}

void ptx_memory_gather_all(const struct ptx_warp *w, const struct ptx_insn *in, void *bytes)
{
    unsigned size = ptx_types[in->type].size;
    if (in->vector == 1 && in->v[0].size == size) {
        memcpy(bytes, ptx_at(w, in->v[0]), (size_t)PTX_LANES * size);
    } else if (is_quad(in)) {
        for (unsigned i = 0; i < PTX_LANES; i += 4) {
            quad rows[4], columns[4];
            for (unsigned e = 0; e < 4; e++)
                memcpy(&columns[e], (const char *)ptx_at(w, in->v[e]) + 4 * i, 16);
            transpose(columns, rows);
            memcpy((char *)bytes + 16 * i, rows, 64);
        }
    } else {
        for (unsigned i = 0; i < PTX_LANES; i++)
            ptx_memory_gather(w, in, i, (char *)bytes + (size_t)i * in->vector * size);
    }
}

/* ---- one element, in order ---- */

uint64_t ptx_memory_peek(const void *p, unsigned size, int order)
{
    int acquire = order == SEM_ACQUIRE || order == SEM_ACQ_REL;
    switch (size) {
    case 1:
        return acquire ? __atomic_load_n((const uint8_t *)p, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint8_t *)p, __ATOMIC_RELAXED);
    case 2:
        return acquire ? __atomic_load_n((const uint16_t *)p, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint16_t *)p, __ATOMIC_RELAXED);
    case 4:
        return acquire ? __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
    default:
        return acquire ? __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
    }
}

void ptx_memory_poke(void *p, uint64_t value, unsigned size, int order)
{
    int release = order == SEM_RELEASE || order == SEM_ACQ_REL;
    switch (size) {
    case 1:
        if (release)
            __atomic_store_n((uint8_t *)p, (uint8_t)value, __ATOMIC_RELEASE);
        else
            __atomic_store_n((uint8_t *)p, (uint8_t)value, __ATOMIC_RELAXED);
        break;
    case 2:
        if (release)
            __atomic_store_n((uint16_t *)p, (uint16_t)value, __ATOMIC_RELEASE);
        else
            __atomic_store_n((uint16_t *)p, (uint16_t)value, __ATOMIC_RELAXED);
        break;
    case 4:
        if (release)
            __atomic_store_n((uint32_t *)p, (uint32_t)value, __ATOMIC_RELEASE);
        else
            __atomic_store_n((uint32_t *)p, (uint32_t)value, __ATOMIC_RELAXED);
        break;
    default:
        if (release)
            __atomic_store_n((uint64_t *)p, value, __ATOMIC_RELEASE);
        else
            __atomic_store_n((uint64_t *)p, value, __ATOMIC_RELAXED);
        break;
    }
}

/* Checked mode looks at what other blocks can see; the rest is the block's own. */
static int is_checked(const struct ptx_warp *w, const struct ptx_insn *in)
{
    return w->machine->launch->checked && in->space <= SPACE_GLOBAL;
}

/* With `run`, only the first address is set yet. */
static void spread(const struct ptx_insn *in, uint64_t *address, int run)
{
    unsigned bytes = in->vector * ptx_types[in->type].size;
    for (unsigned i = 1; run && i < PTX_LANES; i++)
        address[i] = address[0] + i * bytes;
}

static void load_lane(struct ptx_warp *w, const struct ptx_insn *in, unsigned lane,
                      uint64_t address)
{
    unsigned size = ptx_types[in->type].size;
    unsigned char bytes[PTX_VECTOR * 8];
    for (unsigned e = 0; e < in->vector; e++) {
        uint64_t value =
            ptx_memory_peek((const char *)(uintptr_t)address + e * size, size, in->semantics);
        memcpy(bytes + e * size, &value, size);
    }
    ptx_memory_scatter(w, in, lane, bytes);
}

static void store_lane(struct ptx_warp *w, const struct ptx_insn *in, unsigned lane,
                       uint64_t address)
{
    unsigned size = ptx_types[in->type].size;
    unsigned char bytes[PTX_VECTOR * 8];
    ptx_memory_gather(w, in, lane, bytes);
    for (unsigned e = 0; e < in->vector; e++) {
        uint64_t value = 0;
        memcpy(&value, bytes + e * size, size);
        ptx_memory_poke((char *)(uintptr_t)address + e * size, value, size, in->semantics);
    }
}

/* ---- executors ---- */

/* Runs are moved in vectors by strong accesses too: a vector of the host's never tears an aligned
 * element of at most 8 bytes, and PTX promises no more of a vector or of 32 lanes. */
static void load_run(struct ptx_warp *w, const struct ptx_insn *in, const char *from)
{
    uint64_t bytes = (uint64_t)PTX_LANES * in->vector * ptx_types[in->type].size;
    for (uint64_t ahead = bytes; ahead < 2 * bytes; ahead += 64)
        __builtin_prefetch(from + ahead);
    ptx_memory_scatter_all(w, in, from);
    if (in->semantics == SEM_ACQUIRE) __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

static void store_run(struct ptx_warp *w, const struct ptx_insn *in, char *to)
{
    if (in->semantics == SEM_RELEASE) __atomic_thread_fence(__ATOMIC_RELEASE);
    ptx_memory_gather_all(w, in, to);
}

/* One element for all lanes: read once. */
static void load_broadcast(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                           const void *from)
{
    unsigned size = in->v[0].size;
    uint64_t value = ptx_memory_peek(from, ptx_types[in->type].size, in->semantics);
    broadcast(w->scratch, extend(value, in->type), size);
    ptx_alu_blend(ptx_at(w, in->v[0]), w->scratch, mask, size);
}

/* Locals of 32 lanes never lie side by side. */
void ptx_memory_load(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t address[PTX_LANES];
    int run;
    if (in->semantics != SEM_WEAK) w->polled = 1;
    if (!resolve(w, in, mask, 0, address, &run)) return;
    if (is_checked(w, in)) {
        spread(in, address, run);
        ptx_checked_load(w, in, mask, address);
        return;
    }
    if (run && in->space != SPACE_LOCAL) {
        load_run(w, in, (const char *)(uintptr_t)address[0]);
        return;
    }
    if (mask == PTX_ALL_LANES && in->vector == 1 && contiguous(address, 0)) {
        load_broadcast(w, in, mask, (const void *)(uintptr_t)address[0]);
        return;
    }
    for (unsigned i = 0; i < PTX_LANES; i++)
        if (mask >> i & 1) load_lane(w, in, i, address[i]);
}

void ptx_memory_store(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t address[PTX_LANES];
    int run;
    w->progressed = 1;
    if (!resolve(w, in, mask, 1, address, &run)) return;
    if (is_checked(w, in)) {
        spread(in, address, run);
        ptx_checked_store(w, in, mask, address);
        return;
    }
    if (run && in->space != SPACE_LOCAL) {
        store_run(w, in, (char *)(uintptr_t)address[0]);
        return;
    }
    for (unsigned i = 0; i < PTX_LANES; i++)
        if (mask >> i & 1) store_lane(w, in, i, address[i]);
}

/* A parameter at a fixed offset is the same for every lane; the parser has checked its bounds. */
void ptx_memory_load_param(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const char *from = (const char *)w->machine->launch->params + in->address.offset;
    if (in->vector == 1) {
        load_broadcast(w, in, mask, from);
        return;
    }
    for (unsigned i = 0; i < PTX_LANES; i++)
        if (mask >> i & 1) ptx_memory_scatter(w, in, i, from);
}

/* Hints: nothing a CPU's caches would gain from. */
void ptx_memory_nop(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    (void)w, (void)in, (void)mask;
}

void ptx_memory_fence(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    (void)mask;
    if (w->machine->launch->checked) ptx_checked_fence(w, in);
    if (in->semantics == SEM_WEAK)
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    else
        __atomic_thread_fence(__ATOMIC_ACQ_REL);
}

void ptx_memory_fence_alias(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    (void)mask;
    if (w->machine->launch->checked) ptx_checked_fence_alias(w, in);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
