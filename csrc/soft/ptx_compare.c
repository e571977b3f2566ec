/* Comparisons over 32 lanes, one bit per lane, for setp and set. */
#include "ptx_lanes.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "lane 0 is the lowest byte");

/* Bytes of 0 or 1, eight at a time, to bits: the product moves byte k's bit to bit 56 + k. */
static inline uint32_t bits_of_bytes(const uint8_t *bytes)
{
    uint32_t bits = 0;
    for (unsigned i = 0; i < PTX_LANES; i += 8) {
        uint64_t eight;
        memcpy(&eight, bytes + i, 8);
        bits |= (uint32_t)(eight * 0x0102040810204080u >> 56) << i;
    }
    return bits;
}

#define COMPARE(op, t, expr)                                                                       \
    static uint32_t op##_##t(const void *av, const void *bv)                                       \
    {                                                                                              \
        const CT_##t *a = av, *b = bv;                                                             \
        uint8_t yes[PTX_LANES];                                                                    \
        for (unsigned i = 0; i < PTX_LANES; i++) {                                                 \
            __auto_type x = IN_##t(a[i]);                                                          \
            __auto_type y = IN_##t(b[i]);                                                          \
            yes[i] = (expr);                                                                       \
        }                                                                                          \
        return bits_of_bytes(yes);                                                                 \
    }
#include "ptx_compare.def"
#undef COMPARE

const struct ptx_compare_row ptx_compare_rows[] = {
#define COMPARE(op, t, expr) {#op, T_##t, op##_##t},
#include "ptx_compare.def"
};
const unsigned ptx_compare_count = sizeof ptx_compare_rows / sizeof *ptx_compare_rows;
