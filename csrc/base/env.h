/* The environment variables of env.def. Values are read when asked for, never cached. */
#ifndef SMFAR_BASE_ENV_H
#define SMFAR_BASE_ENV_H

#include <stdint.h>

enum env_id {
#define ENV(id, variable, meaning) ENV_##id,
#include "env.def"
#undef ENV
    ENV_COUNT
};

const char *env_variable(enum env_id id);

/* The value, or NULL when unset or empty. */
const char *env_text(enum env_id id);

/* The value as a number; `fallback` when unset, or, after a warning, when it is not one or is
 * below `least`. */
int64_t env_number(enum env_id id, int64_t least, int64_t fallback);

/* Is it "0", "false" or "off"? NULL is not. */
int env_says_no(const char *text);

/* The name of the variable that switches multicast off, with its value ("NCCL_NVLS_ENABLE=0"), or
 * NULL when none does. */
const char *env_multicast_off(void);

#endif
