/* A hash of bytes, the same on every rank. Not for strangers' data: collisions are easy to make. */
#ifndef SMFAR_BASE_HASH_H
#define SMFAR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a of 64 bits. */
static inline uint64_t hash_bytes(const void *bytes, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

#endif
