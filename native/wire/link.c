/* The link's end: found, taken from the kernel's own protocols, and opened. */
#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/ethernet.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_ethernet(int fd, const char *name)
{
    struct ifreq r = {0};
    strncpy(r.ifr_name, name, IFNAMSIZ - 1);
    return ioctl(fd, SIOCGIFHWADDR, &r) == 0 && r.ifr_hwaddr.sa_family == ARPHRD_ETHER;
}

/* Its number, and its name in `request`. The namespace was made for it alone; tunnels that some kernels put into every one are not Ethernet. */
static int find_link(int fd, struct ifreq *request)
{
    struct if_nameindex *all = if_nameindex();
    int found = 0, number = 0;
    if (!all)
        fail("links");
    for (struct if_nameindex *one = all; one->if_index != 0; one++) {
        if (!is_ethernet(fd, one->if_name))
            continue;
        found++;
        number = (int)one->if_index;
        strncpy(request->ifr_name, one->if_name, IFNAMSIZ - 1);
    }
    if_freenameindex(all);
    errno = found ? ENOTUNIQ : ENODEV;
    must(found == 1 ? 0 : -1, "one link was expected");
    return number;
}

/* The address is the guest's: with it, this namespace's kernel would answer in its place. */
static void take_address(int fd, struct ifreq *request)
{
    struct sockaddr_in none = {.sin_family = AF_INET};
    memcpy(&request->ifr_addr, &none, sizeof none);
    must(ioctl(fd, SIOCSIFADDR, request), "address");
}

int open_link(void)
{
    struct ifreq request = {0};
    int plain = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1, bytes = QUEUE_BYTES;
    must(plain, "socket");
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = find_link(plain, &request)};
    take_address(plain, &request);
    close(plain);
    /* With protocol 0 nothing is taken in until it is bound: no other link's frames are. */
    int link = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    must(link, "packet socket");
    must(setsockopt(link, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one), "outgoing frames");
    if (setsockopt(link, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(link, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (setsockopt(link, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(link, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    must(bind(link, (struct sockaddr *)&address, sizeof address), "bind");
    return link;
}
