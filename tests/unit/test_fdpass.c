/* Units of bootstrap/fdpass: bytes and descriptors arrive whole, deadlines hold, a peer that has
 * gone is an error, and no descriptor stays open after a failure. */
#define _GNU_SOURCE
#include "../../csrc/bootstrap/fdpass.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

enum { LONG = 3 << 20 };

static int count_open(void)
{
    int open = 0;
    for (int fd = 0; fd < 256; fd++)
        open += fcntl(fd, F_GETFD) != -1;
    return open;
}

static void make_pair(int pair[2])
{
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
}

static void *send_long(void *socket)
{
    unsigned char *data = malloc(LONG);
    REQUIRE(data != NULL, "no memory");
    for (int i = 0; i < LONG; i++)
        data[i] = (unsigned char)(i * 7);
    enum smfar_status status =
        fdpass_send(*(int *)socket, data, LONG, NULL, 0, clock_now_ms() + 100000);
    EXPECT(status == SMFAR_OK, "%s", smfar_last_error());
    free(data);
    return NULL;
}

/* More than a socket holds: both sides have to take turns. */
static void check_long(void)
{
    int pair[2], wrong = 0;
    pthread_t thread;
    unsigned char *data = malloc(LONG);
    make_pair(pair);
    REQUIRE(data && pthread_create(&thread, NULL, send_long, &pair[0]) == 0, "no thread");
    EXPECT_EQ(fdpass_receive(pair[1], data, LONG, NULL, 0, clock_now_ms() + 100000), SMFAR_OK);
    pthread_join(thread, NULL);
    for (int i = 0; i < LONG; i++)
        wrong += data[i] != (unsigned char)(i * 7);
    EXPECT_EQ(wrong, 0);
    free(data);
    close(pair[0]);
    close(pair[1]);
}

static void check_descriptors(int count)
{
    int pair[2], sent[FDPASS_MAX], got[FDPASS_MAX];
    char text[8] = "message";
    struct stat a, b;
    make_pair(pair);
    for (int i = 0; i < count; i++)
        sent[i] = memfd_create("unit", MFD_CLOEXEC);
    EXPECT_EQ(fdpass_send(pair[0], text, 8, sent, count, clock_now_ms() + 10000), SMFAR_OK);
    memset(text, 0, sizeof text);
    EXPECT_EQ(fdpass_receive(pair[1], text, 8, got, count, clock_now_ms() + 10000), SMFAR_OK);
    EXPECT_HAS(text, "message");
    for (int i = 0; i < count; i++) {
        EXPECT(fstat(sent[i], &a) == 0 && fstat(got[i], &b) == 0 && a.st_ino == b.st_ino,
               "descriptor %d is another file", i);
        EXPECT(fcntl(got[i], F_GETFD) & FD_CLOEXEC, "descriptor %d survives exec", i);
        close(sent[i]);
        close(got[i]);
    }
    close(pair[0]);
    close(pair[1]);
}

static void check_wrong_count(int sent, int asked)
{
    int pair[2], fds[2] = {dup(0), dup(0)}, got[2] = {-1, -1};
    char byte = 1;
    make_pair(pair);
    EXPECT_EQ(fdpass_send(pair[0], &byte, 1, fds, sent, clock_now_ms() + 10000), SMFAR_OK);
    int before = count_open();
    EXPECT(fdpass_receive(pair[1], &byte, 1, got, asked, clock_now_ms() + 200) != SMFAR_OK,
           "%d descriptors were sent, %d asked for", sent, asked);
    EXPECT_EQ(count_open(), before);
    close(fds[0]);
    close(fds[1]);
    close(pair[0]);
    close(pair[1]);
}

static void check_deadline_and_end(void)
{
    int pair[2];
    char byte = 1;
    make_pair(pair);
    int64_t begin = clock_now_ms();
    EXPECT_EQ(fdpass_receive(pair[1], &byte, 1, NULL, 0, begin + 50), SMFAR_ERR_TIMEOUT);
    int64_t took = clock_now_ms() - begin;
    EXPECT(took >= 49 && took < 5000, "waited %lld ms", (long long)took);
    close(pair[0]);
    EXPECT_EQ(fdpass_receive(pair[1], &byte, 1, NULL, 0, begin + 60000), SMFAR_ERR_PEER);
    EXPECT_EQ(fdpass_send(pair[1], &byte, 1, NULL, 0, begin + 60000), SMFAR_ERR_PEER);
    close(pair[1]);
}

static void check_connect(void)
{
    char name[64];
    int listener, client, server;
    pid_t pid = 0;
    uid_t uid = 0;
    snprintf(name, sizeof name, "smfar-unit-%d", (int)getpid());
    EXPECT(fdpass_connect(name, 0, clock_now_ms() + 50, &client) != SMFAR_OK, "nobody listens");
    REQUIRE(fdpass_listen(name, 4, &listener) == SMFAR_OK, "%s", smfar_last_error());
    EXPECT_EQ(fdpass_accept(listener, clock_now_ms() + 50, &server, &pid, &uid), SMFAR_ERR_TIMEOUT);
    REQUIRE(fdpass_connect(name, 0, clock_now_ms() + 10000, &client) == SMFAR_OK, "no connection");
    EXPECT_EQ(fdpass_accept(listener, clock_now_ms() + 10000, &server, &pid, &uid), SMFAR_OK);
    EXPECT_EQ(pid, getpid());
    EXPECT_EQ(uid, geteuid());
    close(client);
    close(server);
    close(listener);
}

int main(void)
{
    int before = count_open();
    check_long();
    check_descriptors(0);
    check_descriptors(1);
    check_descriptors(FDPASS_MAX);
    check_wrong_count(1, 0);
    check_wrong_count(0, 1);
    check_wrong_count(2, 1);
    check_deadline_and_end();
    check_connect();
    EXPECT_EQ(count_open(), before);
    return unit_end();
}
