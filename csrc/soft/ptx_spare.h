/* Memory that launches of this process hand on to each other, so that a small one does not spend
 * its time on fresh pages. Any thread may call. */
#ifndef SMFAR_SOFT_PTX_SPARE_H
#define SMFAR_SOFT_PTX_SPARE_H

#include <stddef.h>

/* At least *bytes of memory aligned to 64, of any content; *bytes becomes what there is. NULL when
 * there is none. */
void *ptx_spare_take(size_t *bytes);
/* Gives it back. NULL is allowed. */
void ptx_spare_give(void *memory, size_t bytes);

#endif
