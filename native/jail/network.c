/* A network namespace into which a process outside puts one link. The stage makes it and waits; the supervisor of the range puts the link there; the owner says "go on".
 *
 * It belongs to the stage's user namespace: what a runtime makes below that (the workload's own user namespace) has no right over it, neither over its link and
 * routes nor to a raw socket in it. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

static const char settings[] = "/proc/sys/net";

static void set(const char *path, const char *value, bool may_be_absent) {
    if (may_be_absent && access(path, F_OK)) return;
    write_file(path, value);
}

/* Before anything is up, so that no link ever has an address of the sixth version. Workloads have no capability here: ports below 1024 are free to all, as they are
 * to an image's root; no process may ping. */
static void set_defaults(void) {
    set("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1", true);
    set("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1", true);
    set("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0", false);
    set("/proc/sys/net/ipv4/ping_group_range", "1 0", false);
}

static void bring_up_loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    must(fd, "socket");
    must(ioctl(fd, SIOCSIFFLAGS, &request), "lo");
    close(fd);
}

static void wait_for_link(int fd) {
    char byte;
    ssize_t n;
    must((int)write(fail_fd, "network\n", 8), "status");
    do n = read(fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    if (n == 0) errno = EPIPE;
    if (n != 1) fail("nobody said that the link is there");
    close(fd);
}

void make_network(const struct options *o) {
    step(25, "network");
    must(unshare(CLONE_NEWNET), "unshare");
    set_defaults();
    bring_up_loopback();
    if (o->network_covered) must(mount("tmpfs", settings, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,nr_inodes=1,mode=555"), settings);
    wait_for_link(o->network_fd);
}
