/* What C tests share: CHECK counts and prints failures, check_end gives the exit status. A test
 * program exits 0 (passed), 1 (failed) or 77 (skipped). */
#ifndef SMFAR_TESTS_CHECK_H
#define SMFAR_TESTS_CHECK_H

#include <stdio.h>

static int check_done, check_failed;

/* Prints the place and the message when the condition does not hold; goes on either way. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        check_done++;                                                                              \
        if (!(condition)) {                                                                        \
            check_failed++;                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

/* The program's exit status; a program that checked nothing has failed. */
static inline int check_end(void)
{
    fprintf(stderr, "%d checks, %d failed\n", check_done, check_failed);
    return check_failed || !check_done;
}

#endif
