/* The modules' text: what is embedded in the core, or files that take its place. */
#ifndef SMFAR_TESTS_TEXT_H
#define SMFAR_TESTS_TEXT_H

#include "../../csrc/driver/driver.h"

/* From now on this driver loads smfar_peer.ptx, smfar_mc.ptx and smfar_mc_f8.ptx of `folder` where
 * it is asked to load the embedded modules. Ends the program when they cannot be read. */
void text_replace(struct driver *driver, const char *folder);

/* What is loaded as the module of the kernel with this entry. */
const char *text_of(const char *entry);

#endif
