/* See env.h. */
#include "env.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "log.h"

static const char *const names[ENV_COUNT] = {
#define ENV(id, variable, meaning) variable,
#include "env.def"
#undef ENV
};

const char *env_variable(enum env_id id) { return names[id]; }

const char *env_text(enum env_id id)
{
    const char *value = getenv(names[id]);
    return value && *value ? value : NULL;
}

int64_t env_number(enum env_id id, int64_t least, int64_t fallback)
{
    const char *text = env_text(id);
    if (!text) return fallback;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || value < least) {
        log_warn("%s=%s is not a number of at least %lld: ignored", names[id], text,
                 (long long)least);
        return fallback;
    }
    return value;
}

int env_says_no(const char *text)
{
    return text && (!strcmp(text, "0") || !strcasecmp(text, "false") || !strcasecmp(text, "off") ||
                    !strcasecmp(text, "no"));
}

static int says_yes(const char *text)
{
    return !strcmp(text, "1") || !strcasecmp(text, "true") || !strcasecmp(text, "on") ||
           !strcasecmp(text, "yes");
}

const char *env_multicast_off(void)
{
    const char *own = env_text(ENV_MULTICAST);
    if (env_says_no(own)) return "SMFAR_MULTICAST=0";
    if (own && !says_yes(own)) return "SMFAR_MULTICAST, which is neither 0 nor 1";
    if (env_says_no(env_text(ENV_NCCL_NVLS))) return "NCCL_NVLS_ENABLE=0";
    const char *torch = env_text(ENV_TORCH_NO_MULTICAST);
    if (torch && !env_says_no(torch)) return "TORCH_SYMM_MEM_DISABLE_MULTICAST=1";
    const char *nvshmem = env_text(ENV_NVSHMEM_NO_NVLS);
    if (nvshmem && !env_says_no(nvshmem)) return "NVSHMEM_DISABLE_NVLS=1";
    return NULL;
}
