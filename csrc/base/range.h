/* Ranges of bytes, by addresses or by offsets. */
#ifndef SMFAR_BASE_RANGE_H
#define SMFAR_BASE_RANGE_H

#include <stdint.h>

/* Do the two share a byte? */
static inline int range_overlaps(uint64_t at, uint64_t bytes, uint64_t other, uint64_t other_bytes)
{
    return bytes && other_bytes && at < other + other_bytes && other < at + bytes;
}

#endif
