/* Integer and bitwise arithmetic over 32 lanes: the functions behind ptx_int.def. Instructions of
 * four operands (bfi, lop3) and those on predicates live in ptx_alu.c. */
#include "ptx_lanes.h"

static inline int32_t saturate(int64_t x)
{
    return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x;
}

static inline int32_t low24(int32_t x) { return (int32_t)((uint32_t)x << 8) >> 8; }

static inline uint64_t negate(int64_t x) { return 0 - (uint64_t)x; }

/* the one quotient that overflows wraps */
static inline int64_t divide_signed(int64_t x, int64_t y)
{
    if (y == 0) return -1;
    return y == -1 ? (int64_t)negate(x) : x / y;
}

static inline uint64_t funnel(uint32_t low, uint32_t high, unsigned amount)
{
    return ((uint64_t)high << 32 | low) << amount;
}

static inline uint64_t reverse(uint64_t x)
{
    x = (x >> 1 & 0x5555555555555555u) | (x & 0x5555555555555555u) << 1;
    x = (x >> 2 & 0x3333333333333333u) | (x & 0x3333333333333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0fu) | (x & 0x0f0f0f0f0f0f0f0fu) << 4;
    return __builtin_bswap64(x);
}

static inline uint32_t highest(uint64_t x)
{
    return x ? 63 - (uint32_t)__builtin_clzll(x) : 0xffffffffu;
}

static inline uint32_t shift_amount(uint32_t position, uint32_t top)
{
    return position == 0xffffffffu ? position : top - position;
}

/* bfe: position and length are taken modulo 256; bits beyond the value's top are its sign. */
static inline uint64_t extract(uint64_t x, uint32_t position, uint32_t length, unsigned width,
                               int is_signed)
{
    position &= 0xff;
    length &= 0xff;
    int64_t wide = is_signed && width == 32 ? (int32_t)x : (int64_t)x;
    if (length == 0) return 0;
    unsigned last = position + length - 1 < width - 1 ? position + length - 1 : width - 1;
    uint64_t sign = is_signed ? (uint64_t)(wide >> last & 1) : 0;
    uint64_t keep = length >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << length) - 1;
    if (position >= width) return sign ? ~(uint64_t)0 : 0;
    unsigned have = width - position < length ? width - position : length;
    uint64_t mask = have >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << have) - 1;
    uint64_t bits = x >> position & mask;
    if (sign) bits |= ~mask;
    return is_signed ? bits : bits & keep;
}

static inline uint32_t field(uint32_t position, uint32_t length)
{
    uint64_t ones = ((uint64_t)1 << length) - 1;
    return position > 31 ? 0 : (uint32_t)(ones << position);
}

static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t select)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t nibble = select >> 4 * i & 0xf;
        uint32_t byte = bytes >> 8 * (nibble & 7) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        out |= byte << 8 * i;
    }
    return out;
}

/* prmt's named modes, as the selector of the plain one */
static inline uint32_t selector(uint32_t base, uint32_t step, uint32_t z)
{
    return base + step * (z & 3);
}

static inline uint32_t backward(uint32_t z)
{
    static const uint16_t select[4] = {0x5670, 0x6701, 0x7012, 0x0123};
    return select[z & 3];
}

static inline uint32_t edge_left(uint32_t z)
{
    static const uint16_t select[4] = {0x3210, 0x3211, 0x3222, 0x3333};
    return select[z & 3];
}

static inline uint32_t edge_right(uint32_t z)
{
    static const uint16_t select[4] = {0x0000, 0x1110, 0x2210, 0x3210};
    return select[z & 3];
}

static inline uint32_t dot4_unsigned(uint32_t x, uint32_t y)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < 32; i += 8)
        sum += (x >> i & 0xff) * (y >> i & 0xff);
    return sum;
}

static inline int32_t dot4_signed(int32_t x, int32_t y)
{
    int32_t sum = 0;
    for (unsigned i = 0; i < 32; i += 8)
        sum += (int8_t)(x >> i) * (int8_t)(y >> i);
    return sum;
}

#define OP1 LANES_OP1
#define OP2 LANES_OP2
#define OP3 LANES_OP3
#include "ptx_int.def"
#undef OP1
#undef OP2
#undef OP3

const struct ptx_row ptx_int_rows[] = {
#define OP1 ROW_OP1
#define OP2 ROW_OP2
#define OP3 ROW_OP3
#include "ptx_int.def"
};
const unsigned ptx_int_count = sizeof ptx_int_rows / sizeof *ptx_int_rows;
