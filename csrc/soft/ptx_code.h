/* The decoded form of a kernel, as the parser leaves it and the interpreter runs it: types,
 * operand references, instructions. Nothing here knows the text or the driver. */
#ifndef SMFAR_SOFT_PTX_CODE_H
#define SMFAR_SOFT_PTX_CODE_H

#include "ptx.h"

enum { PTX_LANES = 32, PTX_VECTOR = 8, PTX_BARRIERS = 16 };
#define PTX_ALL_LANES 0xffffffffu

enum ptx_type {
    T_none,
    T_pred,
    T_b8,
    T_u8,
    T_s8,
    T_b16,
    T_u16,
    T_s16,
    T_f16,
    T_bf16,
    T_b32,
    T_u32,
    T_s32,
    T_f32,
    T_f16x2,
    T_bf16x2,
    T_u16x2,
    T_s16x2,
    T_b64,
    T_u64,
    T_s64,
    T_f64,
    PTX_NAMED_TYPES, /* the rest are no type of a register or variable, but of multimem alone */
    T_e4m3 = PTX_NAMED_TYPES,
    T_e5m2,
    T_e4m3x2,
    T_e5m2x2,
    T_e4m3x4,
    T_e5m2x4,
    PTX_TYPES
};

enum ptx_class { CLASS_NONE, CLASS_PRED, CLASS_BITS, CLASS_INT, CLASS_FLOAT };

struct ptx_type_info {
    const char *name;
    uint8_t size; /* bytes */
    uint8_t class;
    uint8_t is_signed;
};
extern const struct ptx_type_info ptx_types[PTX_TYPES];

enum ptx_space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_CONST, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM };

/* Where an operand's 32 lanes lie: in the warp's registers, or in the kernel's pool of immediates
 * (every one broadcast to 32 lanes). A predicate is one word, a bit per lane. */
enum ptx_base { BASE_REGISTERS, BASE_POOL, BASE_NONE };
struct ptx_ref {
    uint32_t at;
    uint8_t base;
    uint8_t size;   /* of one lane, bytes */
    uint8_t negate; /* predicates: !p */
};

struct ptx_address {
    struct ptx_ref reg; /* BASE_NONE: the offset alone */
    int64_t offset;
};

enum ptx_semantics { SEM_WEAK, SEM_RELAXED, SEM_ACQUIRE, SEM_RELEASE, SEM_ACQ_REL, SEM_VOLATILE };

/* From narrow to wide. */
enum ptx_scope { SCOPE_CTA, SCOPE_CLUSTER, SCOPE_GPU, SCOPE_SYS };

/* Modifiers of arithmetic that apply around any operation. */
enum ptx_flag {
    FLAG_FTZ = 1,
    FLAG_SAT = 2,
    FLAG_ROUND = 4,      /* rows: .rn .rz .rm .rp may be given */
    FLAG_ROUND_MUST = 8, /* rows: one of them must be given */
    FLAG_NEAREST = 16    /* rows: .rn alone may be given */
};
enum { FLAG_ALIGNED = 32 }; /* of a barrier: a warp's lanes come to it as one */

struct ptx_insn;
struct ptx_warp;
struct ptx_kernel;

typedef void ptx_exec(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask);
typedef void ptx_alu(void *d, const void *a, const void *b, const void *c);
typedef uint32_t ptx_compare(const void *a, const void *b);

/* A two-operand reduction of one element, for atomics and the switch. */
struct ptx_reduce {
    const char *op;
    enum ptx_type type;
    uint64_t (*one)(uint64_t old, uint64_t value);
    /* acc[i] = op(acc[i], src[i]) for `count` elements; NULL where only atomics have the op */
    void (*many)(void *acc, const void *src, unsigned count);
};

struct ptx_insn {
    ptx_exec *exec;
    union {
        ptx_alu *alu;
        ptx_compare *compare;
        const struct ptx_reduce *reduce;
    } fn;
    struct ptx_ref d, d2, a, b, c;
    struct ptx_ref v[PTX_VECTOR]; /* the vector of a memory operation or of a mov */
    struct ptx_address address;
    uint32_t guard; /* offset of the guard predicate + 1, or 0 */
    uint32_t guard_flip;
    uint32_t target; /* of a branch */
    uint32_t line;
    uint8_t vector; /* elements of v */
    uint8_t type, source_type;
    uint8_t space, semantics, scope, flags;
    uint8_t rounding;   /* enum ptx_rounding */
    uint8_t choice;     /* which of several close relatives: boolean, shuffle mode, special … */
    uint8_t counted;    /* 0: inserted by the parser */
    uint8_t accumulate; /* T_f32 or T_f16 where a sum is kept in it, else T_none */
};

enum ptx_rounding {
    ROUND_NONE,
    ROUND_RN,
    ROUND_RZ,
    ROUND_RM,
    ROUND_RP,
    ROUND_RNI,
    ROUND_RZI,
    ROUND_RMI,
    ROUND_RPI
};

struct ptx_kernel {
    struct ptx_kernel_info info;
    char *name;
    struct ptx_insn *code;
    uint32_t length;
    unsigned char *pool;
    uint32_t pool_bytes;
    uint32_t register_bytes;
    struct ptx_kernel *next;
};

/* One legal form of an arithmetic instruction: everything but the modifiers in `flags`. */
struct ptx_row {
    const char *form;
    ptx_alu *alu;
    uint8_t d, a, b, c; /* enum ptx_type; T_none past the last */
    uint8_t flags;
};
extern const struct ptx_row ptx_int_rows[], ptx_float_rows[];
extern const unsigned ptx_int_count, ptx_float_count;

struct ptx_compare_row {
    const char *op;
    enum ptx_type type;
    ptx_compare *compare;
};
extern const struct ptx_compare_row ptx_compare_rows[];
extern const unsigned ptx_compare_count;

extern const struct ptx_reduce ptx_reduce_rows[];
extern const unsigned ptx_reduce_count;
/* The row of an operation and type, or NULL. */
const struct ptx_reduce *ptx_reduce_find(const char *op, enum ptx_type type);

/* Executors, by the file that has them. */
ptx_exec ptx_alu_plain, ptx_alu_flags, ptx_alu_setp, ptx_alu_set, ptx_alu_selp, ptx_alu_slct,
    ptx_alu_mov, ptx_alu_pred_logic, ptx_alu_lop3, ptx_alu_bfi, ptx_alu_testp;
ptx_exec ptx_move_pack, ptx_move_unpack, ptx_move_special, ptx_move_cvta, ptx_move_isspacep;
ptx_exec ptx_cvt_exec;
ptx_exec ptx_memory_load, ptx_memory_store, ptx_memory_load_param, ptx_memory_nop, ptx_memory_fence,
    ptx_memory_fence_alias, ptx_atom_exec;
ptx_exec ptx_multimem_load, ptx_multimem_store, ptx_multimem_reduce;
ptx_exec ptx_warp_branch, ptx_warp_exit, ptx_warp_trap, ptx_warp_nanosleep, ptx_sync_bar_warp,
    ptx_sync_shfl, ptx_sync_vote, ptx_sync_match, ptx_sync_redux, ptx_sync_elect,
    ptx_sync_activemask, ptx_block_barrier;

/* choice of ptx_move_special */
enum ptx_special {
#define SPECIAL(id, name, type) SPECIAL_##id,
#include "ptx_special.def"
#undef SPECIAL
    PTX_SPECIALS
};

enum ptx_testp {
    TESTP_FINITE,
    TESTP_INFINITE,
    TESTP_NUMBER,
    TESTP_NOTANUMBER,
    TESTP_NORMAL,
    TESTP_SUBNORMAL
};
enum ptx_boolean { BOOL_NONE, BOOL_AND, BOOL_OR, BOOL_XOR, BOOL_NOT, BOOL_MOV };
enum ptx_shuffle { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };
enum ptx_vote { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum ptx_match { MATCH_ANY, MATCH_ALL };
enum ptx_barrier { BARRIER_SYNC, BARRIER_ARRIVE, BARRIER_POPC, BARRIER_AND, BARRIER_OR };

#endif
