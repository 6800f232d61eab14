/* The network: what there is of it, and the listeners that the host keeps open for the sake of hearing nothing. */
#include "probe.h"
#include <arpa/inet.h>
#include <linux/capability.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { WAIT_MS = 200, DATAGRAMS = 5, DNS_PORT = 53 };

/* Kernels put these into every new network namespace; they are down and lead nowhere. */
static bool is_stub(const char *name)
{
    static const char *const STUBS[] = {"lo", "sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0", "teql0"};
    for (size_t i = 0; i < sizeof STUBS / sizeof *STUBS; i++)
        if (strcmp(name, STUBS[i]) == 0)
            return true;
    return false;
}

static bool has_address(const char *name, const char *wanted)
{
    char address[18];
    struct ifreq asked = {0};
    const unsigned char *a = (const unsigned char *)asked.ifr_hwaddr.sa_data;
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return false;
    snprintf(asked.ifr_name, sizeof asked.ifr_name, "%s", name);
    bool got = ioctl(s, SIOCGIFHWADDR, &asked) == 0;
    close(s);
    snprintf(address, sizeof address, "%02x:%02x:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3], a[4], a[5]);
    return got && strcmp(address, wanted) == 0;
}

/* The one port by which the cell hangs on its range's router, if it has one: a name alone is any device's. */
static bool is_port(const char *name)
{
    const char *port = parameter("interface"), *mac = parameter("interface_mac");
    return port != NULL && mac != NULL && strcmp(port, name) == 0 && has_address(name, mac);
}

static bool is_administrator(void)
{
    const char *granted = parameter("capabilities");
    return granted != NULL && strtoull(granted, NULL, 16) & UINT64_C(1) << CAP_NET_ADMIN;
}

/* Where the plan grants CAP_NET_ADMIN, links and routes are what the workload has made of them. What leaves is judged on the host. */
static bool is_the_workloads(struct finding *f)
{
    const char *fresh = parameter("fresh");
    bool changed = is_administrator() && fresh != NULL && strcmp(fresh, "0") == 0;
    if (changed)
        denied(f, "the workload may change them, by the plan");
    return changed;
}

static void interfaces(struct finding *f)
{
    if (is_the_workloads(f))
        return;
    struct if_nameindex *all = if_nameindex();
    if (all == NULL) {
        failed(f, "interfaces: %s", errno_name(errno));
        return;
    }
    for (struct if_nameindex *i = all; i->if_index != 0; i++)
        if (!is_stub(i->if_name) && !is_port(i->if_name))
            reached(f, "interface %s", i->if_name);
    absent(f, "nothing but the loopback interface%s", parameter("interface") != NULL ? " and the range's port" : "");
    if_freenameindex(all);
}

static void routes_of(struct finding *f, const char *path, int name_column)
{
    static char text[64 << 10];
    char *rest = text;
    if (read_text(path, text, sizeof text) < 0)
        refused(f, path);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *field = NULL;
        for (int i = 0; i <= name_column && line != NULL; i++)
            while ((field = strsep(&line, " \t")) != NULL && field[0] == 0)
                ;
        if (field != NULL && field[0] != 0 && !is_stub(field) && !is_port(field) && strcmp(field, "Iface") != 0)
            reached(f, "a route by %.32s", field);
    }
}

static void routes(struct finding *f)
{
    if (is_the_workloads(f))
        return;
    enum { NAME_IN_V4 = 0, NAME_IN_V6 = 9 };
    routes_of(f, "/proc/net/route", NAME_IN_V4);
    routes_of(f, "/proc/net/ipv6_route", NAME_IN_V6);
    absent(f, "no route leads out%s", parameter("interface") != NULL ? " but to the range's router" : "");
}

/* The kernel may give a socket the very port that it connects to, one time in 25,000: then nobody else has that port here. */
static bool is_itself(int s, int port)
{
    struct sockaddr_in6 own = {0};
    socklen_t size = sizeof own;
    return getsockname(s, (struct sockaddr *)&own, &size) == 0 && ntohs(own.sin6_port) == port; /* it is where IPv4 has it, too */
}

static int connected(int type, int family, int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr *address = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    socklen_t length = family == AF_INET ? sizeof v4 : sizeof v6;
    int error = 0, s = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -1;
    if (connect(s, address, length) != 0)
        error = errno;
    if (error == EINPROGRESS) {
        struct pollfd waiting = {.fd = s, .events = POLLOUT};
        socklen_t size = sizeof error;
        error = ETIMEDOUT;
        if (poll(&waiting, 1, WAIT_MS) == 1)
            getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0 && is_itself(s, port))
        error = ECONNREFUSED;
    if (error == 0)
        return s;
    close(s);
    errno = error;
    return -1;
}

static void send_token(struct finding *f, const char *key, int type, int family)
{
    const char *token = needed(f, "token");
    long long port = needed_number(f, key);
    if (token == NULL || port < 0)
        return;
    if (port == 0 || port > UINT16_MAX) {
        absent(f, "the host has none");
        return;
    }
    char where[32];
    snprintf(where, sizeof where, "port %lld", port);
    int s = connected(type, family, (int)port);
    if (s < 0) {
        refused(f, where);
        return;
    }
    ssize_t n = 0;
    int pending = 0;
    /* A closed port of one machine refuses a datagram at once, unless the kernel is too busy to deliver that: it has a second, and each try may be lost. */
    for (int i = 0; i < (type == SOCK_DGRAM ? DATAGRAMS : 1) && pending == 0 && (n = send(s, token, strlen(token), MSG_NOSIGNAL)) > 0; i++) {
        socklen_t size = sizeof pending;
        struct pollfd refusal = {.fd = s, .events = POLLIN};
        if (type == SOCK_DGRAM && poll(&refusal, 1, WAIT_MS) == 1)
            getsockopt(s, SOL_SOCKET, SO_ERROR, &pending, &size);
    }
    if (n > 0 && pending == 0)
        reached(f, "sent to %s", where);
    else
        denied(f, "%s: %s", where, errno_name(pending ? pending : errno));
    close(s);
}

static void host_tcp(struct finding *f) { send_token(f, "tcp", SOCK_STREAM, AF_INET); }
static void host_tcp6(struct finding *f) { send_token(f, "tcp6", SOCK_STREAM, AF_INET6); }
static void host_udp(struct finding *f) { send_token(f, "udp", SOCK_DGRAM, AF_INET); }

static void frames_on(struct finding *f, int s, const struct if_nameindex *i)
{
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)i->if_index};
    if (is_stub(i->if_name))
        return;
    if (bind(s, (struct sockaddr *)&address, sizeof address) == 0)
        reached(f, "frames of %s", i->if_name);
    else
        refused(f, i->if_name);
}

/* Nothing is sent: to be bound to an interface that leads out is enough. */
static void frames(struct finding *f)
{
    if (is_administrator()) {
        denied(f, "granted by the plan");
        return;
    }
    int s = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (s < 0) {
        refused(f, "packet socket");
        return;
    }
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i != NULL && i->if_index != 0; i++)
        frames_on(f, s, i);
    absent(f, "no interface that leads out");
    if (all != NULL)
        if_freenameindex(all);
    close(s);
}

/* A change of nothing on the loopback interface: it needs the right to change everything. */
static void administer(struct finding *f)
{
    struct { struct nlmsghdr head; struct ifinfomsg info; } request = {
        .head = {.nlmsg_len = sizeof request, .nlmsg_type = RTM_NEWLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
        .info = {.ifi_family = AF_UNSPEC, .ifi_index = 1},
    };
    struct { struct nlmsghdr head; struct nlmsgerr error; char rest[256]; } answer = {0};
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (s < 0 || send(s, &request, sizeof request, 0) < 0 || recv(s, &answer, sizeof answer, 0) < (ssize_t)sizeof answer.head) {
        refused(f, "netlink");
    } else if (answer.head.nlmsg_type == NLMSG_ERROR) {
        errno = -answer.error.error;
        if (is_administrator())
            denied(f, "granted by the plan");
        else
            permitted(f, "RTM_NEWLINK", answer.error.error == 0 ? 0 : -1);
    } else {
        denied(f, "netlink answered with type %u", answer.head.nlmsg_type);
    }
    if (s >= 0)
        close(s);
}

/* Bound, not connected: what is at the other end is nobody's business here. */
static void machine_socket(struct finding *f)
{
    struct sockaddr_vm any = {.svm_family = AF_VSOCK, .svm_port = VMADDR_PORT_ANY, .svm_cid = VMADDR_CID_ANY};
    int s = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        refused(f, "AF_VSOCK");
    else if (bind(s, (struct sockaddr *)&any, sizeof any) == 0)
        reached(f, "a socket between machines");
    else
        refused(f, "bind");
    if (s >= 0)
        close(s);
}

const struct probe network_probes[] = {
    {"network.interfaces", interfaces, QUICK},
    {"network.routes", routes, QUICK},
    {"network.host_tcp", host_tcp, QUICK},
    {"network.host_tcp6", host_tcp6, QUICK},
    {"network.host_udp", host_udp, QUICK},
    {"network.frames", frames, QUICK},
    {"network.administer", administer, QUICK},
    {"network.machine_socket", machine_socket, QUICK},
    {NULL, NULL, 0},
};
