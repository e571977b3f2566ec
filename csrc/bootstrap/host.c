/* See host.h. */
#include "host.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void host_identify(struct host_identity *identity_out)
{
    struct host_identity identity;
    struct stat space;
    memset(&identity, 0, sizeof(identity));
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, identity.boot_id, 36);
        if (got < 0) identity.boot_id[0] = 0;
        close(fd);
    }
    if (!stat("/proc/self/ns/net", &space)) identity.network_namespace = space.st_ino;
    gethostname(identity.name, sizeof(identity.name) - 1);
    *identity_out = identity;
}

int host_same(const struct host_identity *a, const struct host_identity *b)
{
    return !memcmp(a->boot_id, b->boot_id, sizeof(a->boot_id)) &&
           a->network_namespace == b->network_namespace;
}
