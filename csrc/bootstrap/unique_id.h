/* The value by which ranks meet without a store: the abstract Unix socket under which rank 0 will
 * wait for the others, a random name. */
#ifndef SMFAR_BOOTSTRAP_UNIQUE_ID_H
#define SMFAR_BOOTSTRAP_UNIQUE_ID_H

#include "../base/status.h"

/* SMFAR_ERR_ARGUMENT when `id` cannot come from smfar_unique_id. */
enum smfar_status unique_id_check(const struct smfar_id *id);

#endif
