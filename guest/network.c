/* The machine's network device, where it has one. CONFIG puts it, down, into the container's network namespace; RENEW gives it its address and brings it up.
 *
 * With a device that namespace belongs to the machine's user namespace: no capability of the container's holds in it, so the workload, its root included, can
 * neither change the link nor open a raw socket. (Without one it belongs to the container: container.c.) All is done over one netlink socket, opened in it. */
#include "agent.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>

static const char DEVICE[] = "eth0"; /* the kernel's name for the first; nobody renames it */

static struct { int socket, number; } nic = {.socket = -1};

struct settings { uint8_t address[4], gateway[4], mac[6], gateway_mac[6], resolver[4]; uint32_t mtu; };

/* ---- netlink: one request, one answer ---- */

static union { struct nlmsghdr head; char bytes[512]; } message;

static void begin(int type, int flags, const void *fixed, size_t n)
{
    memset(&message, 0, sizeof message);
    message.head.nlmsg_type = (uint16_t)type;
    message.head.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
    message.head.nlmsg_len = (uint32_t)(NLMSG_HDRLEN + n);
    memcpy(NLMSG_DATA(&message.head), fixed, n);
}

static void add(int type, const void *data, size_t n)
{
    size_t at = NLMSG_ALIGN(message.head.nlmsg_len);
    struct rtattr head = {.rta_len = (uint16_t)RTA_LENGTH(n), .rta_type = (uint16_t)type};
    memcpy(message.bytes + at, &head, sizeof head);
    memcpy(message.bytes + at + RTA_LENGTH(0), data, n);
    message.head.nlmsg_len = (uint32_t)(at + RTA_LENGTH(n));
}

static int ask(int fd)
{
    struct { struct nlmsghdr head; struct nlmsgerr error; char echo[512]; } answer;
    if (send(fd, &message, message.head.nlmsg_len, 0) != (ssize_t)message.head.nlmsg_len)
        return errno;
    ssize_t n = recv(fd, &answer, sizeof answer, 0);
    if (n < (ssize_t)(sizeof answer.head + sizeof answer.error) || answer.head.nlmsg_type != NLMSG_ERROR)
        return EPROTO;
    return -answer.error.error;
}

static int open_netlink(void) { return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE); }

/* ---- CONFIG ---- */

bool network_present(void) { return if_nametoindex(DEVICE) != 0; }

/* This process's namespace is the new one. The files are that namespace's. */
static int settle_namespace(void)
{
    write_at(AT_FDCWD, "/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"); /* a kernel without has no such file */
    write_at(AT_FDCWD, "/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    write_at(AT_FDCWD, "/proc/sys/net/ipv4/ping_group_range", "1 0"); /* nobody */
    nic.socket = open_netlink();
    return nic.socket < 0 ? errno : 0;
}

static int move_device(int net_ns)
{
    struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_index = (int)if_nametoindex(DEVICE)};
    int fd = open_netlink();
    if (fd < 0)
        return errno;
    begin(RTM_NEWLINK, 0, &link, sizeof link);
    add(IFLA_NET_NS_FD, &net_ns, sizeof net_ns);
    int error = ask(fd);
    close(fd);
    return error;
}

static int find_device(void)
{
    nic.number = (int)if_nametoindex(DEVICE);
    return nic.number == 0 ? ENODEV : 0;
}

int network_build(int *net_ns)
{
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (own < 0 || unshare(CLONE_NEWNET) != 0)
        return errno;
    int error = settle_namespace();
    if (error == 0 && (*net_ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) < 0)
        error = errno;
    if (setns(own, CLONE_NEWNET) != 0)
        return errno;
    if (error == 0)
        error = move_device(*net_ns);
    if (error == 0 && setns(*net_ns, CLONE_NEWNET) == 0)
        error = find_device();
    if (setns(own, CLONE_NEWNET) != 0)
        return errno;
    close(own);
    return error;
}

/* ---- RENEW ---- */

static int set_link(const struct settings *s)
{
    struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_index = nic.number};
    begin(RTM_NEWLINK, 0, &link, sizeof link);
    add(IFLA_ADDRESS, s->mac, sizeof s->mac);
    add(IFLA_MTU, &s->mtu, sizeof s->mtu);
    return ask(nic.socket);
}

/* Alone: nobody else is on the link. */
static int add_address(const struct settings *s)
{
    struct ifaddrmsg address = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = (uint32_t)nic.number};
    begin(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &address, sizeof address);
    add(IFA_LOCAL, s->address, sizeof s->address);
    add(IFA_ADDRESS, s->address, sizeof s->address);
    return ask(nic.socket);
}

static int add_neighbour(const struct settings *s)
{
    struct ndmsg neighbour = {.ndm_family = AF_INET, .ndm_ifindex = nic.number, .ndm_state = NUD_PERMANENT};
    begin(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &neighbour, sizeof neighbour);
    add(NDA_DST, s->gateway, sizeof s->gateway);
    add(NDA_LLADDR, s->gateway_mac, sizeof s->gateway_mac);
    return ask(nic.socket);
}

static int bring_up(void)
{
    struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_index = nic.number, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    begin(RTM_NEWLINK, 0, &link, sizeof link);
    return ask(nic.socket);
}

static int add_route(const uint8_t *to, const uint8_t *by)
{
    struct rtmsg route = {
        .rtm_family = AF_INET, .rtm_dst_len = to ? 32 : 0, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_STATIC, .rtm_type = RTN_UNICAST,
        .rtm_scope = by ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK, .rtm_flags = by ? RTNH_F_ONLINK : 0,
    };
    begin(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &route, sizeof route);
    if (to)
        add(RTA_DST, to, 4);
    if (by)
        add(RTA_GATEWAY, by, 4);
    add(RTA_OIF, &nic.number, sizeof nic.number);
    return ask(nic.socket);
}

static int configure(const struct settings *s)
{
    int error = set_link(s);
    if (error == 0)
        error = add_neighbour(s);
    if (error == 0)
        error = add_address(s);
    if (error == 0)
        error = bring_up();
    if (error == 0)
        error = add_route(s->gateway, NULL);
    return error != 0 ? error : add_route(NULL, s->gateway);
}

static void take_bytes(struct reader *r, uint8_t *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)take_int(r, 1);
}

bool network_renew(struct reader *r, char *resolver, size_t n)
{
    struct settings s;
    take_bytes(r, s.address, 4);
    take_bytes(r, s.gateway, 4);
    take_bytes(r, s.mac, 6);
    take_bytes(r, s.gateway_mac, 6);
    take_bytes(r, s.resolver, 4);
    s.mtu = (uint32_t)take_int(r, 2);
    if (r->bad || r->p != r->end)
        fatal("the host sent a malformed RENEW", 0);
    format(resolver, n, "nameserver %d.%d.%d.%d\n", s.resolver[0], s.resolver[1], s.resolver[2], s.resolver[3]);
    if (!in_machine()) /* the link is its owner's, who has made it before */
        return true;
    int error = nic.socket < 0 ? ENODEV : configure(&s);
    if (nic.socket >= 0)
        close(nic.socket);
    nic.socket = -1;
    return error == 0;
}
