/* See fdpass.h. */
#define _GNU_SOURCE /* accept4, struct ucred */
#include "fdpass.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static enum smfar_status new_socket(const char *name, struct sockaddr_un *address,
                                    socklen_t *length, int *socket_out)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    size_t size = strlen(name);
    if (size + 1 > sizeof(address->sun_path))
        return FAIL(SMFAR_ERR_ARGUMENT, "socket name %s is too long", name);
    memcpy(address->sun_path + 1, name, size); /* a leading zero byte: abstract */
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size);
    *socket_out = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return *socket_out < 0 ? FAIL_ERRNO("socket") : SMFAR_OK;
}

enum smfar_status fdpass_listen(const char *name, int backlog, int *socket_out)
{
    struct sockaddr_un address;
    socklen_t length;
    int fd;
    enum smfar_status status = new_socket(name, &address, &length, &fd);
    if (status != SMFAR_OK) return status;
    if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, backlog)) {
        status = FAIL_ERRNO("listening on an abstract Unix socket");
        close(fd);
        return status;
    }
    *socket_out = fd;
    return SMFAR_OK;
}

enum smfar_status fdpass_connect(const char *name, int early, int64_t deadline, int *socket_out)
{
    struct sockaddr_un address;
    socklen_t length;
    int fd;
    enum smfar_status status = new_socket(name, &address, &length, &fd);
    if (status != SMFAR_OK) return status;
    while (connect(fd, (struct sockaddr *)&address, length)) {
        int nobody = early && errno == ECONNREFUSED;
        if ((errno != EAGAIN && errno != EINTR && !nobody) || clock_now_ms() >= deadline) {
            status = nobody ? FAIL(SMFAR_ERR_TIMEOUT, "nobody listens under the id")
                            : FAIL_ERRNO(
                                  "connecting to rank 0 over an abstract Unix socket (do the ranks "
                                  "share one network namespace?)");
            close(fd);
            return status;
        }
        usleep(1000);
    }
    *socket_out = fd;
    return SMFAR_OK;
}

/* Until the socket is ready for `events`, or the deadline. */
static enum smfar_status wait_ready(int fd, short events, int64_t deadline)
{
    for (;;) {
        int64_t left = deadline - clock_now_ms();
        if (left < 0) left = 0;
        struct pollfd item = {.fd = fd, .events = events};
        int ready = poll(&item, 1, left > 1000 ? 1000 : (int)left);
        if (ready > 0) return SMFAR_OK;
        if (ready < 0 && errno != EINTR) return FAIL_ERRNO("poll");
        if (left == 0) return FAIL(SMFAR_ERR_TIMEOUT, "no answer before the deadline");
    }
}

enum smfar_status fdpass_accept(int listener, int64_t deadline, int *socket_out, pid_t *pid_out,
                                uid_t *uid_out)
{
    enum smfar_status status = wait_ready(listener, POLLIN, deadline);
    if (status != SMFAR_OK) return status;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return FAIL_ERRNO("accept");
    struct ucred peer;
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) {
        status = FAIL_ERRNO("SO_PEERCRED");
        close(fd);
        return status;
    }
    *socket_out = fd;
    *pid_out = peer.pid;
    *uid_out = peer.uid;
    return SMFAR_OK;
}

static enum smfar_status peer_gone(void)
{
    return FAIL(SMFAR_ERR_PEER, "the other side closed the connection");
}

enum smfar_status fdpass_send(int socket, const void *data, size_t bytes, const int *fds, int count,
                              int64_t deadline)
{
    char control[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
    size_t sent = 0;
    while (sent < bytes) {
        struct iovec part = {(char *)data + sent, bytes - sent};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (count > 0 && sent == 0) {
            memset(control, 0, sizeof(control));
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
            memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)count);
        }
        ssize_t done = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done > 0) {
            sent += (size_t)done;
        } else if (errno == EAGAIN || errno == EINTR) {
            enum smfar_status status = wait_ready(socket, POLLOUT, deadline);
            if (status != SMFAR_OK) return status;
        } else {
            return errno == EPIPE || errno == ECONNRESET ? peer_gone() : FAIL_ERRNO("sendmsg");
        }
    }
    return SMFAR_OK;
}

/* Moves the message's descriptors to the end of fds[0..*got). */
static void take_descriptors(struct msghdr *message, int *fds, int *got)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        int count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + sizeof(int) * (size_t)i, sizeof(int));
            if (*got < FDPASS_MAX)
                fds[(*got)++] = fd;
            else
                close(fd);
        }
    }
}

/* Receives the bytes, and whatever descriptors come with them. */
static enum smfar_status receive_all(int socket, char *data, size_t bytes, int *fds, int *got,
                                     int64_t deadline)
{
    char control[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
    size_t have = 0;
    while (have < bytes) {
        struct iovec part = {data + have, bytes - have};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof(control)};
        ssize_t done = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (done > 0) {
            take_descriptors(&message, fds, got);
            have += (size_t)done;
        } else if (done < 0 && (errno == EAGAIN || errno == EINTR)) {
            enum smfar_status status = wait_ready(socket, POLLIN, deadline);
            if (status != SMFAR_OK) return status;
        } else {
            return done == 0 || errno == ECONNRESET ? peer_gone() : FAIL_ERRNO("recvmsg");
        }
    }
    return SMFAR_OK;
}

enum smfar_status fdpass_receive(int socket, void *data, size_t bytes, int *fds, int count,
                                 int64_t deadline)
{
    int all[FDPASS_MAX];
    int got = 0;
    enum smfar_status status = receive_all(socket, data, bytes, all, &got, deadline);
    if (status == SMFAR_OK && got != count)
        status = FAIL(SMFAR_ERR_SYSTEM,
                      "%d descriptors came where %d were due: is the limit of open files "
                      "(ulimit -n) too low?",
                      got, count);
    if (status != SMFAR_OK)
        while (got > 0)
            close(all[--got]);
    else if (count > 0)
        memcpy(fds, all, sizeof(int) * (size_t)count);
    return status;
}
