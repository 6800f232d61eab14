/* `PROGRAM connect tcp PORT` and `PROGRAM connect unix PATH`: no probe, but a stream of the host's to a server in the cell (design/evidence.md). Connects on
 * the cell's own loopback, says one byte (0, or errno) and carries bytes between the socket and its standard streams, each way until its own end. SIGTERM: the
 * host wants no more of what the server sends; what it has sent itself is still delivered. */
#include "probe.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { BUFFER_BYTES = 64 << 10, RETRY_US = 20000, LINGER_STEP_MS = 100, LINGER_MS = 2000 };

struct flow { int from, to; uint32_t at, n; bool ended; uint8_t bytes[BUFFER_BYTES]; };

static volatile sig_atomic_t closing;

static void on_term(int signo) { (void)signo, closing = 1; }

static int connected(int family, const void *address, socklen_t n)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0)
        return -1;
    if (family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int answer = connect(fd, address, n);
    while (answer != 0 && errno == EAGAIN) { /* gVisor's, where Linux waits for a full backlog: the host says how long */
        usleep(RETRY_US);
        answer = connect(fd, address, n);
    }
    if (answer == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* What listens on ::1 alone is found too; the error is the one of 127.0.0.1. */
static int to_port(uint16_t port)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = connected(AF_INET, &four, sizeof four), error = errno;
    if (fd < 0 && error == ECONNREFUSED)
        fd = connected(AF_INET6, &six, sizeof six);
    errno = error;
    return fd;
}

static int to_path(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof name.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(name.sun_path, path);
    return connected(AF_UNIX, &name, sizeof name);
}

static bool failed_for_good(ssize_t n) { return n < 0 && errno != EAGAIN && errno != EINTR; }

static void take(struct flow *f)
{
    ssize_t n = read(f->from, f->bytes, sizeof f->bytes);
    if (failed_for_good(n)) /* the server reset it: nothing can be sent to it either */
        _exit(0);
    f->ended = n == 0;
    f->at = 0, f->n = n > 0 ? (uint32_t)n : 0;
}

static void give(struct flow *f)
{
    ssize_t n = write(f->to, f->bytes + f->at, f->n);
    if (failed_for_good(n))
        f->ended = true, f->n = 0;
    else if (n > 0)
        f->at += (uint32_t)n, f->n -= (uint32_t)n;
}

/* A socket that nothing waits for isn't polled: a hang-up would wake for nothing. */
static struct pollfd wanted(const struct flow *f)
{
    if (f->n > 0)
        return (struct pollfd){.fd = f->to, .events = POLLOUT};
    return (struct pollfd){.fd = f->ended ? -1 : f->from, .events = POLLIN};
}

static void step(struct flow *f, short seen)
{
    if (seen != 0 && f->n == 0)
        take(f);
    if (f->n > 0)
        give(f);
}

/* Reads and drops what still comes until the server has ended its side, or has taken all that was sent and then been silent for a while:
 * a socket that is closed before that answers the server's next byte with a reset, and what it has not read by then is lost. */
static void linger(int fd, uint8_t *scratch, size_t n)
{
    shutdown(fd, SHUT_WR);
    for (int silent_ms = 0; silent_ms < LINGER_MS;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        int unsent = 0;
        if (poll(&one, 1, LINGER_STEP_MS) > 0) {
            ssize_t got = read(fd, scratch, n);
            if (got == 0 || failed_for_good(got))
                return;
        } else if (ioctl(fd, SIOCOUTQ, &unsent) != 0 || unsent == 0)
            silent_ms += LINGER_STEP_MS;
    }
}

static void carry(int fd)
{
    static struct flow up = {.from = 0}, down = {.to = 1};
    bool up_told = false, down_told = false;
    sigset_t none;
    sigemptyset(&none);
    up.to = down.from = fd;
    while (!up_told || !down_told) {
        if (closing)
            down.n = 0; /* read and dropped: closing a socket with unread bytes would reset it, and lose what was sent */
        struct pollfd both[] = {wanted(&up), wanted(&down)};
        if (ppoll(both, 2, NULL, &none) > 0) {
            step(&up, both[0].revents);
            step(&down, both[1].revents);
        }
        if (closing && up.ended && up.n == 0) {
            linger(fd, down.bytes, sizeof down.bytes);
            return;
        }
        if (up.ended && up.n == 0 && !up_told)
            up_told = true, shutdown(fd, SHUT_WR), close(0);
        if (down.ended && down.n == 0 && !down_told)
            down_told = true, close(1);
    }
}

void connect_and_carry(const char *kind, const char *target)
{
    struct sigaction term = {.sa_handler = on_term};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    signal(SIGPIPE, SIG_IGN);
    int fd = strcmp(kind, "tcp") == 0 ? to_port((uint16_t)atoi(target)) : to_path(target);
    uint8_t said = fd >= 0 ? 0 : errno > 0 && errno < 256 ? (uint8_t)errno : EIO;
    sigprocmask(SIG_BLOCK, &blocked, NULL); /* a signal comes while `ppoll` waits, and at no other time */
    sigaction(SIGTERM, &term, NULL);
    if (write(1, &said, 1) != 1 || fd < 0)
        return;
    int ends[] = {0, 1, fd};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        fcntl(ends[i], F_SETFL, fcntl(ends[i], F_GETFL) | O_NONBLOCK);
    carry(fd);
}
