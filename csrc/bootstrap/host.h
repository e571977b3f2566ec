/* Which host this process runs on, well enough to tell whether two ranks can share memory. */
#ifndef SMFAR_BOOTSTRAP_HOST_H
#define SMFAR_BOOTSTRAP_HOST_H

#include <stdint.h>

struct host_identity {
    char boot_id[40];
    uint64_t network_namespace;
    char name[64];
};
void host_identify(struct host_identity *identity_out);

/* 1 when two processes run under one kernel and share the network namespace in which abstract
 * sockets live. The name is for people only. */
int host_same(const struct host_identity *a, const struct host_identity *b);

#endif
