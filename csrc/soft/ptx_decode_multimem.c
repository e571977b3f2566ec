/* Decoding of multimem: exactly the combinations that sm_90 accepts and, for the targets that have
 * 8-bit floats in the switch, those of their own. */
#include <string.h>

#include "ptx_parse.h"

enum { V1 = 1, V2 = 2, V4 = 4, V8 = 8, V124 = V1 | V2 | V4, V248 = V2 | V4 | V8 };

/* One type under one operation, with the vector lengths it may have. */
struct form {
    const char *op; /* "" for st */
    enum ptx_type type;
    uint8_t vectors;
    uint8_t accumulates; /* .acc:: of this type may be given; 0: of none */
};

#define QUARTERS(op, acc)                                                                          \
    {op, T_e4m3, V4 | V8, acc}, {op, T_e5m2, V4 | V8, acc}, {op, T_e4m3x2, V248, acc},             \
        {op, T_e5m2x2, V248, acc}, {op, T_e4m3x4, V124, acc},                                      \
    {                                                                                              \
        op, T_e5m2x4, V124, acc                                                                    \
    }
#define WORDS(op) {op, T_b32, V1, 0}, {op, T_b64, V1, 0}
#define NUMBERS(op) {op, T_u32, V1, 0}, {op, T_s32, V1, 0}, {op, T_u64, V1, 0}
#define HALVES(op, pairs, acc)                                                                     \
    {op, T_f16, V248, acc}, {op, T_bf16, V248, acc}, {op, T_f16x2, pairs, acc},                    \
    {                                                                                              \
        op, T_bf16x2, pairs, acc                                                                   \
    }

static const struct form load_forms[] = {HALVES("add", V124, T_f32),
                                         QUARTERS("add", T_f16),
                                         NUMBERS("add"),
                                         {"add", T_f32, V124, 0},
                                         {"add", T_f64, V1, 0},
                                         HALVES("min", V124, 0),
                                         QUARTERS("min", 0),
                                         NUMBERS("min"),
                                         {"min", T_s64, V1, 0},
                                         HALVES("max", V124, 0),
                                         QUARTERS("max", 0),
                                         NUMBERS("max"),
                                         WORDS("and"),
                                         {"max", T_s64, V1, 0},
                                         WORDS("or"),
                                         WORDS("xor")};

static const struct form red_forms[] = {HALVES("add", V124, 0),
                                        NUMBERS("add"),
                                        {"add", T_f32, V124, 0},
                                        {"add", T_f64, V1, 0},
                                        HALVES("min", V2 | V4, 0),
                                        NUMBERS("min"),
                                        {"min", T_s64, V1, 0},
                                        HALVES("max", V2 | V4, 0),
                                        NUMBERS("max"),
                                        WORDS("and"),
                                        {"max", T_s64, V1, 0},
                                        WORDS("or"),
                                        WORDS("xor")};

static const struct form store_forms[] = {
    HALVES("", V124, 0),  QUARTERS("", 0),    NUMBERS(""),       WORDS(""),
    {"", T_f32, V124, 0}, {"", T_f64, V1, 0}, {"", T_s64, V1, 0}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct kind {
    const char *name;
    const struct form *forms;
    size_t count;
    ptx_exec *exec;
    uint8_t strong; /* the semantics beside relaxed */
    uint8_t may_be_weak, reduces;
};

static const struct kind kinds[] = {
    {"ld_reduce", load_forms, COUNT(load_forms), ptx_multimem_load, SEM_ACQUIRE, 1, 1},
    {"st", store_forms, COUNT(store_forms), ptx_multimem_store, SEM_RELEASE, 1, 0},
    {"red", red_forms, COUNT(red_forms), ptx_multimem_reduce, SEM_RELEASE, 0, 1}};

unsigned ptx_decode_multimem_forms(void)
{
    unsigned count = 0;
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (size_t i = 0; i < kinds[k].count; i++)
            count += (unsigned)__builtin_popcount(kinds[k].forms[i].vectors) *
                     (kinds[k].forms[i].accumulates ? 2u : 1u);
    return count;
}

static void take_semantics(struct ptx_parser *p, const struct kind *kind)
{
    const char *strong = kind->strong == SEM_ACQUIRE ? "acquire" : "release";
    p->insn.semantics = SEM_RELAXED;
    if (kind->may_be_weak && ptx_decode_take(p, "weak")) return;
    if (ptx_decode_take(p, strong))
        p->insn.semantics = kind->strong;
    else if (!ptx_decode_take(p, "relaxed"))
        return;
    if (!ptx_decode_scope(p)) ptx_decode_bad(p);
}

static void take_accumulation(struct ptx_parser *p)
{
    if (ptx_decode_take(p, "acc::f32")) p->insn.accumulate = T_f32;
    if (ptx_decode_take(p, "acc::f16")) p->insn.accumulate = T_f16;
}

/* .v4 and .acc::f32, in either order */
static unsigned take_vector(struct ptx_parser *p)
{
    take_accumulation(p);
    unsigned vector = ptx_decode_vector(p);
    if (!p->insn.accumulate) take_accumulation(p);
    return vector;
}

/* 8-bit floats are known to targets for one GPU (sm_100a) or for one family (sm_100f) alone. */
static void check_float8_target(struct ptx_parser *p)
{
    static const struct {
        unsigned target;
        char suffix;
        unsigned version;
    } has[] = {{100, 'a', 86}, {100, 'f', 88}, {103, 'a', 88}, {103, 'f', 88},
               {110, 'a', 90}, {110, 'f', 90}, {120, 'a', 87}, {121, 'a', 88}};
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        if (p->target == has[i].target && p->suffix == has[i].suffix &&
            p->version >= has[i].version)
            return;
    ptx_module_fail(p, p->insn.line,
                    "%s needs .target sm_100a and .version 8.6, or another of a GPU or family that "
                    "has it, as .target sm_100f and .version 8.8",
                    p->opcode);
}

static enum ptx_type take_type(struct ptx_parser *p)
{
    static const char *const float8[] = {"e4m3",   "e5m2",   "e4m3x2", "e5m2x2",
                                         "e4m3x4", "e5m2x4", NULL};
    int which = ptx_decode_choose(p, float8);
    if (which < 0) return ptx_decode_type(p);
    check_float8_target(p);
    return (enum ptx_type)(T_e4m3 + which);
}

static const struct form *find_form(const struct kind *kind, const char *op, enum ptx_type type)
{
    for (size_t i = 0; i < kind->count; i++)
        if (kind->forms[i].type == type && !strcmp(kind->forms[i].op, op)) return &kind->forms[i];
    return NULL;
}

static void decode(struct ptx_parser *p, const struct kind *kind)
{
    static const char *const ops[] = {"add", "min", "max", "and", "or", "xor", NULL};
    take_semantics(p, kind);
    p->insn.space = ptx_decode_take(p, "global") ? SPACE_GLOBAL : SPACE_GENERIC;
    int op = kind->reduces ? ptx_decode_choose(p, ops) : -1;
    if (kind->reduces && op < 0) ptx_decode_bad(p);
    unsigned vector = take_vector(p);
    enum ptx_type type = take_type(p);
    ptx_decode_end(p);
    const struct form *form = find_form(kind, op < 0 ? "" : ops[op], type);
    if (!form || !(form->vectors & vector)) ptx_decode_bad(p);
    if (p->insn.accumulate && p->insn.accumulate != form->accumulates) ptx_decode_bad(p);
    p->insn.exec = kind->exec;
    p->insn.type = type;
    if (op >= 0) p->insn.fn.reduce = ptx_reduce_find(ops[op], type);
    ptx_operand_count(p, 2, 2);
    int is_load = kind->exec == ptx_multimem_load;
    ptx_operand_address(p, is_load ? 1 : 0);
    ptx_operand_vector(p, is_load ? 0 : 1, vector, type, is_load);
    for (unsigned i = 0; i < vector; i++)
        if (p->insn.v[i].base != BASE_NONE && p->insn.v[i].size != ptx_types[type].size)
            ptx_module_fail(p, p->insn.line, "%s: a register is wider than the type", p->opcode);
}

void ptx_decode_multimem(struct ptx_parser *p)
{
    for (size_t k = 0; k < COUNT(kinds); k++) {
        if (!ptx_decode_take(p, kinds[k].name)) continue;
        decode(p, &kinds[k]);
        return;
    }
    ptx_decode_bad(p);
}
