/* Declarations: .reg, .shared, .local, .global and .const, in a kernel or outside. */
#include <stdlib.h>
#include <string.h>

#include "ptx_parse.h"

enum { REGISTER_COUNT_LIMIT = 65536, VARIABLE_LIMIT = 1 << 28 };

static enum ptx_type take_type(struct ptx_parser *p)
{
    enum ptx_type type = T_none;
    if (p->token.kind == TOKEN_WORD && *p->token.at == '.')
        type = ptx_symbol_type(p->token.at + 1, p->token.length - 1);
    if (type == T_none)
        ptx_module_fail(p, p->token.line, "no type '%.*s'", (int)p->token.length, p->token.at);
    ptx_lex_next(p);
    return type;
}

static void refuse_twice(struct ptx_parser *p, struct ptx_token name, size_t scope_first)
{
    for (size_t i = scope_first; i < p->symbol_count; i++) {
        const struct ptx_symbol *s = &p->symbols[i];
        if (s->length == name.length && !memcmp(s->name, name.at, name.length))
            ptx_module_fail(p, name.line, "'%.*s' is declared twice", (int)name.length, name.at);
    }
}

/* ---- registers ---- */

static void parse_registers(struct ptx_parser *p)
{
    enum ptx_type type = take_type(p);
    do {
        struct ptx_token name = ptx_lex_name(p);
        uint64_t count = 1;
        int is_range = ptx_lex_take(p, "<");
        if (is_range) {
            count = ptx_lex_integer(p);
            ptx_lex_expect(p, ">");
        }
        if (!count || count > REGISTER_COUNT_LIMIT)
            ptx_module_fail(p, name.line, "%llu registers", (unsigned long long)count);
        refuse_twice(p, name, p->scope_first);
        struct ptx_symbol *s =
            ptx_symbol_add(p, name, is_range ? SYMBOL_REGISTERS : SYMBOL_REGISTER, type);
        s->count = (uint32_t)count;
        s->closed = p->closed;
        s->where = calloc(count, sizeof *s->where);
        if (!s->where) ptx_module_fail(p, name.line, "out of memory");
    } while (ptx_lex_take(p, ","));
    ptx_lex_expect(p, ";");
}

/* ---- variables ---- */

/* The literal's bits as an element of this type; 0 when the next token is no literal. */
static int literal_bits(struct ptx_parser *p, enum ptx_type type, uint64_t *bits_out)
{
    int minus = ptx_lex_take(p, "-");
    struct ptx_token t = p->token;
    double value;
    if (t.kind == TOKEN_INTEGER) {
        *bits_out = minus ? 0 - t.bits : t.bits;
        if (ptx_types[type].class == CLASS_FLOAT) return 0;
    } else if (t.kind == TOKEN_FLOAT) {
        float single;
        uint32_t bits = (uint32_t)t.bits;
        memcpy(&value, &t.bits, 8);
        memcpy(&single, &bits, 4);
        if (t.size == 4) value = single;
        if (minus) value = -value;
        single = (float)value;
        *bits_out = 0;
        if (type == T_f32)
            memcpy(bits_out, &single, 4);
        else if (type == T_f64)
            memcpy(bits_out, &value, 8);
        else
            return 0;
    } else {
        return 0;
    }
    ptx_lex_next(p);
    return 1;
}

static void parse_initialiser(struct ptx_parser *p, enum ptx_type type, unsigned char *data,
                              uint64_t bytes)
{
    uint64_t at = 0, bits;
    int braces = ptx_lex_take(p, "{");
    do {
        if (at + ptx_types[type].size > bytes)
            ptx_module_fail(p, p->token.line, "more values than elements");
        if (!literal_bits(p, type, &bits))
            ptx_module_fail(p, p->token.line, "not a value of .%s", ptx_types[type].name);
        memcpy(data + at, &bits, ptx_types[type].size);
        at += ptx_types[type].size;
    } while (braces && ptx_lex_take(p, ","));
    if (braces) ptx_lex_expect(p, "}");
}

/* [n][m]…: the number of elements; 0 for []. */
static uint64_t parse_dimensions(struct ptx_parser *p)
{
    uint64_t elements = 1;
    while (ptx_lex_take(p, "[")) {
        uint64_t n = ptx_lex_is(p, "]") ? 0 : ptx_lex_integer(p);
        if (n > VARIABLE_LIMIT || elements * n > VARIABLE_LIMIT)
            ptx_module_fail(p, p->token.line, "an array too large");
        elements *= n;
        ptx_lex_expect(p, "]");
    }
    return elements;
}

static uint64_t place(uint64_t *total, uint64_t bytes, uint64_t align)
{
    uint64_t at = (*total + align - 1) / align * align;
    *total = at + bytes;
    return at;
}

static unsigned char *host_memory(struct ptx_parser *p, uint64_t bytes, uint64_t align)
{
    struct ptx_module *m = p->module;
    m->memory = ptx_module_grow(p, m->memory, m->memory_count, &m->memory_room, sizeof *m->memory);
    if (align < 64) align = 64;
    void *memory = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!memory) ptx_module_fail(p, p->token.line, "out of memory");
    memset(memory, 0, bytes);
    m->memory[m->memory_count++] = memory;
    return memory;
}

struct declaration {
    enum ptx_symbol_kind kind;
    enum ptx_type type;
    uint64_t align;
    int is_extern;
};

static void parse_variable(struct ptx_parser *p, const struct declaration *d)
{
    struct ptx_token name = ptx_lex_name(p);
    uint64_t elements = parse_dimensions(p), bytes = elements * ptx_types[d->type].size;
    int dynamic = d->is_extern && d->kind == SYMBOL_SHARED;
    if (d->is_extern && !dynamic) ptx_module_fail(p, name.line, ".extern is for .shared alone");
    if (!dynamic && !bytes) ptx_module_fail(p, name.line, "an array of no elements");
    refuse_twice(p, name, p->scope_first);
    uint64_t value = 0;
    unsigned char *data = NULL;
    if (d->kind == SYMBOL_LOCAL) {
        uint64_t total = p->kernel->info.local_bytes;
        value = place(&total, bytes, d->align);
        p->kernel->info.local_bytes = total;
    } else if (d->kind == SYMBOL_SHARED && !dynamic) {
        uint64_t total = p->kernel ? p->kernel->info.shared_bytes : p->module->shared_bytes;
        value = place(&total, bytes, d->align);
        if (p->kernel)
            p->kernel->info.shared_bytes = total;
        else
            p->module->shared_bytes = total;
    } else if (!dynamic) {
        data = host_memory(p, bytes, d->align);
        value = (uintptr_t)data;
    }
    if (ptx_lex_take(p, "=")) {
        if (!data) ptx_module_fail(p, name.line, "only .global and .const take values");
        parse_initialiser(p, d->type, data, bytes);
    }
    struct ptx_symbol *s = ptx_symbol_add(p, name, dynamic ? SYMBOL_DYNAMIC : d->kind, d->type);
    s->value = value;
    s->size = bytes;
}

static void parse_variables(struct ptx_parser *p, enum ptx_symbol_kind kind, int is_extern)
{
    struct declaration d = {.kind = kind, .align = 1, .is_extern = is_extern};
    if (ptx_lex_take(p, ".align")) d.align = ptx_lex_integer(p);
    if (!d.align || d.align & (d.align - 1) || d.align > 4096)
        ptx_module_fail(p, p->token.line, "alignment %llu", (unsigned long long)d.align);
    d.type = take_type(p);
    if (d.type == T_pred) ptx_module_fail(p, p->token.line, "a predicate outside the registers");
    if (d.align < ptx_types[d.type].size) d.align = ptx_types[d.type].size;
    do
        parse_variable(p, &d);
    while (ptx_lex_take(p, ","));
    ptx_lex_expect(p, ";");
}

int ptx_variable_parse(struct ptx_parser *p)
{
    static const struct {
        const char *word;
        enum ptx_symbol_kind kind;
    } spaces[] = {{".shared", SYMBOL_SHARED},
                  {".local", SYMBOL_LOCAL},
                  {".global", SYMBOL_GLOBAL},
                  {".const", SYMBOL_CONST}};
    if (p->kernel && ptx_lex_take(p, ".reg")) {
        parse_registers(p);
        return 1;
    }
    int is_extern = ptx_lex_take(p, ".extern");
    for (unsigned i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        if (spaces[i].kind == SYMBOL_LOCAL && !p->kernel) continue;
        if (!ptx_lex_take(p, spaces[i].word)) continue;
        parse_variables(p, spaces[i].kind, is_extern);
        return 1;
    }
    if (is_extern) ptx_module_fail(p, p->token.line, ".extern is for .shared alone");
    return 0;
}
