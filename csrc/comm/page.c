/* See page.h. */
#define _GNU_SOURCE /* memfd_create */
#include "page.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../memory/vmm.h"

/* posix_fallocate: a page that cannot be had is an error now, not a bus error later. */
static enum smfar_status create_file(size_t bytes, int *fd_out)
{
    int fd = memfd_create("smfar-page", MFD_CLOEXEC);
    if (fd < 0) return FAIL_ERRNO("memfd_create");
    int code = posix_fallocate(fd, 0, (off_t)bytes);
    if (code) {
        close(fd);
        return FAIL(SMFAR_ERR_MEMORY, "no memory for the host page: %s", strerror(code));
    }
    *fd_out = fd;
    return SMFAR_OK;
}

static enum smfar_status map_file(struct page *page, int fd)
{
    enum smfar_status status;
    struct driver *driver = page->driver;
    size_t bytes = page->bytes;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return FAIL_ERRNO("mapping the host page");
    page->host = at;
    CU(cuMemHostRegister, at, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    page->registered = 1;
    CU(cuMemHostGetDevicePointer, &page->device, at, 0);
    return SMFAR_OK;
fail:
    return status;
}

/* By rank 0, before anybody else has the page. */
static enum smfar_status make_lives(struct host_page *host)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    int code = pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    for (int r = 0; r < SMFAR_MAX_RANKS && !code; r++)
        code = pthread_mutex_init(&host->life[r].held, &kind);
    pthread_mutexattr_destroy(&kind);
    return code ? FAIL(SMFAR_ERR_SYSTEM, "robust mutexes: %s", strerror(code)) : SMFAR_OK;
}

size_t page_bytes(int ranks)
{
    size_t pairs = (size_t)ranks * (size_t)ranks * sizeof(struct page_pair);
    return vmm_round_up(sizeof(struct host_page) + pairs, 4096);
}

enum smfar_status page_create(struct driver *driver, struct exchange *exchange,
                              struct page *page_out)
{
    struct page page = {driver, NULL, page_bytes(exchange_ranks(exchange)), 0, 0};
    int mine = -1, received = -1;
    enum smfar_status status = SMFAR_OK;
    if (exchange_rank(exchange) == 0) status = create_file(page.bytes, &mine);
    if (mine >= 0) status = map_file(&page, mine);
    if (page.host && status == SMFAR_OK) status = make_lives(page.host);
    TRY(exchange_agree(exchange, status, "creating the host page"));
    status = exchange_descriptor(exchange, mine, &received);
    if (received >= 0) status = map_file(&page, received);
    TRY(exchange_agree(exchange, status, "sharing the host page"));
    close(mine >= 0 ? mine : received);
    *page_out = page;
    return SMFAR_OK;
fail:
    if (mine >= 0) close(mine);
    if (received >= 0) close(received);
    page_destroy(&page);
    return status;
}

void page_destroy(struct page *page)
{
    struct driver *driver = page->driver;
    if (page->registered) CU_WARN(cuMemHostUnregister, page->host);
    if (page->host) munmap(page->host, page->bytes);
    memset(page, 0, sizeof(*page));
}
