/* Decoding of ld, st, atom, red, fences and hints. */
#include <string.h>

#include "ptx_parse.h"

/* ---- modifiers that several share ---- */

static void need_scope(struct ptx_parser *p)
{
    if (!ptx_decode_scope(p)) ptx_decode_bad(p);
}

static void take_space(struct ptx_parser *p)
{
    int space = ptx_decode_space(p);
    p->insn.space = (uint8_t)(space < 0 ? SPACE_GENERIC : space);
}

/* Where to keep the data in caches: says nothing about values. Each kind at most once. */
static void take_cache_hints(struct ptx_parser *p, const char *const *operators)
{
    static const char *const l1[] = {"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
                                     "L1::evict_last",   "L1::no_allocate",     NULL};
    static const char *const l2[] = {"L2::evict_normal", "L2::evict_first", "L2::evict_last", NULL};
    static const char *const sizes[] = {"L2::64B", "L2::128B", "L2::256B", NULL};
    const char *const *const kinds[] = {operators, l1, l2, sizes};
    for (unsigned i = 0; i < 4; i++)
        ptx_decode_choose(p, kinds[i]);
}

static void take_vector_and_type(struct ptx_parser *p, int is_dest)
{
    unsigned vector = ptx_decode_vector(p);
    enum ptx_type type = ptx_decode_type(p);
    p->insn.type = type;
    ptx_decode_end(p);
    ptx_operand_count(p, 2, 2);
    if (type == T_pred || ptx_types[type].name[strlen(ptx_types[type].name) - 2] == 'x')
        ptx_decode_bad(p);
    if (vector == 8 || vector * ptx_types[type].size > 16 || type == T_f16 || type == T_bf16)
        ptx_decode_bad(p);
    ptx_operand_address(p, is_dest ? 1 : 0);
    ptx_operand_vector(p, is_dest ? 0 : 1, vector, type, is_dest);
}

/* ---- ld and st ---- */

/* A parameter at a fixed place is read once for all lanes. */
static void fix_param(struct ptx_parser *p)
{
    uint64_t bytes = p->insn.vector * ptx_types[p->insn.type].size;
    int64_t at = p->insn.address.offset;
    if (p->insn.address.reg.base != BASE_NONE) return;
    if (at < 0 || (uint64_t)at + bytes > p->kernel->info.param_bytes || (uint64_t)at % bytes)
        ptx_module_fail(p, p->insn.line, "%s: offset %lld is outside the parameters or misaligned",
                        p->opcode, (long long)at);
    p->insn.exec = ptx_memory_load_param;
}

static void decode_ld(struct ptx_parser *p)
{
    static const char *const sems[] = {"weak", "volatile", "relaxed", "acquire", NULL};
    static const uint8_t values[] = {SEM_WEAK, SEM_VOLATILE, SEM_RELAXED, SEM_ACQUIRE};
    static const char *const operators[] = {"ca", "cg", "cs", "lu", "cv", "nc", NULL};
    int sem = ptx_decode_choose(p, sems);
    p->insn.semantics = sem < 0 ? SEM_WEAK : values[sem];
    p->insn.scope = SCOPE_SYS; /* of volatile */
    if (sem >= 2) need_scope(p);
    take_space(p);
    take_cache_hints(p, operators);
    p->insn.exec = ptx_memory_load;
    take_vector_and_type(p, 1);
    if (p->insn.space == SPACE_PARAM) {
        if (sem > 0) ptx_decode_bad(p);
        fix_param(p);
    }
}

static void decode_st(struct ptx_parser *p)
{
    static const char *const sems[] = {"weak", "volatile", "relaxed", "release", NULL};
    static const uint8_t values[] = {SEM_WEAK, SEM_VOLATILE, SEM_RELAXED, SEM_RELEASE};
    static const char *const operators[] = {"wb", "cg", "cs", "wt", NULL};
    int sem = ptx_decode_choose(p, sems);
    p->insn.semantics = sem < 0 ? SEM_WEAK : values[sem];
    p->insn.scope = SCOPE_SYS; /* of volatile */
    if (sem >= 2) need_scope(p);
    take_space(p);
    if (p->insn.space == SPACE_PARAM || p->insn.space == SPACE_CONST) ptx_decode_bad(p);
    take_cache_hints(p, operators);
    p->insn.exec = ptx_memory_store;
    take_vector_and_type(p, 0);
}

/* ---- atom and red ---- */

static void take_atomic_head(struct ptx_parser *p, const char *const *sems)
{
    static const uint8_t values[] = {SEM_RELAXED, SEM_ACQUIRE, SEM_RELEASE, SEM_ACQ_REL};
    int sem = ptx_decode_choose(p, sems);
    p->insn.semantics = sem < 0 ? SEM_RELAXED : values[sem];
    p->insn.scope = SCOPE_GPU; /* unless said otherwise */
    int scope = ptx_decode_scope(p);
    take_space(p);
    if (!scope) ptx_decode_scope(p);
    if (p->insn.space != SPACE_GENERIC && p->insn.space != SPACE_GLOBAL &&
        p->insn.space != SPACE_SHARED)
        ptx_decode_bad(p);
}

/* Halves are added without flushing, and that has to be said. */
static const struct ptx_reduce *take_reduction(struct ptx_parser *p)
{
    static const char *const ops[] = {"add", "min", "max", "and",  "or",
                                      "xor", "inc", "dec", "exch", NULL};
    int op = ptx_decode_choose(p, ops);
    if (op < 0) ptx_decode_bad(p);
    int noftz = ptx_decode_take(p, "noftz");
    enum ptx_type type = ptx_decode_type(p);
    int half = ptx_types[type].class == CLASS_FLOAT && type != T_f32 && type != T_f64;
    if (noftz != half || (half && op != 0)) ptx_decode_bad(p);
    const struct ptx_reduce *row = ptx_reduce_find(ops[op], type);
    if (!row) ptx_decode_bad(p);
    ptx_decode_end(p);
    p->insn.type = type;
    return row;
}

static void decode_cas(struct ptx_parser *p)
{
    enum ptx_type type = ptx_decode_type(p);
    if (type != T_b16 && type != T_b32 && type != T_b64) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 4, 4);
    p->insn.type = type;
    p->insn.c = ptx_operand_in(p, 3, type);
}

static void decode_atom(struct ptx_parser *p)
{
    static const char *const sems[] = {"relaxed", "acquire", "release", "acq_rel", NULL};
    p->insn.exec = ptx_atom_exec;
    take_atomic_head(p, sems);
    if (ptx_decode_take(p, "cas")) {
        decode_cas(p);
    } else {
        p->insn.fn.reduce = take_reduction(p);
        ptx_operand_count(p, 3, 3);
    }
    enum ptx_type type = (enum ptx_type)p->insn.type;
    ptx_operand_address(p, 1);
    p->insn.v[0] = ptx_operand_in(p, 2, type);
    p->insn.d = ptx_operand_dest(p, ptx_operand_atom(p, 0), type, 0);
}

static void decode_red(struct ptx_parser *p)
{
    static const char *const sems[] = {"relaxed", "", "release", NULL};
    p->insn.exec = ptx_atom_exec;
    take_atomic_head(p, sems);
    p->insn.fn.reduce = take_reduction(p);
    if (!strcmp(p->insn.fn.reduce->op, "exch")) ptx_decode_bad(p);
    ptx_operand_count(p, 2, 2);
    ptx_operand_address(p, 0);
    p->insn.v[0] = ptx_operand_in(p, 1, (enum ptx_type)p->insn.type);
}

/* ---- fences and hints ---- */

static void decode_membar(struct ptx_parser *p)
{
    static const char *const levels[] = {"cta", "gl", "sys", NULL};
    static const uint8_t scopes[] = {SCOPE_CTA, SCOPE_GPU, SCOPE_SYS};
    int level = ptx_decode_choose(p, levels);
    if (level < 0) ptx_decode_bad(p);
    p->insn.scope = scopes[level];
    ptx_decode_end(p);
    ptx_operand_count(p, 0, 0);
    p->insn.exec = ptx_memory_fence;
    p->insn.semantics = SEM_WEAK; /* membar is fence.sc */
}

/* There is no second proxy to wait for but that of aliases, and it only in checked mode. */
static int take_proxy(struct ptx_parser *p)
{
    static const char *const kinds[] = {"alias", "async", NULL};
    static const char *const spaces[] = {"global", "shared::cta", "shared::cluster", NULL};
    if (!ptx_decode_take(p, "proxy")) return 0;
    int kind = ptx_decode_choose(p, kinds);
    if (kind < 0) ptx_decode_bad(p);
    if (kind == 1) ptx_decode_choose(p, spaces);
    p->insn.semantics = SEM_WEAK;
    p->insn.scope = SCOPE_CTA;
    if (kind == 0) p->insn.exec = ptx_memory_fence_alias;
    return 1;
}

static void decode_fence(struct ptx_parser *p)
{
    static const char *const sems[] = {"sc", "acq_rel", "release", "acquire", NULL};
    p->insn.exec = ptx_memory_fence;
    if (!take_proxy(p)) {
        int sem = ptx_decode_choose(p, sems);
        p->insn.semantics = sem == 0 ? SEM_WEAK : SEM_ACQ_REL;
        need_scope(p);
    }
    ptx_decode_end(p);
    ptx_operand_count(p, 0, 0);
}

static void decode_prefetch(struct ptx_parser *p)
{
    static const char *const levels[] = {"L1", "L2", "L2::evict_last", "L2::evict_normal", NULL};
    take_space(p);
    if (ptx_decode_choose(p, levels) < 0 || p->insn.space > SPACE_GLOBAL) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 1, 1);
    ptx_operand_address(p, 0);
    p->insn.exec = ptx_memory_nop;
}

static void decode_prefetchu(struct ptx_parser *p)
{
    if (!ptx_decode_take(p, "L1")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 1, 1);
    ptx_operand_address(p, 0);
    p->insn.exec = ptx_memory_nop;
}

const struct ptx_decode_row ptx_decode_memory[] = {{"ld", decode_ld},
                                                   {"st", decode_st},
                                                   {"atom", decode_atom},
                                                   {"red", decode_red},
                                                   {"membar", decode_membar},
                                                   {"fence", decode_fence},
                                                   {"prefetch", decode_prefetch},
                                                   {"prefetchu", decode_prefetchu},
                                                   {"multimem", ptx_decode_multimem},
                                                   {NULL, NULL}};
