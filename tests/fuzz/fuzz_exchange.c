/* libFuzzer on what one rank receives from the others while a group is set up: the table in the
 * store, the greeting on a new connection, and every kind of message. Whatever comes, a call ends
 * with a status of smfar.h and leaves no descriptor behind.
 *
 * The first byte of the input chooses the call, the second how many descriptors come with the rest.
 * The sources are included, for an exchange in the middle of its life can be made in no other way.
 */
#include "../../csrc/bootstrap/exchange.c"
#include "../../csrc/bootstrap/meet.c"

#include <fcntl.h>
#include <stdint.h>
#include <sys/socket.h>

enum { RANKS = 3, MOST_BYTES = 60000, TIMEOUT_MS = 1000 };

static void must(int condition)
{
    if (!condition) abort();
}

static void check_known(enum smfar_status status)
{
    must(strcmp(smfar_status_name(status), "unknown status") != 0);
}

static int lowest_free(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    must(fd >= 0);
    close(fd);
    return fd;
}

/* A connection on which the bytes and descriptors lie, and then the end. */
static int connection(const uint8_t *data, size_t size, int count)
{
    int pair[2], fds[FDPASS_MAX];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    for (int i = 0; i < count; i++)
        fds[i] = STDIN_FILENO;
    fdpass_send(pair[1], data, size, fds, count, clock_now_ms() + TIMEOUT_MS);
    close(pair[1]);
    return pair[0];
}

static struct exchange *new_exchange(int rank)
{
    struct exchange *ex = calloc(1, sizeof *ex);
    must(ex != NULL);
    ex->rank = rank;
    ex->ranks = RANKS;
    ex->timeout_ms = TIMEOUT_MS;
    for (int r = 0; r < SMFAR_MAX_RANKS; r++)
        ex->socket[r] = -1;
    return ex;
}

static void receive(struct exchange *ex, int kind)
{
    uint64_t mine = 7, all[RANKS];
    int fds[RANKS], fd = -1;
    if (kind == 0) check_known(exchange_all_gather(ex, &mine, sizeof mine, all));
    if (kind == 1) check_known(exchange_agree(ex, SMFAR_OK, "fuzzing"));
    if (kind == 2) check_known(exchange_descriptor(ex, 0, &fd));
    if (fd >= 0) close(fd);
    if (kind == 3) {
        check_known(exchange_descriptors(ex, 0, fds));
        for (int r = 0; r < RANKS; r++)
            if (fds[r] >= 0) close(fds[r]);
    }
}

/* Rank 1 hears rank 0; rank 0 hears each of the others say the same. */
static void fuzz_messages(int rank, int kind, const uint8_t *data, size_t size, int count)
{
    struct exchange *ex = new_exchange(rank);
    if (rank) ex->socket[0] = connection(data, size, count);
    for (int r = 1; r < RANKS && rank == 0; r++)
        ex->socket[r] = connection(data, size, count);
    receive(ex, kind);
    receive(ex, 1);
    exchange_destroy(ex);
}

static void fuzz_greeting(const uint8_t *data, size_t size, int count)
{
    struct exchange *ex = new_exchange(0);
    int64_t deadline = clock_now_ms() + TIMEOUT_MS;
    check_known(admit(ex, connection(data, size, count), getpid(), geteuid(), deadline));
    exchange_destroy(ex);
}

struct input {
    const uint8_t *data;
    size_t size;
};

static enum smfar_status ignore(void *context, const char *key, const void *value, size_t bytes)
{
    (void)context, (void)key, (void)value, (void)bytes;
    return SMFAR_OK;
}

/* What the others say of themselves: on this host and of this version, but for the input's bits. */
static enum smfar_status tell(void *context, const char *key, void *value, size_t bytes,
                              int64_t timeout_ms)
{
    struct input *input = context;
    struct hello hello = {.magic = MAGIC, .layout = LAYOUT};
    unsigned char said[sizeof hello];
    (void)key, (void)timeout_ms;
    host_identify(&hello.host);
    memcpy(said, &hello, sizeof hello);
    for (size_t i = 0; i < sizeof said && i < input->size; i++)
        said[i] ^= input->data[i];
    must(bytes == sizeof said);
    memcpy(value, said, bytes);
    return SMFAR_OK;
}

static void fuzz_hello(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct smfar_store store = {&input, ignore, tell};
    struct exchange *ex = NULL;
    enum smfar_status status = exchange_create(&store, 1, RANKS, 1, &ex);
    check_known(status);
    must(status != SMFAR_OK && ex == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3 || size > MOST_BYTES) return 0;
    int kind = data[0] % 10, count = data[1] % (FDPASS_MAX + 1), before = lowest_free();
    if (kind < 8)
        fuzz_messages(kind / 4, kind % 4, data + 2, size - 2, count);
    else if (kind == 8)
        fuzz_greeting(data + 2, size - 2, count);
    else
        fuzz_hello(data + 2, size - 2);
    must(lowest_free() == before);
    return 0;
}
