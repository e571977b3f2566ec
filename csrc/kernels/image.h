/* The module images that embed.py builds into the library. */
#ifndef SMFAR_KERNELS_IMAGE_H
#define SMFAR_KERNELS_IMAGE_H

#include <stddef.h>

/* One module as PTX text (compute 0, for the driver to compile) or as a cubin for exactly this
 * compute capability (90 is 9.0). The list ends with a NULL module; cubins come first. */
struct kernel_image {
    const char *module; /* "peer", "mc" or "mc_f8" */
    int compute;
    const unsigned char *data;
};
extern const struct kernel_image kernel_images[];

#endif
