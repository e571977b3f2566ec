/* Operands: first as they are written, then as references of the type that the instruction
 * wants. */
#include <stdlib.h>
#include <string.h>

#include "ptx_parse.h"

/* ---- as written ---- */

static struct ptx_atom parse_atom(struct ptx_parser *p)
{
    struct ptx_atom atom = {0};
    int minus = 0;
    if (ptx_lex_take(p, "!")) atom.negate = 1;
    if (ptx_lex_take(p, "-")) minus = 1;
    atom.token = p->token;
    switch (p->token.kind) {
    case TOKEN_WORD:
        atom.kind = ptx_lex_is(p, "_") ? ATOM_SINK : ATOM_NAME;
        break;
    case TOKEN_INTEGER:
        atom.kind = ATOM_INTEGER;
        if (minus) atom.token.bits = 0 - atom.token.bits;
        break;
    case TOKEN_FLOAT:
        atom.kind = ATOM_FLOAT;
        if (minus) atom.token.bits ^= (uint64_t)1 << (atom.token.size == 4 ? 31 : 63);
        break;
    default:
        ptx_module_fail(p, p->token.line, "an operand is due before '%.*s'", (int)p->token.length,
                        p->token.at);
    }
    if (minus && p->token.kind == TOKEN_WORD)
        ptx_module_fail(p, p->token.line, "'-' before '%.*s'", (int)p->token.length, p->token.at);
    ptx_lex_next(p);
    return atom;
}

static void parse_vector(struct ptx_parser *p, struct ptx_operand *o)
{
    do {
        if (o->vector == PTX_VECTOR)
            ptx_module_fail(p, p->token.line, "a vector of more than %d", PTX_VECTOR);
        o->element[o->vector++] = parse_atom(p);
    } while (ptx_lex_take(p, ","));
    ptx_lex_expect(p, "}");
}

static void parse_address(struct ptx_parser *p, struct ptx_operand *o)
{
    o->is_address = 1;
    o->atom = parse_atom(p);
    if (o->atom.negate || o->atom.kind == ATOM_FLOAT || o->atom.kind == ATOM_SINK)
        ptx_module_fail(p, o->atom.token.line, "not an address");
    while (ptx_lex_take(p, "+")) { /* [x+512+4] is a sum of constants */
        int minus = ptx_lex_take(p, "-");
        uint64_t offset = ptx_lex_integer(p);
        o->offset += (int64_t)(minus ? 0 - offset : offset);
    }
    ptx_lex_expect(p, "]");
}

static void parse_operand(struct ptx_parser *p)
{
    if (p->operands == PTX_OPERANDS)
        ptx_module_fail(p, p->token.line, "too many operands for %s", p->opcode);
    struct ptx_operand *o = &p->operand[p->operands++];
    memset(o, 0, sizeof *o);
    if (ptx_lex_take(p, "{"))
        parse_vector(p, o);
    else if (ptx_lex_take(p, "["))
        parse_address(p, o);
    else {
        o->atom = parse_atom(p);
        if (ptx_lex_take(p, "|")) o->pair = parse_atom(p);
    }
}

void ptx_operand_parse_all(struct ptx_parser *p)
{
    p->operands = 0;
    if (ptx_lex_take(p, ";")) return;
    do
        parse_operand(p);
    while (ptx_lex_take(p, ","));
    ptx_lex_expect(p, ";");
}

void ptx_operand_count(struct ptx_parser *p, unsigned least, unsigned most)
{
    if (p->operands >= least && p->operands <= most) return;
    ptx_module_fail(p, p->insn.line, "%s with %u operands", p->opcode, p->operands);
}

/* ---- as references ---- */

static int fits(enum ptx_type want, enum ptx_type have, int wide)
{
    const struct ptx_type_info *w = &ptx_types[want], *h = &ptx_types[have];
    if (want == T_pred || have == T_pred) return want == have;
    if (h->size < w->size || (h->size > w->size && !wide)) return 0;
    if (w->class == CLASS_BITS || h->class == CLASS_BITS) return 1;
    if (w->class == CLASS_FLOAT) return want == have;
    return h->class == CLASS_INT;
}

static _Noreturn void mismatch(struct ptx_parser *p, const struct ptx_token *t, enum ptx_type want)
{
    ptx_module_fail(p, t->line, "%s: '%.*s' is not a .%s", p->opcode, (int)t->length, t->at,
                    ptx_types[want].name);
}

/* As a signed or as an unsigned number of so many bits. */
static int fits_bits(int64_t value, unsigned bits)
{
    if (bits >= 64) return 1;
    int64_t end = (int64_t)((uint64_t)1 << bits);
    return value < end && value >= -(end / 2);
}

static struct ptx_ref integer(struct ptx_parser *p, const struct ptx_token *t, enum ptx_type type)
{
    unsigned bits = 8 * ptx_types[type].size;
    if (type == T_pred) return ptx_symbol_constant(p, t->bits ? ~(uint64_t)0 : 0, 4);
    if (ptx_types[type].class == CLASS_FLOAT) mismatch(p, t, type);
    if (!fits_bits((int64_t)t->bits, bits))
        ptx_module_fail(p, t->line, "%.*s does not fit a .%s", (int)t->length, t->at,
                        ptx_types[type].name);
    return ptx_symbol_constant(p, t->bits, ptx_types[type].size);
}

static struct ptx_ref floating(struct ptx_parser *p, const struct ptx_token *t, enum ptx_type type)
{
    double value;
    float single;
    uint32_t bits = (uint32_t)t->bits;
    int as_f32 = type == T_f32 || (type == T_b32 && t->size == 4);
    int as_f64 = type == T_f64 || (type == T_b64 && t->size != 4);
    if (!as_f32 && !as_f64) mismatch(p, t, type);
    memcpy(&single, &bits, 4);
    memcpy(&value, &t->bits, 8);
    if (as_f64 && t->size == 4) value = single;
    if (as_f32 && t->size != 4) {
        single = (float)value;
        memcpy(&bits, &single, 4);
    }
    uint64_t wide;
    memcpy(&wide, &value, 8);
    return as_f32 ? ptx_symbol_constant(p, bits, 4) : ptx_symbol_constant(p, wide, 8);
}

/* A special register is read into a register of its own just before. */
static struct ptx_ref special(struct ptx_parser *p, const struct ptx_token *t, enum ptx_type type)
{
    static const struct {
        const char *name;
        enum ptx_type type;
    } rows[] = {
#define SPECIAL(id, name, type) {name, T_##type},
#include "ptx_special.def"
#undef SPECIAL
    };
    for (unsigned i = 0; i < PTX_SPECIALS; i++) {
        if (strlen(rows[i].name) != t->length || memcmp(rows[i].name, t->at, t->length)) continue;
        if (!fits(type, rows[i].type, 0) && !(type == T_u64 || type == T_b64)) mismatch(p, t, type);
        if (ptx_types[type].size != ptx_types[rows[i].type].size) mismatch(p, t, type);
        struct ptx_insn read = {.exec = ptx_move_special,
                                .d = ptx_symbol_allocate(p, rows[i].type),
                                .a = {.base = BASE_NONE},
                                .line = t->line,
                                .choice = (uint8_t)i};
        ptx_decode_append(p, &read);
        p->temporary[p->temporaries++] = read.d;
        return read.d;
    }
    ptx_module_fail(p, t->line, "'%.*s' is not declared", (int)t->length, t->at);
}

/* A variable's address: in its own state space. */
static struct ptx_ref variable(struct ptx_parser *p, const struct ptx_token *t, enum ptx_type type,
                               const struct ptx_symbol *s)
{
    unsigned size = ptx_types[type].size;
    int absolute = s->kind == SYMBOL_GLOBAL || s->kind == SYMBOL_CONST;
    if (size < 4 || ptx_types[type].class == CLASS_FLOAT || type == T_pred) mismatch(p, t, type);
    if (absolute && size != 8) mismatch(p, t, type);
    return s->kind == SYMBOL_DYNAMIC ? ptx_symbol_dynamic(p, size)
                                     : ptx_symbol_constant(p, s->value, size);
}

static struct ptx_ref name(struct ptx_parser *p, const struct ptx_atom *atom, enum ptx_type type,
                           int wide)
{
    const struct ptx_token *t = &atom->token;
    enum ptx_type have = T_none;
    struct ptx_ref ref = ptx_symbol_register(p, *t, &have);
    if (ref.base != BASE_NONE) {
        if (!fits(type, have, wide)) mismatch(p, t, type);
        return ref;
    }
    const struct ptx_symbol *s = ptx_symbol_find(p, t->at, t->length);
    return s ? variable(p, t, type, s) : special(p, t, type);
}

struct ptx_ref ptx_operand_source(struct ptx_parser *p, const struct ptx_atom *atom,
                                  enum ptx_type type, int wide)
{
    struct ptx_ref ref;
    if (atom->negate && type != T_pred)
        ptx_module_fail(p, atom->token.line, "'!' before what is no predicate");
    switch (atom->kind) {
    case ATOM_NAME:
        ref = name(p, atom, type, wide);
        break;
    case ATOM_INTEGER:
        ref = integer(p, &atom->token, type);
        break;
    case ATOM_FLOAT:
        ref = floating(p, &atom->token, type);
        break;
    default:
        ptx_module_fail(p, atom->token.line, "%s: '_' cannot be read", p->opcode);
    }
    ref.negate = (uint8_t)atom->negate;
    return ref;
}

struct ptx_ref ptx_operand_dest(struct ptx_parser *p, const struct ptx_atom *atom,
                                enum ptx_type type, int wide)
{
    enum ptx_type have = T_none;
    struct ptx_ref ref = {.base = BASE_NONE};
    if (atom->kind == ATOM_SINK) return ref;
    if (atom->kind == ATOM_NAME && !atom->negate) ref = ptx_symbol_register(p, atom->token, &have);
    if (ref.base == BASE_NONE)
        ptx_module_fail(p, atom->token.line, "'%.*s' is not a declared register",
                        (int)atom->token.length, atom->token.at);
    if (!fits(type, have, wide)) mismatch(p, &atom->token, type);
    return ref;
}

const struct ptx_atom *ptx_operand_atom(struct ptx_parser *p, unsigned index)
{
    const struct ptx_operand *o = &p->operand[index];
    if (o->vector || o->is_address || o->pair.kind != ATOM_NONE)
        ptx_module_fail(p, p->insn.line, "%s: operand %u is not a plain one", p->opcode, index + 1);
    return &o->atom;
}

struct ptx_ref ptx_operand_in(struct ptx_parser *p, unsigned index, enum ptx_type type)
{
    return ptx_operand_source(p, ptx_operand_atom(p, index), type, 0);
}

struct ptx_ref ptx_operand_out(struct ptx_parser *p, unsigned index, enum ptx_type type)
{
    const struct ptx_atom *atom = ptx_operand_atom(p, index);
    if (atom->kind == ATOM_SINK)
        ptx_module_fail(p, atom->token.line, "%s: '_' cannot be its result", p->opcode);
    return ptx_operand_dest(p, atom, type, 0);
}

uint64_t ptx_operand_immediate(struct ptx_parser *p, unsigned index)
{
    const struct ptx_atom *atom = ptx_operand_atom(p, index);
    if (atom->kind != ATOM_INTEGER)
        ptx_module_fail(p, p->insn.line, "%s: operand %u must be a number", p->opcode, index + 1);
    return atom->token.bits;
}

/* ---- addresses and vectors ---- */

static int lies_in(const struct ptx_symbol *s, unsigned space)
{
    switch (s->kind) {
    case SYMBOL_PARAM:
        return space == SPACE_PARAM;
    case SYMBOL_SHARED:
    case SYMBOL_DYNAMIC:
        return space == SPACE_SHARED;
    case SYMBOL_LOCAL:
        return space == SPACE_LOCAL;
    case SYMBOL_GLOBAL:
        return space == SPACE_GLOBAL || space == SPACE_GENERIC;
    default:
        return space == SPACE_CONST || space == SPACE_GENERIC;
    }
}

void ptx_operand_address(struct ptx_parser *p, unsigned index)
{
    const struct ptx_operand *o = &p->operand[index];
    struct ptx_address *a = &p->insn.address;
    enum ptx_type have = T_none;
    if (!o->is_address)
        ptx_module_fail(p, p->insn.line, "%s: operand %u is not an [address]", p->opcode,
                        index + 1);
    *a = (struct ptx_address){.reg = {.base = BASE_NONE}, .offset = o->offset};
    if (o->atom.kind == ATOM_INTEGER) {
        a->offset += (int64_t)o->atom.token.bits;
        return;
    }
    const struct ptx_token *t = &o->atom.token;
    a->reg = ptx_symbol_register(p, *t, &have);
    if (a->reg.base != BASE_NONE) {
        int window = p->insn.space >= SPACE_SHARED;
        if (!fits(T_u64, have, 0) && !(window && fits(T_u32, have, 0))) mismatch(p, t, T_u64);
        return;
    }
    const struct ptx_symbol *s = ptx_symbol_find(p, t->at, t->length);
    if (!s) ptx_module_fail(p, t->line, "'%.*s' is not declared", (int)t->length, t->at);
    if (!lies_in(s, p->insn.space))
        ptx_module_fail(p, t->line, "'%.*s' is not in this state space", (int)t->length, t->at);
    if (s->kind == SYMBOL_DYNAMIC)
        a->reg = ptx_symbol_dynamic(p, 8);
    else
        a->offset += (int64_t)s->value;
}

void ptx_operand_vector(struct ptx_parser *p, unsigned index, unsigned vector, enum ptx_type type,
                        int is_dest)
{
    const struct ptx_operand *o = &p->operand[index];
    int wide = ptx_types[type].class != CLASS_FLOAT;
    if (o->is_address || o->pair.kind != ATOM_NONE || (o->vector ? o->vector : 1) != vector)
        ptx_module_fail(p, p->insn.line, "%s: operand %u is not a vector of %u", p->opcode,
                        index + 1, vector);
    p->insn.vector = (uint8_t)vector;
    for (unsigned i = 0; i < vector; i++) {
        const struct ptx_atom *atom = o->vector ? &o->element[i] : &o->atom;
        p->insn.v[i] = is_dest ? ptx_operand_dest(p, atom, type, wide)
                               : ptx_operand_source(p, atom, type, wide);
    }
}
