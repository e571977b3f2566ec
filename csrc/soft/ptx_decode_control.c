/* Decoding of all that is neither a row of arithmetic nor memory: moves, conversions, comparisons,
 * control flow, barriers, and exchanges between lanes. */
#include <string.h>

#include "ptx_parse.h"

/* ---- moves and selections ---- */

static void decode_pack(struct ptx_parser *p, enum ptx_type type, unsigned index)
{
    const struct ptx_operand *o = &p->operand[index];
    unsigned part = ptx_types[type].size / o->vector;
    enum ptx_type element = part == 4 ? T_b32 : part == 2 ? T_b16 : T_none;
    if (ptx_types[type].class != CLASS_BITS || element == T_none ||
        part * o->vector != ptx_types[type].size)
        ptx_decode_bad(p);
    ptx_operand_vector(p, index, o->vector, element, index == 0);
    for (unsigned i = 0; i < o->vector; i++)
        if (p->insn.v[i].base != BASE_NONE && p->insn.v[i].size != part)
            ptx_module_fail(p, p->insn.line, "%s: an element is too wide", p->opcode);
    p->insn.exec = index ? ptx_move_pack : ptx_move_unpack;
    if (index)
        p->insn.d = ptx_operand_out(p, 0, type);
    else
        p->insn.a = ptx_operand_in(p, 1, type);
}

/* The read of a special register was put just before: make that the mov itself. */
static int fold_special(struct ptx_parser *p)
{
    struct ptx_kernel *k = p->kernel;
    struct ptx_insn *last = k->length ? &k->code[k->length - 1] : NULL;
    if (!last || last->counted || last->exec != ptx_move_special || last->d.at != p->insn.a.at ||
        p->insn.a.base != BASE_REGISTERS)
        return 0;
    p->insn.exec = ptx_move_special;
    p->insn.choice = last->choice;
    k->length--;
    return 1;
}

static void decode_mov(struct ptx_parser *p)
{
    enum ptx_type type = ptx_decode_type(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 2, 2);
    if (p->operand[0].vector || p->operand[1].vector) {
        decode_pack(p, type, p->operand[0].vector ? 0 : 1);
        return;
    }
    if (ptx_types[type].size == 1) ptx_decode_bad(p);
    p->insn.d = ptx_operand_out(p, 0, type);
    p->insn.a = ptx_operand_in(p, 1, type);
    p->insn.exec = ptx_alu_mov;
    fold_special(p);
}

static void decode_selp(struct ptx_parser *p)
{
    enum ptx_type type = ptx_decode_type(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 4, 4);
    if (ptx_types[type].size == 1 || type == T_pred) ptx_decode_bad(p);
    p->insn.exec = ptx_alu_selp;
    p->insn.a = ptx_operand_in(p, 1, type);
    p->insn.b = ptx_operand_in(p, 2, type);
    p->insn.c = ptx_operand_in(p, 3, T_pred);
    p->insn.d = ptx_operand_out(p, 0, type);
}

static void decode_slct(struct ptx_parser *p)
{
    ptx_decode_take(p, "ftz");
    enum ptx_type type = ptx_decode_type(p), by = ptx_decode_type(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 4, 4);
    if ((by != T_s32 && by != T_f32) || ptx_types[type].size == 1 || type == T_pred)
        ptx_decode_bad(p);
    p->insn.exec = ptx_alu_slct;
    p->insn.source_type = by;
    p->insn.a = ptx_operand_in(p, 1, type);
    p->insn.b = ptx_operand_in(p, 2, type);
    p->insn.c = ptx_operand_in(p, 3, by);
    p->insn.d = ptx_operand_out(p, 0, type);
}

static void decode_lop3(struct ptx_parser *p)
{
    if (!ptx_decode_take(p, "b32")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 5, 5);
    p->insn.exec = ptx_alu_lop3;
    p->insn.a = ptx_operand_in(p, 1, T_b32);
    p->insn.b = ptx_operand_in(p, 2, T_b32);
    p->insn.c = ptx_operand_in(p, 3, T_b32);
    uint64_t table = ptx_operand_immediate(p, 4);
    if (table > 255) ptx_module_fail(p, p->insn.line, "%s: a table of 8 bits", p->opcode);
    p->insn.target = (uint32_t)table;
    p->insn.d = ptx_operand_out(p, 0, T_b32);
}

static void decode_bfi(struct ptx_parser *p)
{
    enum ptx_type type = ptx_decode_type(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 5, 5);
    if (type != T_b32 && type != T_b64) ptx_decode_bad(p);
    p->insn.exec = ptx_alu_bfi;
    p->insn.a = ptx_operand_in(p, 1, type);
    p->insn.b = ptx_operand_in(p, 2, type);
    p->insn.c = ptx_operand_in(p, 3, T_u32);
    p->insn.v[0] = ptx_operand_in(p, 4, T_u32);
    p->insn.d = ptx_operand_out(p, 0, type);
}

/* ---- comparisons ---- */

static const char *take_comparison(struct ptx_parser *p)
{
    static const char *const booleans[] = {"and", "or", "xor", NULL};
    const char *op = p->modifier_next < p->modifiers ? p->modifier[p->modifier_next++] : "";
    int boolean = ptx_decode_choose(p, booleans);
    p->insn.choice = (uint8_t)(boolean < 0 ? BOOL_NONE : BOOL_AND + boolean);
    if (ptx_decode_take(p, "ftz")) p->insn.flags = FLAG_FTZ;
    return op;
}

static void find_comparison(struct ptx_parser *p, const char *op, enum ptx_type type)
{
    p->insn.source_type = type;
    if (p->insn.flags & FLAG_FTZ && type != T_f32 && type != T_f16) ptx_decode_bad(p);
    for (unsigned i = 0; i < ptx_compare_count; i++) {
        if (ptx_compare_rows[i].type != type || strcmp(ptx_compare_rows[i].op, op)) continue;
        p->insn.fn.compare = ptx_compare_rows[i].compare;
        return;
    }
    ptx_decode_bad(p);
}

static void comparison_operands(struct ptx_parser *p, enum ptx_type type)
{
    unsigned operands = p->insn.choice == BOOL_NONE ? 3 : 4;
    ptx_operand_count(p, operands, operands);
    p->insn.a = ptx_operand_in(p, 1, type);
    p->insn.b = ptx_operand_in(p, 2, type);
    if (operands == 4) p->insn.c = ptx_operand_in(p, 3, T_pred);
}

/* d or d|p; either may be `_` */
static void pair_dest(struct ptx_parser *p, enum ptx_type type)
{
    const struct ptx_operand *o = &p->operand[0];
    if (o->vector || o->is_address)
        ptx_module_fail(p, p->insn.line, "%s: operand 1 is not a plain one", p->opcode);
    p->insn.d = ptx_operand_dest(p, &o->atom, type, 0);
    if (o->pair.kind != ATOM_NONE) p->insn.d2 = ptx_operand_dest(p, &o->pair, T_pred, 0);
}

static void decode_setp(struct ptx_parser *p)
{
    const char *op = take_comparison(p);
    enum ptx_type type = ptx_decode_type(p);
    ptx_decode_end(p);
    find_comparison(p, op, type);
    comparison_operands(p, type);
    p->insn.exec = ptx_alu_setp;
    pair_dest(p, T_pred);
}

static void decode_set(struct ptx_parser *p)
{
    const char *op = take_comparison(p);
    enum ptx_type result = ptx_decode_type(p), type = ptx_decode_type(p);
    ptx_decode_end(p);
    if (result != T_u32 && result != T_s32 && result != T_f32) ptx_decode_bad(p);
    find_comparison(p, op, type);
    comparison_operands(p, type);
    p->insn.exec = ptx_alu_set;
    p->insn.type = result;
    p->insn.d = ptx_operand_out(p, 0, result);
}

static void decode_testp(struct ptx_parser *p)
{
    static const char *const tests[] = {"finite", "infinite",  "number", "notanumber",
                                        "normal", "subnormal", NULL};
    int test = ptx_decode_choose(p, tests);
    enum ptx_type type = ptx_decode_type(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 2, 2);
    if (test < 0 || (type != T_f32 && type != T_f64)) ptx_decode_bad(p);
    p->insn.exec = ptx_alu_testp;
    p->insn.choice = (uint8_t)test;
    p->insn.source_type = type;
    p->insn.a = ptx_operand_in(p, 1, type);
    p->insn.d = ptx_operand_out(p, 0, T_pred);
}

/* ---- addresses ---- */

static void take_window(struct ptx_parser *p)
{
    int space = ptx_decode_space(p);
    if (space < 0) ptx_decode_bad(p);
    p->insn.space = (uint8_t)space;
}

static void decode_cvta(struct ptx_parser *p)
{
    p->insn.choice = (uint8_t)ptx_decode_take(p, "to");
    take_window(p);
    if (!ptx_decode_take(p, "u64")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 2, 2);
    p->insn.exec = ptx_move_cvta;
    p->insn.a = ptx_operand_in(p, 1, T_u64);
    p->insn.d = ptx_operand_out(p, 0, T_u64);
}

static void decode_isspacep(struct ptx_parser *p)
{
    take_window(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 2, 2);
    p->insn.exec = ptx_move_isspacep;
    p->insn.a = ptx_operand_in(p, 1, T_u64);
    p->insn.d = ptx_operand_out(p, 0, T_pred);
}

/* ---- control flow ---- */

static void decode_bra(struct ptx_parser *p)
{
    ptx_decode_take(p, "uni");
    ptx_decode_end(p);
    ptx_operand_count(p, 1, 1);
    const struct ptx_atom *label = ptx_operand_atom(p, 0);
    if (label->kind != ATOM_NAME) ptx_module_fail(p, p->insn.line, "bra needs a label");
    p->insn.exec = ptx_warp_branch;
    p->fixups = ptx_module_grow(p, p->fixups, p->fixup_count, &p->fixup_room, sizeof *p->fixups);
    p->fixups[p->fixup_count++] = (struct ptx_fixup){.name = label->token.at,
                                                     .length = label->token.length,
                                                     .scope = p->scope,
                                                     .insn = p->kernel->length,
                                                     .line = p->insn.line};
}

static void bare(struct ptx_parser *p, ptx_exec *exec)
{
    ptx_decode_end(p);
    ptx_operand_count(p, 0, 0);
    p->insn.exec = exec;
}

static void decode_exit(struct ptx_parser *p) { bare(p, ptx_warp_exit); }

static void decode_ret(struct ptx_parser *p)
{
    ptx_decode_take(p, "uni");
    bare(p, ptx_warp_exit);
}

static void decode_trap(struct ptx_parser *p) { bare(p, ptx_warp_trap); }

static void decode_nanosleep(struct ptx_parser *p)
{
    if (!ptx_decode_take(p, "u32")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 1, 1);
    p->insn.a = ptx_operand_in(p, 0, T_u32);
    p->insn.exec = ptx_warp_nanosleep;
}

/* Nothing is launched before its predecessor has ended here, so there is nothing to wait for. */
static void decode_griddepcontrol(struct ptx_parser *p)
{
    if (!ptx_decode_take(p, "wait") && !ptx_decode_take(p, "launch_dependents")) ptx_decode_bad(p);
    bare(p, ptx_memory_nop);
}

/* ---- barriers ---- */

static void decode_bar_warp(struct ptx_parser *p)
{
    if (!ptx_decode_take(p, "sync")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 1, 1);
    p->insn.exec = ptx_sync_bar_warp;
    p->insn.v[0] = ptx_operand_in(p, 0, T_b32);
}

/* What is called bar is aligned; barrier is where it says so. */
static void take_aligned(struct ptx_parser *p)
{
    if (ptx_decode_take(p, "aligned") || !strncmp(p->opcode, "bar.", 4))
        p->insn.flags |= FLAG_ALIGNED;
}

/* bar.red: d, number [, threads], [!]p */
static void decode_bar_red(struct ptx_parser *p)
{
    static const char *const ops[] = {"popc", "and", "or", NULL};
    int op = ptx_decode_choose(p, ops);
    if (op < 0) ptx_decode_bad(p);
    take_aligned(p);
    enum ptx_type type = ptx_decode_type(p);
    if (type != (op == 0 ? T_u32 : T_pred)) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 3, 4);
    p->insn.choice = (uint8_t)(BARRIER_POPC + op);
    p->insn.a = ptx_operand_in(p, 1, T_u32);
    if (p->operands == 4) p->insn.b = ptx_operand_in(p, 2, T_u32);
    p->insn.c = ptx_operand_in(p, p->operands - 1, T_pred);
    p->insn.d = ptx_operand_out(p, 0, type);
}

static void decode_bar(struct ptx_parser *p)
{
    if (ptx_decode_take(p, "warp")) {
        decode_bar_warp(p);
        return;
    }
    ptx_decode_take(p, "cta");
    p->insn.exec = ptx_block_barrier;
    if (ptx_decode_take(p, "red")) {
        decode_bar_red(p);
        return;
    }
    int arrive = ptx_decode_take(p, "arrive");
    if (!arrive && !ptx_decode_take(p, "sync")) ptx_decode_bad(p);
    take_aligned(p);
    ptx_decode_end(p);
    ptx_operand_count(p, arrive ? 2 : 1, 2);
    p->insn.choice = arrive ? BARRIER_ARRIVE : BARRIER_SYNC;
    p->insn.a = ptx_operand_in(p, 0, T_u32);
    if (p->operands == 2) p->insn.b = ptx_operand_in(p, 1, T_u32);
}

/* ---- between lanes ---- */

static void member_mask(struct ptx_parser *p, unsigned index)
{
    p->insn.v[0] = ptx_operand_in(p, index, T_b32);
}

static void need_sync(struct ptx_parser *p)
{
    if (!ptx_decode_take(p, "sync")) ptx_decode_bad(p);
}

static void decode_shfl(struct ptx_parser *p)
{
    static const char *const modes[] = {"up", "down", "bfly", "idx", NULL};
    need_sync(p);
    int mode = ptx_decode_choose(p, modes);
    if (mode < 0 || !ptx_decode_take(p, "b32")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 5, 5);
    p->insn.exec = ptx_sync_shfl;
    p->insn.choice = (uint8_t)mode;
    p->insn.a = ptx_operand_in(p, 1, T_b32);
    p->insn.b = ptx_operand_in(p, 2, T_b32);
    p->insn.c = ptx_operand_in(p, 3, T_b32);
    member_mask(p, 4);
    pair_dest(p, T_b32);
}

static void decode_vote(struct ptx_parser *p)
{
    static const char *const modes[] = {"all", "any", "uni", "ballot", NULL};
    need_sync(p);
    int mode = ptx_decode_choose(p, modes);
    if (mode < 0 || !ptx_decode_take(p, mode == VOTE_BALLOT ? "b32" : "pred")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 3, 3);
    p->insn.exec = ptx_sync_vote;
    p->insn.choice = (uint8_t)mode;
    p->insn.a = ptx_operand_in(p, 1, T_pred);
    member_mask(p, 2);
    p->insn.d = ptx_operand_out(p, 0, mode == VOTE_BALLOT ? T_b32 : T_pred);
}

static void decode_match(struct ptx_parser *p)
{
    int all = ptx_decode_take(p, "all");
    if (!all && !ptx_decode_take(p, "any")) ptx_decode_bad(p);
    need_sync(p);
    enum ptx_type type = ptx_decode_type(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 3, 3);
    if (type != T_b32 && type != T_b64) ptx_decode_bad(p);
    p->insn.exec = ptx_sync_match;
    p->insn.choice = all ? MATCH_ALL : MATCH_ANY;
    p->insn.a = ptx_operand_in(p, 1, type);
    member_mask(p, 2);
    pair_dest(p, T_b32);
    if (!all && p->insn.d2.base != BASE_NONE) ptx_decode_bad(p);
}

static void decode_redux(struct ptx_parser *p)
{
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor", NULL};
    need_sync(p);
    int op = ptx_decode_choose(p, ops);
    enum ptx_type type = ptx_decode_type(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 3, 3);
    if (op < 0 || (op < 3 ? type != T_u32 && type != T_s32 : type != T_b32)) ptx_decode_bad(p);
    p->insn.exec = ptx_sync_redux;
    p->insn.fn.reduce = ptx_reduce_find(ops[op], type);
    p->insn.a = ptx_operand_in(p, 1, type);
    member_mask(p, 2);
    p->insn.d = ptx_operand_out(p, 0, type);
}

static void decode_elect(struct ptx_parser *p)
{
    need_sync(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 2, 2);
    p->insn.exec = ptx_sync_elect;
    member_mask(p, 1);
    pair_dest(p, T_b32);
}

static void decode_activemask(struct ptx_parser *p)
{
    if (!ptx_decode_take(p, "b32")) ptx_decode_bad(p);
    ptx_decode_end(p);
    ptx_operand_count(p, 1, 1);
    p->insn.exec = ptx_sync_activemask;
    p->insn.d = ptx_operand_out(p, 0, T_b32);
}

const struct ptx_decode_row ptx_decode_control[] = {{"mov", decode_mov},
                                                    {"cvt", ptx_decode_cvt},
                                                    {"selp", decode_selp},
                                                    {"slct", decode_slct},
                                                    {"lop3", decode_lop3},
                                                    {"bfi", decode_bfi},
                                                    {"setp", decode_setp},
                                                    {"set", decode_set},
                                                    {"testp", decode_testp},
                                                    {"cvta", decode_cvta},
                                                    {"isspacep", decode_isspacep},
                                                    {"bra", decode_bra},
                                                    {"exit", decode_exit},
                                                    {"ret", decode_ret},
                                                    {"trap", decode_trap},
                                                    {"brkpt", decode_trap},
                                                    {"nanosleep", decode_nanosleep},
                                                    {"griddepcontrol", decode_griddepcontrol},
                                                    {"bar", decode_bar},
                                                    {"barrier", decode_bar},
                                                    {"shfl", decode_shfl},
                                                    {"vote", decode_vote},
                                                    {"match", decode_match},
                                                    {"redux", decode_redux},
                                                    {"elect", decode_elect},
                                                    {"activemask", decode_activemask},
                                                    {NULL, NULL}};
