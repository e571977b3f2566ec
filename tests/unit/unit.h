/* The harness of the C units: EXPECT counts failures and goes on, REQUIRE ends the program.
 * A unit's main ends with `return unit_end();`. Exit codes: 0, 1, or 77 for skipped. */
#ifndef SMFAR_TESTS_UNIT_H
#define SMFAR_TESTS_UNIT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic int unit_failures, unit_checks; /* ranks may be threads */

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        unit_checks++;                                                                             \
        if (!(condition)) {                                                                        \
            unit_failures++;                                                                       \
            printf("%s:%d: not so: %s", __FILE__, __LINE__, #condition);                           \
            printf("; " __VA_ARGS__);                                                              \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

#define EXPECT_EQ(actual, expected)                                                                \
    do {                                                                                           \
        long long unit_actual = (long long)(actual), unit_expected = (long long)(expected);        \
        EXPECT(unit_actual == unit_expected, "%s is %lld, not %lld", #actual, unit_actual,         \
               unit_expected);                                                                     \
    } while (0)

#define EXPECT_HAS(text, part) EXPECT(strstr(text, part), "\"%s\" does not hold \"%s\"", text, part)

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        int unit_before = unit_failures;                                                           \
        EXPECT(condition, __VA_ARGS__);                                                            \
        if (unit_failures > unit_before) exit(1);                                                  \
    } while (0)

#define SKIP(...)                                                                                  \
    do {                                                                                           \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(77);                                                                                  \
    } while (0)

/* Milliseconds that the clock says. */
static inline double unit_ms(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static inline int unit_end(void)
{
    printf("%d checks, %d failed\n", unit_checks, unit_failures);
    return unit_failures > 0 || unit_checks == 0;
}

#endif
