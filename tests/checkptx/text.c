/* See text.h. Only texts are replaced: the software switch takes no cubins. */
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/kernels/kernel.h"

static const char *const names[MODULES] = {"peer", "mc", "mc_f8"};
static char *replaced[MODULES];
static CUresult (*load_embedded)(CUmodule *, const void *, unsigned, CUjit_option *, void **);

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0;
    if (file && getdelim(&text, &size, 0, file) > 0 && fclose(file) == 0) return text;
    printf("cannot read %s\n", path);
    exit(2);
}

static CUresult load(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                     void **values)
{
    for (int i = 0; i < MODULES; i++)
        if (image == smfar_kernel_text(names[i])) image = replaced[i];
    return load_embedded(module, image, count, options, values);
}

void text_replace(struct driver *driver, const char *folder)
{
    for (int i = 0; i < MODULES; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/smfar_%s.ptx", folder, names[i]);
        replaced[i] = read_file(path);
    }
    load_embedded = driver->cuModuleLoadDataEx;
    driver->cuModuleLoadDataEx = load;
}

const char *text_of(const char *entry)
{
    for (int id = 0; id < KERNELS; id++) {
        enum kernel_module module = kernel_modules[id];
        if (strcmp(kernel_rows[id].entry, entry)) continue;
        return replaced[module] ? replaced[module] : smfar_kernel_text(names[module]);
    }
    return "";
}
