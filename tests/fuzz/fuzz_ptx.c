/* libFuzzer on the PTX parser: any text is parsed, or refused with a line number. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/soft/ptx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ptx_module *module = NULL;
    char error[256] = "", *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    int result = ptx_module_parse(text, &module, error, sizeof error);
    if (result == 0)
        ptx_module_free(module);
    else if (strncmp(error, "line ", 5) != 0)
        abort();
    free(text);
    return 0;
}
