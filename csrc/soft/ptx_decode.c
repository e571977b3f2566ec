/* From an opcode with its modifiers and operands to a decoded instruction: the frame, and the
 * arithmetic that the rows list. Memory instructions are in ptx_decode_memory.c, multimem in
 * ptx_decode_multimem.c, the rest in ptx_decode_control.c. */
#include <stdio.h>
#include <string.h>

#include "ptx_parse.h"

/* ---- the frame ---- */

void ptx_decode_append(struct ptx_parser *p, const struct ptx_insn *insn)
{
    struct ptx_kernel *k = p->kernel;
    size_t room = p->code_room;
    k->code = ptx_module_grow(p, k->code, k->length, &room, sizeof *k->code);
    p->code_room = (uint32_t)room;
    k->code[k->length++] = *insn;
}

/* "ld.global.L1::no_allocate.u32": the first word to `words`, the others to `modifier`. */
static void split_opcode(struct ptx_parser *p)
{
    const struct ptx_token *t = &p->token;
    if (t->length >= PTX_OPCODE || t->kind != TOKEN_WORD || *t->at == '.')
        ptx_module_fail(p, t->line, "an instruction is due before '%.*s'", (int)t->length, t->at);
    memcpy(p->opcode, t->at, t->length);
    p->opcode[t->length] = '\0';
    strcpy(p->words, p->opcode);
    p->modifiers = p->modifier_next = 0;
    for (char *dot = strchr(p->words, '.'); dot; dot = strchr(dot, '.')) {
        *dot++ = '\0';
        if (p->modifiers == PTX_MODIFIERS)
            ptx_module_fail(p, t->line, "too many modifiers: %s", p->opcode);
        p->modifier[p->modifiers++] = dot;
    }
}

int ptx_decode_take(struct ptx_parser *p, const char *modifier)
{
    if (p->modifier_next == p->modifiers || strcmp(p->modifier[p->modifier_next], modifier))
        return 0;
    p->modifier_next++;
    return 1;
}

int ptx_decode_choose(struct ptx_parser *p, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (ptx_decode_take(p, names[i])) return i;
    return -1;
}

int ptx_decode_scope(struct ptx_parser *p)
{
    static const char *const scopes[] = {"cta", "cluster", "gpu", "sys", NULL};
    int scope = ptx_decode_choose(p, scopes);
    if (scope >= 0) p->insn.scope = (uint8_t)scope;
    return scope >= 0;
}

int ptx_decode_space(struct ptx_parser *p)
{
    static const char *const names[] = {"global", "const", "shared", "shared::cta",
                                        "local",  "param", NULL};
    static const int spaces[] = {SPACE_GLOBAL, SPACE_CONST, SPACE_SHARED,
                                 SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM};
    int which = ptx_decode_choose(p, names);
    return which < 0 ? -1 : spaces[which];
}

unsigned ptx_decode_vector(struct ptx_parser *p)
{
    static const char *const names[] = {"v2", "v4", "v8", NULL};
    int which = ptx_decode_choose(p, names);
    return which < 0 ? 1 : 2u << which;
}

void ptx_decode_bad(struct ptx_parser *p)
{
    ptx_module_fail(p, p->insn.line, "unknown instruction or modifier: %s", p->opcode);
}

enum ptx_type ptx_decode_type(struct ptx_parser *p)
{
    const char *word = p->modifier_next < p->modifiers ? p->modifier[p->modifier_next++] : "";
    enum ptx_type type = ptx_symbol_type(word, strlen(word));
    if (type == T_none) ptx_decode_bad(p);
    return type;
}

void ptx_decode_end(struct ptx_parser *p)
{
    if (p->modifier_next != p->modifiers) ptx_decode_bad(p);
}

/* ---- what a target and a version know ---- */

/* The lowest .target and .version of an opcode that has this text among its modifiers. Those that
 * every GPU from sm_70 on and every version from 6.3 on know are not listed. */
static const struct {
    const char *opcode, *modifier;
    unsigned target, version;
} needs[] = {{"multimem", "", 90, 81},       {"multimem", "acc::f32", 90, 82},
             {"elect", "", 90, 80},          {"fence", "proxy.async", 90, 80},
             {"griddepcontrol", "", 90, 78}, {"redux", "", 80, 70},
             {"tanh", "", 75, 70},           {"add", ".bf16", 90, 78},
             {"sub", ".bf16", 90, 78},       {"mul", ".bf16", 90, 78},
             {"fma", ".bf16", 80, 70},       {"neg", ".bf16", 80, 70},
             {"abs", ".bf16", 80, 70},       {"min", "f16", 80, 70},
             {"max", "f16", 80, 70},         {"min", ".NaN", 80, 70},
             {"max", ".NaN", 80, 70},        {"add", ".u16x2", 90, 80},
             {"add", ".s16x2", 90, 80},      {"min", ".u16x2", 90, 80},
             {"min", ".s16x2", 90, 80},      {"max", ".u16x2", 90, 80},
             {"max", ".s16x2", 90, 80},      {"setp", ".bf16", 90, 78},
             {"atom", ".bf16", 90, 78},      {"red", ".bf16", 90, 78},
             {"cvt", ".bf16", 80, 70},       {"cvt", "f32.bf16", 90, 78},
             {"cvt", "f16x2.f32", 80, 70}};

static void check_target(struct ptx_parser *p)
{
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        if (strcmp(needs[i].opcode, p->words) || !strstr(p->opcode, needs[i].modifier)) continue;
        if (p->target >= needs[i].target && p->version >= needs[i].version) continue;
        ptx_module_fail(p, p->insn.line, "%s needs .target sm_%u and .version %u.%u", p->opcode,
                        needs[i].target, needs[i].version / 10, needs[i].version % 10);
    }
}

/* ---- rows ---- */

static const struct ptx_row *search(const struct ptx_row *rows, unsigned count, const char *form)
{
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(rows[i].form, form)) return &rows[i];
    return NULL;
}

const struct ptx_row *ptx_decode_find_row(const char *form)
{
    const struct ptx_row *row = search(ptx_int_rows, ptx_int_count, form);
    return row ? row : search(ptx_float_rows, ptx_float_count, form);
}

/* A modifier that applies around a row's operation: its flag, with the rounding set. */
static unsigned around(struct ptx_insn *in, const char *word)
{
    static const struct {
        const char *word;
        uint8_t rounding;
    } modes[] = {{"rn", ROUND_RN}, {"rz", ROUND_RZ}, {"rm", ROUND_RM}, {"rp", ROUND_RP}};
    if (!strcmp(word, "ftz")) return FLAG_FTZ;
    if (!strcmp(word, "sat")) return FLAG_SAT;
    for (unsigned i = 0; i < 4; i++) {
        if (strcmp(word, modes[i].word)) continue;
        if (in->rounding != ROUND_NONE) return 0;
        in->rounding = modes[i].rounding;
        return modes[i].rounding == ROUND_RN ? FLAG_ROUND | FLAG_NEAREST : FLAG_ROUND;
    }
    return 0;
}

/* Strips the modifiers that the row's flags stand for; writes the form without them. */
static const struct ptx_row *strip(struct ptx_parser *p, unsigned *given_out)
{
    char form[PTX_OPCODE];
    unsigned given = 0;
    p->insn.rounding = ROUND_NONE;
    strcpy(form, p->words);
    for (unsigned i = 0; i < p->modifiers; i++) {
        unsigned flag = i + 1 < p->modifiers ? around(&p->insn, p->modifier[i]) : 0;
        if (flag & given) ptx_decode_bad(p);
        given |= flag;
        if (flag) continue;
        strcat(form, ".");
        strcat(form, p->modifier[i]);
    }
    *given_out = given;
    return ptx_decode_find_row(form);
}

static int allowed(const struct ptx_row *row, unsigned given)
{
    unsigned rounding = FLAG_ROUND | FLAG_NEAREST;
    if ((given & ~row->flags) & (FLAG_FTZ | FLAG_SAT)) return 0;
    if (given & rounding) return (given & row->flags & rounding) != 0;
    return !(row->flags & FLAG_ROUND_MUST);
}

static void decode_row(struct ptx_parser *p, const struct ptx_row *row, unsigned given)
{
    const uint8_t types[3] = {row->a, row->b, row->c};
    struct ptx_ref *refs[3] = {&p->insn.a, &p->insn.b, &p->insn.c};
    unsigned sources = 0;
    while (sources < 3 && types[sources] != T_none)
        sources++;
    ptx_operand_count(p, sources + 1, sources + 1);
    int plain = !(given & (FLAG_FTZ | FLAG_SAT)) && p->insn.rounding <= ROUND_RN;
    p->insn.exec = plain ? ptx_alu_plain : ptx_alu_flags;
    p->insn.fn.alu = row->alu;
    p->insn.type = row->d;
    p->insn.flags = (uint8_t)(given & (FLAG_FTZ | FLAG_SAT));
    for (unsigned i = 0; i < sources; i++)
        *refs[i] = ptx_operand_in(p, i + 1, (enum ptx_type)types[i]);
    p->insn.d = ptx_operand_out(p, 0, (enum ptx_type)row->d);
}

/* An exact row first (add.sat.s32 is one), then one whose flags cover what was given. */
static int decode_arithmetic(struct ptx_parser *p)
{
    unsigned given = 0;
    const struct ptx_row *row = ptx_decode_find_row(p->opcode);
    p->insn.rounding = ROUND_NONE;
    if (!row) row = strip(p, &given);
    if (!row || !allowed(row, given)) return 0;
    decode_row(p, row, given);
    return 1;
}

static int decode_named(struct ptx_parser *p, const struct ptx_decode_row *rows)
{
    for (; rows->name; rows++) {
        if (strcmp(rows->name, p->words)) continue;
        rows->decode(p);
        return 1;
    }
    return 0;
}

static int ends_with_pred(const struct ptx_parser *p)
{
    return p->modifiers && !strcmp(p->modifier[p->modifiers - 1], "pred");
}

/* and, or, xor, not on predicates */
static int decode_predicate_logic(struct ptx_parser *p)
{
    static const struct {
        const char *opcode;
        uint8_t boolean;
    } rows[] = {{"and.pred", BOOL_AND},
                {"or.pred", BOOL_OR},
                {"xor.pred", BOOL_XOR},
                {"not.pred", BOOL_NOT},
                {"mov.pred", BOOL_MOV}};
    if (!ends_with_pred(p)) return 0;
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].opcode, p->opcode)) continue;
        unsigned sources = rows[i].boolean >= BOOL_NOT ? 1 : 2;
        ptx_operand_count(p, sources + 1, sources + 1);
        p->insn.exec = ptx_alu_pred_logic;
        p->insn.choice = rows[i].boolean;
        p->insn.a = ptx_operand_in(p, 1, T_pred);
        if (sources == 2) p->insn.b = ptx_operand_in(p, 2, T_pred);
        p->insn.d = ptx_operand_out(p, 0, T_pred);
        return 1;
    }
    return 0;
}

static const struct ptx_insn blank = {.d = {.base = BASE_NONE},
                                      .d2 = {.base = BASE_NONE},
                                      .a = {.base = BASE_NONE},
                                      .b = {.base = BASE_NONE},
                                      .c = {.base = BASE_NONE},
                                      .address = {.reg = {.base = BASE_NONE}},
                                      .counted = 1,
                                      .vector = 1};

void ptx_decode_instruction(struct ptx_parser *p, uint32_t guard, int flip)
{
    uint32_t line = p->token.line;
    split_opcode(p);
    ptx_lex_next(p);
    p->insn = blank;
    p->temporaries = 0;
    p->insn.line = line;
    p->insn.guard = guard;
    p->insn.guard_flip = flip ? PTX_ALL_LANES : 0;
    ptx_operand_parse_all(p);
    if (!decode_predicate_logic(p) && !decode_named(p, ptx_decode_memory) &&
        !decode_named(p, ptx_decode_control) && !decode_arithmetic(p))
        ptx_decode_bad(p);
    check_target(p);
    ptx_decode_append(p, &p->insn);
    for (unsigned i = 0; i < p->temporaries; i++)
        ptx_symbol_release(p, p->temporary[i].size == 8 ? T_b64 : T_b32, p->temporary[i].at);
}

unsigned ptx_opcode_count(void)
{
    /* setp takes each comparison alone or with and, or, xor; and.pred and its like are five */
    unsigned count = ptx_int_count + ptx_float_count + 4 * ptx_compare_count + 5;
    for (const struct ptx_decode_row *row = ptx_decode_memory; row->name; row++)
        count++;
    for (const struct ptx_decode_row *row = ptx_decode_control; row->name; row++)
        count++;
    return count + ptx_decode_multimem_forms();
}
