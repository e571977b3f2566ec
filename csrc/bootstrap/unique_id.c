/* See unique_id.h. */
#include "unique_id.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static const char begin[] = "smfar-id-";
enum { RANDOM_BYTES = 16 };

enum smfar_status smfar_unique_id(struct smfar_id *id_out)
{
    unsigned char bytes[RANDOM_BYTES];
    if (!id_out) return FAIL(SMFAR_ERR_ARGUMENT, "id_out is NULL");
    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return FAIL_ERRNO("getrandom");
    struct smfar_id id = {{0}};
    int n = snprintf(id.text, sizeof(id.text), "%s", begin);
    for (int i = 0; i < RANDOM_BYTES; i++)
        n += snprintf(id.text + n, sizeof(id.text) - (size_t)n, "%02x", bytes[i]);
    *id_out = id;
    return SMFAR_OK;
}

enum smfar_status unique_id_check(const struct smfar_id *id)
{
    const size_t head = sizeof(begin) - 1, length = head + 2 * RANDOM_BYTES;
    if (id && strnlen(id->text, sizeof(id->text)) == length && !memcmp(id->text, begin, head) &&
        strspn(id->text + head, "0123456789abcdef") == 2 * RANDOM_BYTES)
        return SMFAR_OK;
    return FAIL(SMFAR_ERR_ARGUMENT, "the id does not come from smfar_unique_id");
}
