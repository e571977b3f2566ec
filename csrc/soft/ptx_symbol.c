/* Names: types, registers (given room when first used, so that a warp holds no more than the
 * kernel needs), variables, immediates, labels and the scopes that hold them. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_parse.h"

enum { LINE = 64, REGISTER_LIMIT = 1 << 16 };

const struct ptx_type_info ptx_types[PTX_TYPES] = {
    [T_pred] = {"pred", 4, CLASS_PRED, 0},      [T_b8] = {"b8", 1, CLASS_BITS, 0},
    [T_u8] = {"u8", 1, CLASS_INT, 0},           [T_s8] = {"s8", 1, CLASS_INT, 1},
    [T_b16] = {"b16", 2, CLASS_BITS, 0},        [T_u16] = {"u16", 2, CLASS_INT, 0},
    [T_s16] = {"s16", 2, CLASS_INT, 1},         [T_f16] = {"f16", 2, CLASS_FLOAT, 0},
    [T_bf16] = {"bf16", 2, CLASS_FLOAT, 0},     [T_b32] = {"b32", 4, CLASS_BITS, 0},
    [T_u32] = {"u32", 4, CLASS_INT, 0},         [T_s32] = {"s32", 4, CLASS_INT, 1},
    [T_f32] = {"f32", 4, CLASS_FLOAT, 0},       [T_f16x2] = {"f16x2", 4, CLASS_FLOAT, 0},
    [T_bf16x2] = {"bf16x2", 4, CLASS_FLOAT, 0}, [T_u16x2] = {"u16x2", 4, CLASS_INT, 0},
    [T_s16x2] = {"s16x2", 4, CLASS_INT, 0},     [T_b64] = {"b64", 8, CLASS_BITS, 0},
    [T_u64] = {"u64", 8, CLASS_INT, 0},         [T_s64] = {"s64", 8, CLASS_INT, 1},
    [T_f64] = {"f64", 8, CLASS_FLOAT, 0},       [T_e4m3] = {"e4m3", 1, CLASS_FLOAT, 0},
    [T_e5m2] = {"e5m2", 1, CLASS_FLOAT, 0},     [T_e4m3x2] = {"e4m3x2", 2, CLASS_FLOAT, 0},
    [T_e5m2x2] = {"e5m2x2", 2, CLASS_FLOAT, 0}, [T_e4m3x4] = {"e4m3x4", 4, CLASS_FLOAT, 0},
    [T_e5m2x4] = {"e5m2x4", 4, CLASS_FLOAT, 0}};

enum ptx_type ptx_symbol_type(const char *name, size_t length)
{
    for (unsigned i = T_pred; i < PTX_NAMED_TYPES; i++)
        if (strlen(ptx_types[i].name) == length && !memcmp(ptx_types[i].name, name, length))
            return (enum ptx_type)i;
    return T_none;
}

/* ---- the table ---- */

static uint32_t hash_of(const char *name, size_t length)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    return hash;
}

struct ptx_symbol *ptx_symbol_add(struct ptx_parser *p, struct ptx_token name,
                                  enum ptx_symbol_kind kind, enum ptx_type type)
{
    p->symbols =
        ptx_module_grow(p, p->symbols, p->symbol_count, &p->symbol_room, sizeof *p->symbols);
    struct ptx_symbol *s = &p->symbols[p->symbol_count++];
    *s = (struct ptx_symbol){.name = name.at,
                             .length = name.length,
                             .hash = hash_of(name.at, name.length),
                             .kind = kind,
                             .type = type};
    return s;
}

void ptx_symbol_forget(struct ptx_parser *p, size_t first)
{
    while (p->symbol_count > first) {
        struct ptx_symbol *s = &p->symbols[--p->symbol_count];
        uint32_t *where = s->where;
        s->where = NULL;
        for (uint32_t i = 0; p->kernel && where && i < s->count; i++)
            if (where[i]) ptx_symbol_release(p, s->type, where[i] - 1);
        free(where);
    }
}

/* The number in "%r12" when it begins with the range's prefix; -1 otherwise. */
static long range_index(const struct ptx_symbol *s, const char *name, size_t length)
{
    if (length <= s->length || length > s->length + 6 || memcmp(name, s->name, s->length))
        return -1;
    long index = 0;
    for (size_t i = s->length; i < length; i++) {
        if (!isdigit((unsigned char)name[i])) return -1;
        index = 10 * index + (name[i] - '0');
    }
    if (name[s->length] == '0' && length > s->length + 1) return -1;
    return index < (long)s->count ? index : -1;
}

/* Innermost first. */
static struct ptx_symbol *find(struct ptx_parser *p, const char *name, size_t length,
                               long *index_out)
{
    uint32_t hash = hash_of(name, length);
    for (size_t i = p->symbol_count; i-- > 0;) {
        struct ptx_symbol *s = &p->symbols[i];
        if (s->kind == SYMBOL_REGISTERS) {
            *index_out = range_index(s, name, length);
            if (*index_out >= 0) return s;
        } else if (s->hash == hash && s->length == length && !memcmp(s->name, name, length)) {
            *index_out = 0;
            return s;
        }
    }
    return NULL;
}

const struct ptx_symbol *ptx_symbol_find(struct ptx_parser *p, const char *name, size_t length)
{
    long index;
    return find(p, name, length, &index);
}

/* ---- registers and immediates ---- */

static uint32_t reserve(struct ptx_parser *p, uint32_t bytes)
{
    uint32_t at = p->kernel->register_bytes;
    if (at / LINE >= REGISTER_LIMIT) ptx_module_fail(p, p->token.line, "too many registers");
    p->kernel->register_bytes += (bytes + LINE - 1) / LINE * LINE;
    return at;
}

static struct ptx_room *room_of(struct ptx_parser *p, enum ptx_type type)
{
    unsigned size = ptx_types[type].size;
    return &p->free_room[type == T_pred ? 0 : size == 8 ? 3 : size == 4 ? 2 : 1];
}

/* For registers declared from now on. A branch may go back to before a scope that has closed, but
 * never to before a declaration of the same or an inner scope and still expect the register's
 * value. */
void ptx_symbol_release(struct ptx_parser *p, enum ptx_type type, uint32_t at)
{
    struct ptx_room *room = room_of(p, type);
    room->at = ptx_module_grow(p, room->at, room->count, &room->room, sizeof *room->at);
    room->at[room->count++] = at;
}

struct ptx_ref ptx_symbol_allocate(struct ptx_parser *p, enum ptx_type type)
{
    struct ptx_ref ref = {.base = BASE_REGISTERS, .size = ptx_types[type].size};
    struct ptx_room *room = room_of(p, type);
    p->kernel->info.registers++;
    if (!room->count && type == T_pred) {
        uint32_t line = reserve(p, LINE);
        for (uint32_t at = LINE; at > 0; at -= 4)
            ptx_symbol_release(p, type, line + at - 4);
    }
    ref.at = room->count ? room->at[--room->count] : reserve(p, (uint32_t)PTX_LANES * ref.size);
    return ref;
}

/* For a register that was declared before a scope that has closed: a loop around both comes back to
 * that scope's registers. */
struct ptx_ref ptx_symbol_allocate_fresh(struct ptx_parser *p, enum ptx_type type)
{
    p->kernel->info.registers++;
    return (struct ptx_ref){.base = BASE_REGISTERS,
                            .size = ptx_types[type].size,
                            .at = reserve(p, (uint32_t)PTX_LANES * ptx_types[type].size)};
}

struct ptx_ref ptx_symbol_register(struct ptx_parser *p, struct ptx_token name,
                                   enum ptx_type *type_out)
{
    long index = 0;
    struct ptx_symbol *s = find(p, name.at, name.length, &index);
    if (!s || (s->kind != SYMBOL_REGISTER && s->kind != SYMBOL_REGISTERS))
        return (struct ptx_ref){.base = BASE_NONE};
    *type_out = s->type;
    if (!s->where[index])
        s->where[index] = (s->closed == p->closed ? ptx_symbol_allocate(p, s->type)
                                                  : ptx_symbol_allocate_fresh(p, s->type))
                              .at +
                          1;
    return (struct ptx_ref){
        .at = s->where[index] - 1, .base = BASE_REGISTERS, .size = ptx_types[s->type].size};
}

static struct ptx_ref add_constant(struct ptx_parser *p, uint64_t value, unsigned size,
                                   uint8_t dynamic)
{
    struct ptx_kernel *k = p->kernel;
    uint32_t bytes = PTX_LANES * size;
    p->constants = ptx_module_grow(p, p->constants, p->constant_count, &p->constant_room,
                                   sizeof *p->constants);
    p->constants[p->constant_count++] = (struct ptx_constant){
        .value = value, .at = k->pool_bytes, .size = (uint8_t)size, .dynamic = dynamic};
    struct ptx_ref ref = {.at = k->pool_bytes, .base = BASE_POOL, .size = (uint8_t)size};
    k->pool_bytes += (bytes + LINE - 1) / LINE * LINE;
    return ref;
}

struct ptx_ref ptx_symbol_constant(struct ptx_parser *p, uint64_t value, unsigned size)
{
    if (size < 8) value &= ((uint64_t)1 << 8 * size) - 1;
    for (size_t i = 0; i < p->constant_count; i++) {
        const struct ptx_constant *c = &p->constants[i];
        if (c->value == value && c->size == size && !c->dynamic)
            return (struct ptx_ref){.at = c->at, .base = BASE_POOL, .size = (uint8_t)size};
    }
    return add_constant(p, value, size, 0);
}

struct ptx_ref ptx_symbol_dynamic(struct ptx_parser *p, unsigned size)
{
    return add_constant(p, 0, size, 1);
}

/* ---- labels and scopes ---- */

void ptx_symbol_label(struct ptx_parser *p, struct ptx_token name)
{
    for (size_t i = 0; i < p->label_count; i++) {
        const struct ptx_label *l = &p->labels[i];
        if (l->scope == p->scope && l->length == name.length &&
            !memcmp(l->name, name.at, l->length))
            ptx_module_fail(p, name.line, "label '%.*s' stands twice", (int)name.length, name.at);
    }
    p->labels = ptx_module_grow(p, p->labels, p->label_count, &p->label_room, sizeof *p->labels);
    p->labels[p->label_count++] = (struct ptx_label){
        .name = name.at, .length = name.length, .scope = p->scope, .target = p->kernel->length};
}

void ptx_symbol_open_scope(struct ptx_parser *p)
{
    p->scope_parent = ptx_module_grow(p, p->scope_parent, p->scope_count, &p->scope_room,
                                      sizeof *p->scope_parent);
    p->scope_parent[p->scope_count] = p->scope;
    p->scope = (uint32_t)p->scope_count++;
}

void ptx_symbol_close_scope(struct ptx_parser *p)
{
    p->scope = p->scope_parent[p->scope];
    p->closed++;
}

static const struct ptx_label *find_label(const struct ptx_parser *p, const struct ptx_fixup *f,
                                          uint32_t scope)
{
    for (size_t i = 0; i < p->label_count; i++) {
        const struct ptx_label *l = &p->labels[i];
        if (l->scope == scope && l->length == f->length && !memcmp(l->name, f->name, f->length))
            return l;
    }
    return NULL;
}

void ptx_symbol_resolve(struct ptx_parser *p)
{
    for (size_t i = 0; i < p->fixup_count; i++) {
        const struct ptx_fixup *f = &p->fixups[i];
        const struct ptx_label *label = NULL;
        /* scope 0 encloses the kernel's body and is its own parent */
        for (uint32_t scope = f->scope; !label && scope; scope = p->scope_parent[scope])
            label = find_label(p, f, scope);
        if (!label) ptx_module_fail(p, f->line, "no label '%.*s'", (int)f->length, f->name);
        p->kernel->code[f->insn].target = label->target;
    }
}
