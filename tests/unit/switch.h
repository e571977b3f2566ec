/* What a unit can ask the software switch beside the driver's functions. */
#ifndef SMFAR_TESTS_SWITCH_H
#define SMFAR_TESTS_SWITCH_H

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include "../../csrc/soft/soft.h"
#include "unit.h"

/* The switch lies beside the program; driver_open has loaded it already. */
static inline void *switch_symbol(const char *name)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    REQUIRE(length > 0, "no /proc/self/exe");
    path[length] = 0;
    strcpy(strrchr(path, '/'), "/libsmfar_soft.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(library != NULL, "%s is not loaded", path);
    void *symbol = dlsym(library, name);
    REQUIRE(symbol != NULL, "the switch has no %s", name);
    return symbol;
}

/* Of this process, which the switch is part of. */
static inline int switch_open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    REQUIRE(folder != NULL, "no /proc/self/fd");
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static inline uint64_t switch_calls(const char *function)
{
    uint64_t (*count)(const char *);
    *(void **)&count = switch_symbol("soft_call_count");
    return count(function);
}

/* Every resource that was taken has been given back. */
static inline void switch_expect_no_leaks(void)
{
    void (*read_leaks)(struct soft_leaks *);
    struct soft_leaks leaks = {0};
    *(void **)&read_leaks = switch_symbol("soft_leaks");
    read_leaks(&leaks);
    EXPECT_EQ(leaks.handles, 0);
    EXPECT_EQ(leaks.mappings, 0);
    EXPECT_EQ(leaks.ranges, 0);
    EXPECT_EQ(leaks.streams, 0);
    EXPECT_EQ(leaks.events, 0);
    EXPECT_EQ(leaks.modules, 0);
    EXPECT_EQ(leaks.descriptors, 0);
    EXPECT_EQ(leaks.graphs, 0);
}

#endif
