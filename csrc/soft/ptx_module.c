/* A module: directives, kernels and their bodies, and what the parser has built. Instructions are
 * in ptx_decode.c. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_parse.h"

enum { MAX_THREADS = 1024, PARAM_LIMIT = 4096 };

void ptx_module_fail(struct ptx_parser *p, uint32_t line, const char *format, ...)
{
    int used = snprintf(p->error, p->error_size, "line %u: ", line);
    if (used > 0 && (size_t)used < p->error_size) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(p->error + used, p->error_size - (size_t)used, format, arguments);
        va_end(arguments);
    }
    longjmp(p->escape, 1);
}

void *ptx_module_grow(struct ptx_parser *p, void *array, size_t count, size_t *room, size_t size)
{
    if (count < *room) return array;
    size_t more = *room ? 2 * *room : 32;
    void *bigger = realloc(array, more * size);
    if (!bigger) ptx_module_fail(p, p->line, "out of memory");
    *room = more;
    return bigger;
}

/* ---- a kernel's head ---- */

static uint64_t take_alignment(struct ptx_parser *p)
{
    if (!ptx_lex_take(p, ".align")) return 1;
    uint64_t align = ptx_lex_integer(p);
    if (!align || align > 256 || align & (align - 1))
        ptx_module_fail(p, p->token.line, "alignment %llu", (unsigned long long)align);
    return align;
}

/* .ptr .global .align 16: promises that need no keeping here */
static void skip_pointer_promise(struct ptx_parser *p)
{
    static const char *const spaces[] = {".global", ".shared", ".local", ".const"};
    if (!ptx_lex_take(p, ".ptr")) return;
    for (unsigned i = 0; i < 4; i++)
        ptx_lex_take(p, spaces[i]);
    take_alignment(p);
}

static void parse_parameter(struct ptx_parser *p)
{
    struct ptx_kernel_info *info = &p->kernel->info;
    ptx_lex_expect(p, ".param");
    uint64_t align = take_alignment(p), elements = 1;
    struct ptx_token word = p->token;
    enum ptx_type type = word.kind == TOKEN_WORD && *word.at == '.'
                             ? ptx_symbol_type(word.at + 1, word.length - 1)
                             : T_none;
    if (type == T_none || type == T_pred)
        ptx_module_fail(p, word.line, "no parameter type '%.*s'", (int)word.length, word.at);
    ptx_lex_next(p);
    skip_pointer_promise(p);
    struct ptx_token name = ptx_lex_name(p);
    if (ptx_lex_take(p, "[")) {
        elements = ptx_lex_integer(p);
        ptx_lex_expect(p, "]");
    }
    uint64_t size = ptx_types[type].size;
    if (align < size) align = size;
    if (!elements || elements > PARAM_LIMIT || info->params == PTX_MAX_PARAMS)
        ptx_module_fail(p, name.line, "parameters past the limit");
    uint64_t at = (info->param_bytes + align - 1) / align * align;
    info->param_offset[info->params] = at;
    info->param_size[info->params++] = size * elements;
    info->param_bytes = at + size * elements;
    if (info->param_bytes > PARAM_LIMIT) ptx_module_fail(p, name.line, "parameters past the limit");
    struct ptx_symbol *s = ptx_symbol_add(p, name, SYMBOL_PARAM, type);
    s->value = at;
    s->size = size * elements;
}

static void parse_parameters(struct ptx_parser *p)
{
    if (!ptx_lex_take(p, "(")) return;
    if (ptx_lex_take(p, ")")) return;
    do
        parse_parameter(p);
    while (ptx_lex_take(p, ","));
    ptx_lex_expect(p, ")");
}

/* x[, y[, z]] */
static uint64_t parse_extent(struct ptx_parser *p)
{
    uint64_t product = ptx_lex_integer(p);
    for (int i = 0; i < 2 && ptx_lex_take(p, ","); i++)
        product *= ptx_lex_integer(p);
    return product;
}

static void parse_performance(struct ptx_parser *p)
{
    uint64_t threads = 0;
    int max = 0, required = 0;
    while (!ptx_lex_is(p, "{")) {
        if (ptx_lex_take(p, ".maxntid")) {
            max = 1;
            threads = parse_extent(p);
        } else if (ptx_lex_take(p, ".reqntid")) {
            required = 1;
            threads = parse_extent(p);
        } else if (ptx_lex_take(p, ".minnctapersm") || ptx_lex_take(p, ".maxnreg")) {
            ptx_lex_integer(p);
        } else {
            ptx_module_fail(p, p->token.line, "unknown directive '%.*s'", (int)p->token.length,
                            p->token.at);
        }
    }
    if (max && required)
        ptx_module_fail(p, p->token.line, ".maxntid and .reqntid exclude each other");
    if (threads > MAX_THREADS)
        ptx_module_fail(p, p->token.line, "more than %d threads", MAX_THREADS);
    p->kernel->info.max_threads = threads ? (unsigned)threads : MAX_THREADS;
}

/* ---- a kernel's body ---- */

static void parse_guarded(struct ptx_parser *p)
{
    enum ptx_type type = T_none;
    int flip = ptx_lex_take(p, "!");
    struct ptx_token name = ptx_lex_name(p);
    struct ptx_ref ref = ptx_symbol_register(p, name, &type);
    if (ref.base == BASE_NONE || type != T_pred)
        ptx_module_fail(p, name.line, "'%.*s' is not a declared predicate", (int)name.length,
                        name.at);
    ptx_decode_instruction(p, ref.at + 1, flip);
}

static void parse_statement(struct ptx_parser *p);

static void parse_scope(struct ptx_parser *p)
{
    size_t first = p->scope_first;
    ptx_lex_expect(p, "{");
    ptx_symbol_open_scope(p);
    p->scope_first = p->symbol_count;
    while (!ptx_lex_take(p, "}")) {
        if (p->token.kind == TOKEN_END) ptx_module_fail(p, p->token.line, "'}' is due");
        parse_statement(p);
    }
    ptx_symbol_forget(p, p->scope_first);
    ptx_symbol_close_scope(p);
    p->scope_first = first;
}

/* "name:" is a label; the lexer keeps "a::b" together, so a colon here is a lone one. */
static int is_label(const struct ptx_parser *p)
{
    const char *next = p->at + strspn(p->at, " \t");
    return p->token.kind == TOKEN_WORD && *p->token.at != '.' && *next == ':';
}

static void parse_statement(struct ptx_parser *p)
{
    if (ptx_lex_is(p, "{")) {
        parse_scope(p);
    } else if (ptx_lex_take(p, ".pragma")) {
        if (p->token.kind != TOKEN_STRING) ptx_module_fail(p, p->token.line, "a string is due");
        ptx_lex_next(p);
        ptx_lex_expect(p, ";");
    } else if (ptx_lex_take(p, "@")) {
        parse_guarded(p);
    } else if (is_label(p)) {
        ptx_symbol_label(p, p->token);
        ptx_lex_next(p);
        ptx_lex_expect(p, ":");
    } else if (!ptx_lex_take(p, ";") && !ptx_variable_parse(p)) {
        ptx_decode_instruction(p, 0, 0);
    }
}

/* ---- a kernel ---- */

static void fill_pool(struct ptx_parser *p)
{
    struct ptx_kernel *k = p->kernel;
    k->pool = aligned_alloc(64, k->pool_bytes + 64);
    if (!k->pool) ptx_module_fail(p, p->line, "out of memory");
    for (size_t i = 0; i < p->constant_count; i++) {
        const struct ptx_constant *c = &p->constants[i];
        uint64_t value = c->dynamic ? k->info.shared_bytes : c->value;
        for (unsigned lane = 0; lane < PTX_LANES; lane++)
            memcpy(k->pool + c->at + (size_t)lane * c->size, &value, c->size);
    }
}

static void reset_kernel_state(struct ptx_parser *p)
{
    p->label_count = p->fixup_count = p->constant_count = 0;
    p->scope = 0;
    p->scope_count = 0;
    for (unsigned i = 0; i < PTX_ROOMS; i++)
        p->free_room[i].count = 0;
    p->code_room = 0;
    ptx_symbol_open_scope(p); /* scope 0: around every kernel's body */
}

static void parse_kernel(struct ptx_parser *p)
{
    size_t outside = p->symbol_count;
    struct ptx_token name = ptx_lex_name(p);
    struct ptx_kernel *k = calloc(1, sizeof *k);
    if (!k) ptx_module_fail(p, name.line, "out of memory");
    k->next = p->module->kernels;
    p->module->kernels = k;
    k->name = strndup(name.at, name.length);
    if (!k->name) ptx_module_fail(p, name.line, "out of memory");
    for (const struct ptx_kernel *other = k->next; other; other = other->next)
        if (!strcmp(other->name, k->name))
            ptx_module_fail(p, name.line, "kernel '%s' stands twice", k->name);
    k->info.name = k->name;
    k->info.shared_bytes = p->module->shared_bytes;
    p->kernel = k;
    reset_kernel_state(p);
    parse_parameters(p);
    parse_performance(p);
    parse_scope(p);
    struct ptx_insn end = {.exec = ptx_warp_exit, .line = p->token.line};
    ptx_decode_append(p, &end);
    ptx_symbol_resolve(p);
    k->info.shared_bytes = (k->info.shared_bytes + 15) / 16 * 16;
    fill_pool(p);
    ptx_symbol_forget(p, outside);
    p->kernel = NULL;
}

/* ---- a module ---- */

static void parse_header(struct ptx_parser *p)
{
    ptx_lex_expect(p, ".version");
    if (p->token.kind != TOKEN_FLOAT) ptx_module_fail(p, p->token.line, "a version is due");
    char *minor;
    p->version = 10 * (unsigned)strtoul(p->token.at, &minor, 10);
    p->version += (unsigned)strtoul(minor + 1, NULL, 10);
    p->module->version = p->version;
    ptx_lex_next(p);
    ptx_lex_expect(p, ".target");
    struct ptx_token target = ptx_lex_name(p);
    if (target.length < 5 || memcmp(target.at, "sm_", 3))
        ptx_module_fail(p, target.line, "target '%.*s'", (int)target.length, target.at);
    char *end;
    p->module->target = p->target = (unsigned)strtoul(target.at + 3, &end, 10);
    if (end < target.at + target.length && (*end == 'a' || *end == 'f'))
        p->module->suffix = p->suffix = *end++;
    if (end != target.at + target.length)
        ptx_module_fail(p, target.line, "target '%.*s'", (int)target.length, target.at);
    ptx_lex_expect(p, ".address_size");
    if (ptx_lex_integer(p) != 64) ptx_module_fail(p, p->token.line, "only 64-bit addresses");
}

/* What may follow .visible, which changes nothing here. */
static void parse_definition(struct ptx_parser *p)
{
    if (ptx_lex_is(p, ".func")) ptx_module_fail(p, p->token.line, "functions are not known here");
    if (ptx_lex_take(p, ".entry"))
        parse_kernel(p);
    else if (!ptx_variable_parse(p))
        ptx_module_fail(p, p->token.line, "unknown directive '%.*s'", (int)p->token.length,
                        p->token.at);
}

static void parse_module(struct ptx_parser *p)
{
    ptx_lex_next(p);
    parse_header(p);
    while (p->token.kind != TOKEN_END) {
        if (!ptx_lex_take(p, ".visible")) ptx_lex_take(p, ".weak");
        parse_definition(p);
    }
}

static void free_parser(struct ptx_parser *p)
{
    p->kernel = NULL;
    ptx_symbol_forget(p, 0);
    for (unsigned i = 0; i < PTX_ROOMS; i++)
        free(p->free_room[i].at);
    free(p->symbols);
    free(p->labels);
    free(p->fixups);
    free(p->constants);
    free(p->scope_parent);
    free(p);
}

int ptx_module_parse(const char *text, struct ptx_module **module_out, char *error,
                     size_t error_size)
{
    struct ptx_module *module = calloc(1, sizeof *module);
    struct ptx_parser *p = calloc(1, sizeof *p);
    if (!module || !p) {
        snprintf(error, error_size, "line 0: out of memory");
        free(module);
        free(p);
        return -1;
    }
    *p = (struct ptx_parser){.text = text,
                             .at = text,
                             .line = 1,
                             .error = error,
                             .error_size = error_size,
                             .module = module};
    int failed = setjmp(p->escape);
    if (!failed) parse_module(p);
    free_parser(p);
    if (failed)
        ptx_module_free(module);
    else
        *module_out = module;
    return failed ? -1 : 0;
}

void ptx_module_free(struct ptx_module *module)
{
    if (!module) return;
    for (struct ptx_kernel *k = module->kernels, *next; k; k = next) {
        next = k->next;
        free(k->name);
        free(k->code);
        free(k->pool);
        free(k);
    }
    for (size_t i = 0; i < module->memory_count; i++)
        free(module->memory[i]);
    free(module->memory);
    free(module);
}

/* The first GPU of this one's family. 10.1 and 11.0 are families of their own. */
static unsigned family_of(unsigned compute)
{
    return compute == 103 ? 100 : compute == 121 ? 120 : compute;
}

unsigned ptx_module_version(const struct ptx_module *module) { return module->version; }

int ptx_module_runs_on(const struct ptx_module *module, unsigned compute)
{
    if (module->suffix == 'a') return compute == module->target;
    if (module->suffix == 'f' && family_of(compute) != family_of(module->target)) return 0;
    return compute >= module->target;
}

const struct ptx_kernel *ptx_module_kernel(const struct ptx_module *module, const char *name)
{
    for (const struct ptx_kernel *k = module->kernels; k; k = k->next)
        if (!strcmp(k->name, name)) return k;
    return NULL;
}

const struct ptx_kernel_info *ptx_kernel_info(const struct ptx_kernel *kernel)
{
    return &kernel->info;
}
