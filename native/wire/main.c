/* Entry. `wire VMM CONTROL HELD SETTINGS MTU`: VMM is a unix datagram socket, one frame a datagram, whose other end is the VMM's network device; CONTROL a stream socket to
 * the owner; HELD is kept open and never used: it ends with this process, and the VMM with it. SETTINGS is the directory of the network's settings (/proc/sys/net), closed before
 * any frame is read.
 *
 * It makes a network namespace, says "n", and waits for a byte; meanwhile the range's supervisor puts one link's end there. Then it opens a packet socket on that, drops every
 * right, says "r", and relays. Frames of both sides are hostile: nothing in them is looked at but their length. A "c" is answered by the counters (relay.c). */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int number(const char *text, long most)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || value < 0 || value > most)
        _exit(END_USAGE);
    return (int)value;
}

static void check_kind(int fd, int kind, const char *what)
{
    int type = 0, domain = 0;
    socklen_t n = sizeof type;
    must(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n), what);
    n = sizeof domain;
    must(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n), what);
    errno = EPROTOTYPE;
    must(type == kind && domain == AF_UNIX ? 0 : -1, what);
}

/* Sent to the owner, which is gone when it can't be. */
static void say(int control, char word)
{
    if (send(control, &word, 1, MSG_NOSIGNAL) != 1)
        _exit(END_OWNER);
}

static void wait_for_owner(int control)
{
    char byte;
    ssize_t n;
    while ((n = recv(control, &byte, 1, 0)) < 0 && errno == EINTR)
        ;
    if (n != 1)
        _exit(END_OWNER);
}

/* Else this namespace's kernel would greet its neighbours as soon as the link is up. The settings are those of the reader's namespace; where they can't be written the range
 * still drops all such frames. */
static void leave_ip6(int settings)
{
    static const char *const names[] = {"ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6"};
    for (int i = 0; i < 2; i++) {
        int fd = openat(settings, names[i], O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "1", 1) != 1)
            errno = 0;
        if (fd >= 0)
            close(fd);
    }
    close(settings);
}

int main(int argc, char **argv)
{
    if (argc != 6)
        _exit(END_USAGE);
    struct ends ends = {.vmm = number(argv[1], 1 << 20), .control = number(argv[2], 1 << 20)};
    must(fcntl(number(argv[3], 1 << 20), F_GETFD), "held descriptor");
    ends.max_frame_bytes = (uint32_t)number(argv[5], MAX_MTU) + HEADER_BYTES + TAG_BYTES;
    check_kind(ends.vmm, SOCK_DGRAM, "the VMM's socket");
    check_kind(ends.control, SOCK_STREAM, "the owner's socket");
    must(unshare(CLONE_NEWNET), "network namespace");
    leave_ip6(number(argv[4], 1 << 20));
    say(ends.control, 'n');
    wait_for_owner(ends.control);
    ends.link = open_link();
    int bytes = QUEUE_BYTES;
    setsockopt(ends.vmm, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    confine();
    say(ends.control, 'r');
    return relay(&ends);
}
