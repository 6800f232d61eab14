/* The machine's network device, where it has one. CONFIG puts it, down, into the container's network namespace; RENEW gives it its address and brings it up.
 *
 * With a device that namespace belongs to the machine's user namespace: no capability of the container's holds in it, so the workload, its root included, can
 * neither change the link nor open a raw socket. (Without one, or where CAP_NET_ADMIN is granted, it belongs to the container: container.c. What leaves is
 * judged on the host either way.) All is done over one socket, opened in it. The old calls,
 * not netlink: they are half the code here, and in an emulated kernel no slower. */
#include "agent.h"
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static char DEVICE[] = "eth0"; /* the kernel's name for the first; nothing renames it */

static int control = -1;

/* In the order of the message; all but the MTU as they are on the link. */
struct settings { uint8_t address[4], gateway[4], mac[6], gateway_mac[6], resolver[4], mtu[2]; };

static int error_of(int result) { return result < 0 ? errno : 0; }

/* ---- CONFIG ---- */

bool network_present(void) { return if_nametoindex(DEVICE) != 0; }

/* This process's namespace is the new one. The files are that namespace's; a kernel without the sixth version has none of those. */
static int settle_namespace(void)
{
    write_at(AT_FDCWD, "/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    write_at(AT_FDCWD, "/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    write_at(AT_FDCWD, "/proc/sys/net/ipv4/ping_group_range", "1 0"); /* no group */
    control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return error_of(control);
}

static int move_device(int net_ns)
{
    struct {
        struct nlmsghdr head;
        struct ifinfomsg link;
        struct rtattr type;
        int value;
    } request = {
        {.nlmsg_len = sizeof request, .nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
        {.ifi_index = (int)if_nametoindex(DEVICE)},
        {.rta_len = RTA_LENGTH(sizeof(int)), .rta_type = IFLA_NET_NS_FD},
        net_ns,
    };
    struct { struct nlmsghdr head; struct nlmsgerr error; char echo[128]; } answer;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0)
        return errno;
    bool answered = send(fd, &request, sizeof request, 0) == sizeof request &&
        recv(fd, &answer, sizeof answer, 0) >= (ssize_t)(sizeof answer.head + sizeof answer.error) && answer.head.nlmsg_type == NLMSG_ERROR;
    close(fd);
    return answered ? -answer.error.error : EPROTO;
}

int network_build(int *net_ns)
{
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    bool is_made = *net_ns >= 0;
    if (own < 0 || (is_made ? setns(*net_ns, CLONE_NEWNET) : unshare(CLONE_NEWNET)) != 0)
        return errno;
    int error = settle_namespace();
    if (error == 0 && !is_made)
        error = error_of(*net_ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    if (setns(own, CLONE_NEWNET) != 0)
        return errno;
    close(own);
    return error != 0 ? error : move_device(*net_ns);
}

/* ---- RENEW ---- */

static void put_address(void *at, const uint8_t *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    memcpy(&in.sin_addr, address, 4);
    memcpy(at, &in, sizeof in);
}

/* What is asked of the device: `request` holds the rest. */
static bool ask(unsigned long what, struct ifreq *request)
{
    memcpy(request->ifr_name, DEVICE, sizeof DEVICE);
    return ioctl(control, what, request) == 0;
}

static bool set_link(const struct settings *s)
{
    struct ifreq mac = {.ifr_hwaddr.sa_family = ARPHRD_ETHER}, mtu = {.ifr_mtu = (int)get_le(s->mtu, 2)};
    memcpy(mac.ifr_hwaddr.sa_data, s->mac, 6);
    return ask(SIOCSIFHWADDR, &mac) && ask(SIOCSIFMTU, &mtu);
}

/* Alone: nothing else is on the link. */
static bool set_address(const struct settings *s)
{
    static const uint8_t all[4] = {255, 255, 255, 255};
    struct ifreq address = {0}, mask = {0};
    put_address(&address.ifr_addr, s->address);
    put_address(&mask.ifr_addr, all);
    return ask(SIOCSIFADDR, &address) && ask(SIOCSIFNETMASK, &mask);
}

static bool bring_up(void)
{
    struct ifreq flags = {0};
    if (!ask(SIOCGIFFLAGS, &flags))
        return false;
    flags.ifr_flags |= IFF_UP;
    return ask(SIOCSIFFLAGS, &flags);
}

static bool add_neighbour(const struct settings *s)
{
    struct arpreq neighbour = {.arp_ha.sa_family = ARPHRD_ETHER, .arp_flags = ATF_COM | ATF_PERM};
    put_address(&neighbour.arp_pa, s->gateway);
    memcpy(neighbour.arp_ha.sa_data, s->gateway_mac, 6);
    memcpy(neighbour.arp_dev, DEVICE, sizeof DEVICE);
    return ioctl(control, SIOCSARP, &neighbour) == 0;
}

static bool add_route(const uint8_t *to, const uint8_t *mask, const uint8_t *by, unsigned short flags)
{
    struct rtentry route = {.rt_flags = RTF_UP | flags, .rt_dev = DEVICE};
    put_address(&route.rt_dst, to);
    put_address(&route.rt_genmask, mask);
    put_address(&route.rt_gateway, by);
    return ioctl(control, SIOCADDRT, &route) == 0;
}

static bool configure(const struct settings *s)
{
    static const uint8_t none[4], all[4] = {255, 255, 255, 255};
    return set_link(s) && set_address(s) && bring_up() && add_neighbour(s) && add_route(s->gateway, all, none, RTF_HOST) &&
        add_route(none, none, s->gateway, RTF_GATEWAY);
}

bool network_renew(struct reader *r, char *resolver, size_t n)
{
    struct settings s;
    if (r->end - r->p != sizeof s)
        fatal("the host sent a malformed RENEW", 0);
    memcpy(&s, r->p, sizeof s);
    r->p = r->end;
    format(resolver, n, "nameserver %d.%d.%d.%d\n", s.resolver[0], s.resolver[1], s.resolver[2], s.resolver[3]);
    if (!in_machine()) /* the link's owner has made it already */
        return true;
    bool done = control >= 0 && configure(&s);
    close(control);
    control = -1;
    return done;
}
