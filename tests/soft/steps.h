/* What a virtual GPU's kernels did last, for whoever reports a failure in checked mode. */
#ifndef SMFAR_TESTS_STEPS_H
#define SMFAR_TESTS_STEPS_H

#include <stdio.h>
#include <string.h>

#include "../../csrc/soft/soft.h"

enum { STEPS_SHOWN = 12 };

/* Line `line` (from 1) of a module's text, without its indentation and its newline. */
static inline void steps_print_line(const char *text, unsigned line)
{
    while (--line > 0 && text)
        text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
    if (!text) return;
    text += strspn(text, " ");
    printf("%.*s", (int)strcspn(text, "\n"), text);
}

/* A line each, of the module's text that `text_of` has for the kernel of this name. */
static inline void steps_print(const struct soft_step *steps, unsigned count,
                               const char *(*text_of)(const char *kernel))
{
    const char *kernel = "";
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(kernel, steps[i].kernel) != 0) printf("    %s\n", steps[i].kernel);
        kernel = steps[i].kernel;
        printf("    %8llu block %u warp %u ", (unsigned long long)steps[i].number, steps[i].block,
               steps[i].warp);
        if (steps[i].times > 1) printf("%u times ", steps[i].times);
        steps_print_line(text_of(kernel), steps[i].line);
        printf("\n");
    }
}

#endif
