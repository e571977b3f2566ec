/* The clock that deadlines go by, and nobody sets. */
#ifndef SMFAR_BASE_CLOCK_H
#define SMFAR_BASE_CLOCK_H

#include <stdint.h>

/* Milliseconds. A deadline is a time on it. */
int64_t clock_now_ms(void);

#endif
