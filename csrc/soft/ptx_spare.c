/* Memory kept between launches: a few pieces, none large. */
#include "ptx_spare.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    PIECES = 16,
    PIECE_LIMIT = 4 << 20,
    /* a piece more than this many times too large stays for a launch that needs it */
    WASTE_LIMIT = 4
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *memory;
    size_t bytes;
} piece[PIECES];

void *ptx_spare_take(size_t *bytes)
{
    void *memory = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PIECES && !memory; i++) {
        if (piece[i].bytes < *bytes || piece[i].bytes / WASTE_LIMIT > *bytes) continue;
        memory = piece[i].memory;
        *bytes = piece[i].bytes;
        piece[i].memory = NULL;
        piece[i].bytes = 0;
    }
    pthread_mutex_unlock(&lock);
    return memory ? memory : aligned_alloc(64, (*bytes + 63) / 64 * 64);
}

void ptx_spare_give(void *memory, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < PIECES && memory && bytes <= PIECE_LIMIT; i++) {
        if (piece[i].memory) continue;
        piece[i].memory = memory;
        piece[i].bytes = bytes;
        memory = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(memory);
}
