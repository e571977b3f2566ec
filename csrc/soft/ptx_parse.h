/* The parser's inside, shared by its files: tokens, symbols, operands, and the instruction being
 * decoded. Errors leave by longjmp to ptx_module_parse, which owns all that was built. */
#ifndef SMFAR_SOFT_PTX_PARSE_H
#define SMFAR_SOFT_PTX_PARSE_H

#include <setjmp.h>

#include "ptx_code.h"

/* ---- tokens (ptx_lex.c) ---- */

enum ptx_token_kind {
    TOKEN_END,
    TOKEN_WORD,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_STRING,
    TOKEN_PUNCT
};

/* A word may hold dots and double colons: "ld.global.L1::no_allocate.u32", ".reg", "%tid.x". */
struct ptx_token {
    enum ptx_token_kind kind;
    const char *at;
    size_t length;
    uint64_t bits; /* INTEGER; FLOAT: of the double, or of the f32 when `size` is 4 */
    uint8_t size;  /* FLOAT: 4 for 0f…, 8 for 0d…, 0 for a decimal one */
    uint32_t line;
};

/* ---- symbols (ptx_symbol.c) ---- */

enum ptx_symbol_kind {
    SYMBOL_REGISTER,
    SYMBOL_REGISTERS, /* %r<n> */
    SYMBOL_PARAM,
    SYMBOL_SHARED,
    SYMBOL_DYNAMIC, /* .extern .shared: begins where the kernel's static shared memory ends */
    SYMBOL_LOCAL,
    SYMBOL_GLOBAL, /* value: host address */
    SYMBOL_CONST
};

struct ptx_symbol {
    const char *name;
    size_t length;
    uint32_t hash;
    enum ptx_symbol_kind kind;
    enum ptx_type type;
    uint64_t value;
    uint64_t size;   /* bytes, of a variable */
    uint32_t count;  /* REGISTERS */
    uint32_t *where; /* REGISTERS: offset + 1, or 0 while unused */
    size_t closed;   /* REGISTERS: scopes that had closed when it was declared */
};

struct ptx_label {
    const char *name;
    size_t length;
    uint32_t scope, target;
};

struct ptx_fixup {
    const char *name;
    size_t length;
    uint32_t scope, insn, line;
};

/* An immediate in the kernel's pool. */
struct ptx_constant {
    uint64_t value;
    uint32_t at;
    uint8_t size;
    uint8_t dynamic; /* the start of dynamic shared memory, known at the kernel's end */
};

/* ---- operands as written (ptx_operand.c) ---- */

enum ptx_atom_kind { ATOM_NONE, ATOM_NAME, ATOM_INTEGER, ATOM_FLOAT, ATOM_SINK };
struct ptx_atom {
    enum ptx_atom_kind kind;
    int negate; /* !p */
    struct ptx_token token;
};

struct ptx_operand {
    struct ptx_atom atom;
    struct ptx_atom pair; /* the p of r|p */
    int is_address;       /* [atom + offset] */
    int64_t offset;
    unsigned vector; /* elements of { }, or 0 */
    struct ptx_atom element[PTX_VECTOR];
};

/* Offsets in a warp's registers that may be given out again, of one size. */
struct ptx_room {
    uint32_t *at;
    size_t count, room;
};
enum { PTX_ROOMS = 4 };

enum { PTX_OPERANDS = 8, PTX_MODIFIERS = 20, PTX_OPCODE = 160 };

struct ptx_parser {
    const char *text, *at;
    uint32_t line;
    struct ptx_token token; /* the next one */
    jmp_buf escape;
    char *error;
    size_t error_size;
    struct ptx_module *module;
    unsigned target, version; /* sm_90 is 90, 8.2 is 82 */
    char suffix;              /* of the target: 'a', 'f', or 0 */

    struct ptx_symbol *symbols;
    size_t symbol_count, symbol_room;

    /* the kernel being parsed */
    struct ptx_kernel *kernel;
    uint32_t code_room;
    struct ptx_room free_room[PTX_ROOMS]; /* of registers whose scope has closed */
    size_t pool_room;
    struct ptx_label *labels;
    size_t label_count, label_room;
    struct ptx_fixup *fixups;
    size_t fixup_count, fixup_room;
    struct ptx_constant *constants;
    size_t constant_count, constant_room;
    uint32_t *scope_parent;
    size_t scope_count, scope_room;
    size_t closed; /* scopes, so far */
    uint32_t scope;
    size_t scope_first; /* the innermost scope's first symbol */

    /* the instruction being decoded */
    struct ptx_insn insn;
    char opcode[PTX_OPCODE], words[PTX_OPCODE];
    const char *modifier[PTX_MODIFIERS]; /* of `words`; the opcode's first word is not among them */
    unsigned modifiers, modifier_next;
    struct ptx_operand operand[PTX_OPERANDS];
    unsigned operands;
    struct ptx_ref temporary[PTX_OPERANDS * PTX_VECTOR]; /* registers that hold special ones */
    unsigned temporaries;
};

struct ptx_module {
    struct ptx_kernel *kernels;
    void **memory; /* of .global and .const variables */
    size_t memory_count, memory_room;
    uint64_t shared_bytes; /* of module-level .shared variables */
    unsigned target;       /* sm_90 is 90 */
    unsigned version;      /* 8.2 is 82 */
    char suffix;           /* of the target: 'a', 'f', or 0 */
};

/* ---- errors and storage (ptx_module.c) ---- */

void ptx_module_fail(struct ptx_parser *p, uint32_t line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* Room for one more element in a growing array. */
void *ptx_module_grow(struct ptx_parser *p, void *array, size_t count, size_t *room, size_t size);

/* ---- ptx_lex.c ---- */

void ptx_lex_next(struct ptx_parser *p);
int ptx_lex_is(const struct ptx_parser *p, const char *text);
/* Takes the token when it is this text; returns whether it was. */
int ptx_lex_take(struct ptx_parser *p, const char *text);
void ptx_lex_expect(struct ptx_parser *p, const char *text);
uint64_t ptx_lex_integer(struct ptx_parser *p);
struct ptx_token ptx_lex_name(struct ptx_parser *p);

/* ---- ptx_symbol.c ---- */

enum ptx_type ptx_symbol_type(const char *name, size_t length);
struct ptx_symbol *ptx_symbol_add(struct ptx_parser *p, struct ptx_token name,
                                  enum ptx_symbol_kind kind, enum ptx_type type);
/* Forgets the symbols from number `first` on; their registers' room may be used again. */
void ptx_symbol_forget(struct ptx_parser *p, size_t first);
const struct ptx_symbol *ptx_symbol_find(struct ptx_parser *p, const char *name, size_t length);
/* The register of this name, or a reference with BASE_NONE when it is none. */
struct ptx_ref ptx_symbol_register(struct ptx_parser *p, struct ptx_token name,
                                   enum ptx_type *type_out);
struct ptx_ref ptx_symbol_allocate(struct ptx_parser *p, enum ptx_type type);
struct ptx_ref ptx_symbol_allocate_fresh(struct ptx_parser *p, enum ptx_type type);
void ptx_symbol_release(struct ptx_parser *p, enum ptx_type type, uint32_t at);
struct ptx_ref ptx_symbol_constant(struct ptx_parser *p, uint64_t value, unsigned size);
struct ptx_ref ptx_symbol_dynamic(struct ptx_parser *p, unsigned size);
void ptx_symbol_label(struct ptx_parser *p, struct ptx_token name);
void ptx_symbol_open_scope(struct ptx_parser *p);
void ptx_symbol_close_scope(struct ptx_parser *p);
/* Sets every branch's target. */
void ptx_symbol_resolve(struct ptx_parser *p);

/* ---- ptx_variable.c ---- */

/* Is the next token the start of a variable or register declaration? Then parses it. */
int ptx_variable_parse(struct ptx_parser *p);

/* ---- ptx_operand.c ---- */

void ptx_operand_parse_all(struct ptx_parser *p);
void ptx_operand_count(struct ptx_parser *p, unsigned least, unsigned most);
/* A source of this type. `wide`: a register may be wider than the type (ld, st, cvt). */
struct ptx_ref ptx_operand_source(struct ptx_parser *p, const struct ptx_atom *atom,
                                  enum ptx_type type, int wide);
struct ptx_ref ptx_operand_dest(struct ptx_parser *p, const struct ptx_atom *atom,
                                enum ptx_type type, int wide);
/* Operand `index` as a lone atom, no vector, address or pair. */
const struct ptx_atom *ptx_operand_atom(struct ptx_parser *p, unsigned index);
struct ptx_ref ptx_operand_in(struct ptx_parser *p, unsigned index, enum ptx_type type);
struct ptx_ref ptx_operand_out(struct ptx_parser *p, unsigned index, enum ptx_type type);
uint64_t ptx_operand_immediate(struct ptx_parser *p, unsigned index);
/* Operand `index` as [address] in the instruction's space. */
void ptx_operand_address(struct ptx_parser *p, unsigned index);
/* Operand `index` as the instruction's vector of `vector` elements (1: a lone atom). */
void ptx_operand_vector(struct ptx_parser *p, unsigned index, unsigned vector, enum ptx_type type,
                        int is_dest);

/* ---- ptx_decode*.c ---- */

/* Parses an instruction from its opcode to the semicolon and appends it. */
void ptx_decode_instruction(struct ptx_parser *p, uint32_t guard, int flip);
void ptx_decode_append(struct ptx_parser *p, const struct ptx_insn *insn);
int ptx_decode_take(struct ptx_parser *p, const char *modifier);
/* Takes one of `names` (ended by NULL) and returns its index, or -1. */
int ptx_decode_choose(struct ptx_parser *p, const char *const *names);
enum ptx_type ptx_decode_type(struct ptx_parser *p);
/* Takes .cta, .cluster, .gpu or .sys; returns whether there was one. */
int ptx_decode_scope(struct ptx_parser *p);
/* Takes a state space: enum ptx_space, or -1 when there is none. */
int ptx_decode_space(struct ptx_parser *p);
/* Takes .v2, .v4 or .v8: how many elements; 1 when there is none. */
unsigned ptx_decode_vector(struct ptx_parser *p);
void ptx_decode_end(struct ptx_parser *p);
void ptx_decode_bad(struct ptx_parser *p) __attribute__((noreturn));

typedef void ptx_decoder(struct ptx_parser *p);
struct ptx_decode_row {
    const char *name;
    ptx_decoder *decode;
};
/* Decoders of memory instructions and of all others that are not rows; ended by a NULL name. */
extern const struct ptx_decode_row ptx_decode_memory[], ptx_decode_control[];
ptx_decoder ptx_decode_multimem, ptx_decode_cvt;
/* The row of this very form, or NULL. */
const struct ptx_row *ptx_decode_find_row(const char *form);
unsigned ptx_decode_multimem_forms(void);

#endif
