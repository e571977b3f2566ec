/* One verdict of all ranks on a step. See exchange.h. */
#include <stdio.h>

#include "../base/log.h"
#include "exchange.h"

enum smfar_status exchange_agree(struct exchange *ex, enum smfar_status status, const char *step)
{
    struct verdict {
        int32_t status;
        char text[400];
    } mine = {(int32_t)status, ""}, all[SMFAR_MAX_RANKS];
    if (status != SMFAR_OK) snprintf(mine.text, sizeof(mine.text), "%s", smfar_last_error());
    enum smfar_status result = exchange_all_gather(ex, &mine, sizeof(mine), all);
    if (result != SMFAR_OK) {
        char text[512];
        snprintf(text, sizeof(text), "%s", smfar_last_error());
        return FAIL(result, "%s: %s", step, text);
    }
    int worst = 0;
    for (int r = 0; r < exchange_ranks(ex); r++) {
        all[r].status = (int32_t)exchange_known_status(all[r].status);
        if (all[r].status > all[worst].status) worst = r;
    }
    if (all[worst].status == SMFAR_OK) {
        log_info("%s: done on every rank", step);
        return SMFAR_OK;
    }
    return FAIL((enum smfar_status)all[worst].status, "%s failed on rank %d: %.*s", step, worst,
                (int)sizeof(all[worst].text), all[worst].text);
}
