/*
 * packet.c: messages with descriptors. Whatever comes with a packet that is refused is closed.
 */
#include "wire/packet.h"
#include "wire/addr.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* ---- out ---- */

union control {
    struct cmsghdr head;
    char room[CMSG_SPACE(MT_PACKET_FDS * sizeof(int))];
};

static ssize_t send_once(int fd, const char *text, size_t n, const int *fds, int n_fds)
{
    struct iovec v = {.iov_base = (char *)text, .iov_len = n};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    union control c;

    if (n_fds > 0) {
        size_t bytes = (size_t)n_fds * sizeof(int);

        memset(&c, 0, sizeof(c));
        h.msg_control = c.room;
        h.msg_controllen = CMSG_SPACE(bytes);
        c.head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(bytes)};
        memcpy(CMSG_DATA(&c.head), fds, bytes);
    }
    return sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int mt_packet_send(int fd, json_t *msg, const int *fds, int n, int64_t until, struct mt_err *e)
{
    char *text = msg ? json_dumps(msg, JSON_COMPACT) : NULL;
    size_t len = text ? strlen(text) : 0;
    int rc = 0;

    json_decref(msg);
    if (!text)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (len > MT_PACKET_MAX || n > MT_PACKET_FDS)
        rc = mt_err_set(e, -EMSGSIZE, "a message of %zu bytes and %d descriptors", len, n);
    while (!rc && send_once(fd, text, len, fds, n) < 0) {
        if (errno == EAGAIN)
            rc = mt_addr_wait(fd, POLLOUT, until);
        else if (errno != EINTR)
            rc = -errno;
        if (rc == -EINTR)
            rc = 0;
    }
    free(text);
    if (rc == -ECONNRESET)
        rc = -EPIPE;
    if (rc == -EPIPE)
        return mt_err_set(e, rc, "the other server is gone");
    return rc < 0 ? mt_err_set(e, rc, "a message can't be sent: %s", strerror(-rc)) : 0;
}

/* ---- in ---- */

void mt_packet_free(struct mt_packet *p)
{
    for (int i = 0; i < p->n_fds; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    json_decref(p->msg);
    *p = (struct mt_packet){0};
}

int mt_packet_take(struct mt_packet *p, int i)
{
    int fd = i < p->n_fds ? p->fds[i] : -1;

    if (fd >= 0)
        p->fds[i] = -1;
    return fd;
}

int mt_packet_parse(struct mt_packet *p, const char *text, size_t n, struct mt_err *e)
{
    json_error_t je;

    p->msg = json_loadb(text, n, 0, &je);
    p->type = json_string_value(json_object_get(p->msg, "type"));
    return p->type ? 0 : mt_err_set(e, -EPROTO, "not an object with a \"type\" (%zu bytes)", n);
}

static void take_fds(struct msghdr *h, struct mt_packet *p)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (p->n_fds < MT_PACKET_FDS)
                p->fds[p->n_fds++] = fd;
            else
                close(fd);
        }
    }
}

/*
 * A packet into buf: its bytes, or a negative errno. One that closes with something unread in his
 * own socket resets ours: that is told once, before what he had said.
 */
static ssize_t recv_once(int fd, char *buf, size_t room, struct mt_packet *p)
{
    struct iovec v = {.iov_base = buf, .iov_len = room};
    union control c;
    struct msghdr h = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c)};
    ssize_t n;

    while ((n = recvmsg(fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0)
        if (errno != EINTR && errno != ECONNRESET)
            return -errno;
    take_fds(&h, p);
    return h.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EMSGSIZE : n;
}

int mt_packet_recv(int fd, struct mt_packet *p, int64_t until, struct mt_err *e)
{
    char *buf = malloc(MT_PACKET_MAX);
    ssize_t n = -EAGAIN;
    int rc = buf ? 0 : -ENOMEM;

    *p = (struct mt_packet){0};
    while (!rc && (n = recv_once(fd, buf, MT_PACKET_MAX, p)) == -EAGAIN) {
        rc = mt_addr_wait(fd, POLLIN, until);
        if (rc == -EINTR)
            rc = 0;
    }
    if (rc == -ETIMEDOUT)
        mt_err_set(e, rc, "the other server does not answer");
    else if (rc < 0)
        mt_err_set(e, rc, "%s", strerror(-rc));
    else if (n == 0)
        rc = mt_err_set(e, -ENODATA, "the other server is gone");
    else if (n < 0)
        rc = mt_err_set(e, n == -EMSGSIZE ? -EPROTO : (int)n, "a message can't be read: %s",
                        strerror((int)-n));
    else
        rc = mt_packet_parse(p, buf, (size_t)n, e);
    free(buf);
    if (rc < 0)
        mt_packet_free(p);
    return rc;
}

int mt_packet_check_peer(int fd, struct mt_err *e)
{
    struct ucred who;
    socklen_t n = sizeof(who);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0)
        return mt_err_set(e, -errno, "%s", strerror(errno));
    if (who.uid != geteuid())
        return mt_err_set(e, -EPERM, "the other server is user %u's, this one user %u's", who.uid,
                          geteuid());
    return 0;
}

/* ---- bytes too many for a packet ---- */

int mt_packet_seal(const struct mt_state_io *io, struct mt_err *e)
{
    int fd = memfd_create("metronome", MFD_CLOEXEC | MFD_ALLOW_SEALING), err = 0;
    size_t at = 0;

    if (fd < 0)
        err = errno;
    while (!err && at < io->n) {
        ssize_t n = write(fd, io->data + at, io->n - at);

        if (n < 0 && errno != EINTR)
            err = errno;
        at += n > 0 ? (size_t)n : 0;
    }
    if (!err && fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        err = errno;
    if (!err)
        return fd;
    if (fd >= 0)
        close(fd);
    return mt_err_set(e, -err, "no memory to hand a call over: %s", strerror(err));
}

int mt_packet_map(struct mt_state_io *io, int fd, size_t most, struct mt_err *e)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;
    void *at;

    *io = (struct mt_state_io){.load = true};
    /* Without the seals the other side could cut it while it is read. */
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) < 0)
        return mt_err_set(e, -EPROTO, "not the memory of a call");
    if (st.st_size == 0 || (uint64_t)st.st_size > most)
        return mt_err_set(e, -EPROTO, "a call of %lld bytes, expected 1..%zu",
                          (long long)st.st_size, most);
    at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return mt_err_set(e, -errno, "the memory of a call: %s", strerror(errno));
    io->data = at;
    io->n = (size_t)st.st_size;
    return 0;
}

void mt_packet_unmap(struct mt_state_io *io)
{
    if (io->data)
        munmap(io->data, io->n);
    io->data = NULL;
}
