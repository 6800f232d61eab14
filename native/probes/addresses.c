/* Addresses beyond the cell. A packet that a route takes has left, whether or not it is answered: so nothing is waited for.
 *
 * A cell in a range has a route, to the range's router. There an answer shows that something was reached, and a refusal is waited for; whether the router let anything
 * through without an answer is what the host looks at. Datagrams are all sent before anything else is tried, and their answers waited for together: a way through the
 * internet takes longer than each could have for itself. */
#include "probe.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

/* The question for the address of example.com. */
static const unsigned char QUESTION[] = "\x51\x0b\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07" "example\x03" "com\x00\x00\x01\x00";
static const struct icmphdr ECHO4 = {.type = ICMP_ECHO, .checksum = 0xfff7};
static const struct icmp6_hdr ECHO6 = {.icmp6_type = ICMP6_ECHO_REQUEST};

struct message { int type, protocol; const void *bytes; size_t length; };

static const struct message STREAM = {SOCK_STREAM, 0, NULL, 0};
static const struct message DATAGRAM = {SOCK_DGRAM, 0, "hello", 5};
static const struct message DNS = {SOCK_DGRAM, 0, QUESTION, sizeof QUESTION};
static const struct message PING4 = {SOCK_DGRAM, IPPROTO_ICMP, &ECHO4, sizeof ECHO4};
static const struct message PING6 = {SOCK_DGRAM, IPPROTO_ICMPV6, &ECHO6, sizeof ECHO6};
static const struct message RAW4 = {SOCK_RAW, IPPROTO_ICMP, &ECHO4, sizeof ECHO4};
static const struct message RAW6 = {SOCK_RAW, IPPROTO_ICMPV6, &ECHO6, sizeof ECHO6};

union address { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; };

static socklen_t parse(union address *a, const char *text, int port, unsigned scope)
{
    memset(a, 0, sizeof *a);
    if (inet_pton(AF_INET, text, &a->v4.sin_addr) == 1) {
        a->v4.sin_family = AF_INET, a->v4.sin_port = htons((uint16_t)port);
        return sizeof a->v4;
    }
    a->v6.sin6_family = AF_INET6, a->v6.sin6_port = htons((uint16_t)port), a->v6.sin6_scope_id = scope;
    return inet_pton(AF_INET6, text, &a->v6.sin6_addr) == 1 ? sizeof a->v6 : 0;
}

enum { REFUSAL_MS = 300, HURRIED_MS = 100, PATIENT_MS = 1500, RCODE = 3, ANSWERS = 7, MOST_AHEAD = 24 };

bool sending_ahead, in_a_hurry;

/* A datagram that was sent, by a socket that waits for its answer; or why it could not be. */
struct sent { char text[64]; int port; const struct message *m; int s, error; bool opened; long long at_ms; };
static struct sent ahead[MOST_AHEAD];
static size_t sent_ahead;

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static bool connects(int s, const union address *a, socklen_t length)
{
    int error = 0;
    socklen_t size = sizeof error;
    struct pollfd waiting = {.fd = s, .events = POLLOUT};
    if (connect(s, &a->any, length) == 0)
        return true;
    if (errno != EINPROGRESS)
        return false;
    if (poll(&waiting, 1, REFUSAL_MS) != 1)
        error = ETIMEDOUT;
    else
        getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error == 0;
}

/* A name server's "there is no such name" is a refusal; and a raw socket hears refusals, too, which are no echo. */
static bool is_answer(const struct message *m, const unsigned char *answer, ssize_t n)
{
    if (m->bytes == QUESTION)
        return n > ANSWERS && (answer[RCODE] & 15) == 0 && answer[ANSWERS] != 0;
    if (m == &RAW4)
        return n > (answer[0] & 15) * 4 && answer[(answer[0] & 15) * 4] == ICMP_ECHOREPLY;
    return m == &RAW6 ? n > 0 && answer[0] == ICMP6_ECHO_REPLY : n > 0;
}

static void allow_broadcast(int s)
{
    int on = 1;
    setsockopt(s, SOL_SOCKET, SO_BROADCAST, &on, sizeof on);
}

static void send_datagram(struct sent *sent, const char *text, int port, unsigned scope, const struct message *m)
{
    union address a;
    socklen_t length = parse(&a, text, port, scope);
    *sent = (struct sent){.port = port, .m = m, .at_ms = now_ms()};
    snprintf(sent->text, sizeof sent->text, "%s", text);
    sent->s = socket(a.any.sa_family, m->type | SOCK_CLOEXEC | SOCK_NONBLOCK, m->protocol);
    sent->opened = sent->s >= 0;
    if (sent->opened)
        allow_broadcast(sent->s);
    if (!sent->opened || connect(sent->s, &a.any, length) != 0 || send(sent->s, m->bytes, m->length, MSG_NOSIGNAL) < 0)
        sent->error = errno;
}

static struct sent *sent_before(const char *text, int port, const struct message *m)
{
    for (size_t i = 0; i < sent_ahead; i++)
        if (ahead[i].m == m && ahead[i].port == port && strcmp(ahead[i].text, text) == 0)
            return &ahead[i];
    return NULL;
}

/* Until the timeout is over, which began when it was sent. What comes before and is no answer does not end it. */
static bool is_answered(struct sent *sent)
{
    unsigned char answer[512];
    long long until_ms = sent->at_ms + (in_a_hurry ? HURRIED_MS : PATIENT_MS), left_ms;
    struct pollfd waiting = {.fd = sent->s, .events = POLLIN};
    do {
        left_ms = until_ms - now_ms();
        if (poll(&waiting, 1, left_ms > 0 ? (int)left_ms : 0) != 1) {
            errno = ETIMEDOUT;
            return false;
        }
        ssize_t n = recv(sent->s, answer, sizeof answer, 0);
        if (n < 0)
            return false;
        if (is_answer(sent->m, answer, n))
            return true;
    } while (left_ms > 0);
    errno = ENODATA;
    return false;
}

static void await(struct finding *f, const char *text, int port, unsigned scope, const struct message *m)
{
    struct sent now, *sent = sent_before(text, port, m);
    if (sent == NULL)
        send_datagram(sent = &now, text, port, scope, m);
    errno = sent->error;
    if (!sent->opened)
        refused(f, "socket");
    else if (sent->error == 0 && is_answered(sent))
        reached(f, "%s port %d answers", text, port);
    else
        denied(f, "%s: %s", text, errno_name(errno));
    if (sent->opened)
        close(sent->s);
    sent->m = NULL;
}

static bool leaves(int s, const union address *a, socklen_t length, const struct message *m)
{
    allow_broadcast(s);
    if (m->type == SOCK_STREAM && parameter("interface") != NULL)
        return connects(s, a, length);
    if (m->type == SOCK_STREAM)
        return connect(s, &a->any, length) == 0 || errno == EINPROGRESS || errno == ECONNREFUSED;
    return sendto(s, m->bytes, m->length, MSG_NOSIGNAL, &a->any, length) >= 0;
}

static void send_or_connect(struct finding *f, const char *text, int port, unsigned scope, const struct message *m)
{
    union address a;
    socklen_t length = parse(&a, text, port, scope);
    int s = socket(a.any.sa_family, m->type | SOCK_CLOEXEC | SOCK_NONBLOCK, m->protocol);
    if (s < 0)
        refused(f, "socket");
    else if (leaves(s, &a, length, m))
        reached(f, parameter("interface") != NULL ? "%s port %d answers" : "a packet left for %s port %d", text, port);
    else
        denied(f, "%s: %s", text, errno_name(errno));
    if (s >= 0)
        close(s);
}

static void send_scoped(struct finding *f, const char *text, int port, unsigned scope, const struct message *m)
{
    union address a;
    bool is_awaited = m->type != SOCK_STREAM && parameter("interface") != NULL;
    if (parse(&a, text, port, scope) == 0)
        failed(f, "not an address: %.60s", text);
    else if (sending_ahead && is_awaited && sent_ahead < MOST_AHEAD)
        send_datagram(&ahead[sent_ahead++], text, port, scope, m);
    else if (!sending_ahead && is_awaited)
        await(f, text, port, scope, m);
    else if (!sending_ahead)
        send_or_connect(f, text, port, scope, m);
}

static void send_to(struct finding *f, const char *text, int port, const struct message *m) { send_scoped(f, text, port, 0, m); }

#define ATTEMPT(name, text, port, message) static void name(struct finding *f) { send_to(f, text, port, &message); }

ATTEMPT(tcp4, "1.1.1.1", 443, STREAM)
ATTEMPT(tcp6, "2606:4700:4700::1111", 443, STREAM)
ATTEMPT(udp4, "1.1.1.1", 443, DATAGRAM)
ATTEMPT(udp6, "2606:4700:4700::1111", 443, DATAGRAM)
ATTEMPT(ping4, "1.1.1.1", 0, PING4)
ATTEMPT(ping6, "2606:4700:4700::1111", 0, PING6)
ATTEMPT(raw4, "1.1.1.1", 0, RAW4)
ATTEMPT(raw6, "2606:4700:4700::1111", 0, RAW6)
ATTEMPT(metadata, "169.254.169.254", 80, STREAM)
ATTEMPT(metadata6, "fd00:ec2::254", 80, STREAM)
ATTEMPT(metadata_alibaba, "100.100.100.200", 80, STREAM)
ATTEMPT(metadata_azure, "168.63.129.16", 80, STREAM)
ATTEMPT(dns_tls, "1.1.1.1", 853, STREAM)

/* Credentials of tasks and pods, and other clouds' addresses. */
static void metadata_tasks(struct finding *f)
{
    send_to(f, "169.254.170.2", 80, &STREAM);
    send_to(f, "169.254.170.23", 80, &STREAM);
    send_to(f, "169.254.0.23", 80, &STREAM);
    send_to(f, "192.0.0.192", 80, &STREAM);
}

static void neighbours6(struct finding *f)
{
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i != NULL && i->if_index != 0; i++)
        if (strcmp(i->if_name, "lo") != 0)
            send_scoped(f, "fe80::a9fe:a9fe", 80, i->if_index, &STREAM);
    if (all != NULL)
        if_freenameindex(all);
    send_to(f, "ff02::1", 9, &DATAGRAM);
}

/* The host as seen from the usual bridges and user-mode networks. */
static void usual_hosts(struct finding *f)
{
    static const char *const HOSTS[] = {"10.0.2.2", "172.17.0.1", "192.168.122.1", "192.168.65.254", "10.88.0.1", "192.168.1.1", "10.0.0.1", "100.64.0.1"};
    for (size_t i = 0; i < sizeof HOSTS / sizeof *HOSTS; i++)
        send_to(f, HOSTS[i], 80, &STREAM);
}

static void everyone(struct finding *f)
{
    send_to(f, "224.0.0.251", 5353, &DATAGRAM);
    send_to(f, "239.255.255.250", 1900, &DATAGRAM);
    send_to(f, "255.255.255.255", 67, &DATAGRAM);
}

static void dns_public(struct finding *f)
{
    static const char *const SERVERS[] = {"8.8.8.8", "1.1.1.1", "9.9.9.9", "208.67.222.222", "2001:4860:4860::8888"};
    for (size_t i = 0; i < sizeof SERVERS / sizeof *SERVERS; i++)
        send_to(f, SERVERS[i], 53, &DNS);
}

static void dns_public_tcp(struct finding *f)
{
    send_to(f, "8.8.8.8", 53, &STREAM);
    send_to(f, "9.9.9.9", 53, &STREAM);
}

static bool is_loopback(const union address *a)
{
    return a->any.sa_family == AF_INET ? (ntohl(a->v4.sin_addr.s_addr) >> 24) == 127 : IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr) != 0;
}

/* Something on the cell's own loopback address that answers forwards to somewhere. */
static void ask_loopback(struct finding *f, const char *text, const union address *a, socklen_t length)
{
    enum { ANSWER_MS = 150 };
    char answer[512];
    if (sending_ahead)
        return;
    int s = socket(a->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0 || connect(s, &a->any, length) != 0 || send(s, QUESTION, sizeof QUESTION, MSG_NOSIGNAL) < 0) {
        denied(f, "%s: %s", text, errno_name(errno));
    } else {
        struct pollfd waiting = {.fd = s, .events = POLLIN};
        ssize_t n = poll(&waiting, 1, ANSWER_MS) == 1 ? recv(s, answer, sizeof answer, 0) : 0;
        if (n > 0)
            reached(f, "%s answered", text);
        else
            denied(f, "%s: %s", text, n == 0 ? "no answer" : errno_name(errno));
    }
    if (s >= 0)
        close(s);
}

static void ask(struct finding *f, const char *text)
{
    union address a;
    socklen_t length = parse(&a, text, 53, 0);
    if (length == 0)
        denied(f, "not an address: %.40s", text);
    else if (is_loopback(&a))
        ask_loopback(f, text, &a, length);
    else
        send_to(f, text, 53, &DNS);
}

static void dns_configured(struct finding *f)
{
    enum { MOST = 4 };
    char text[4096], *rest = text, server[64];
    int servers = 0;
    read_text("/etc/resolv.conf", text, sizeof text);
    for (char *line; servers < MOST && (line = strsep(&rest, "\n")) != NULL;)
        if (sscanf(line, " nameserver %63[0-9a-fA-F.:]", server) == 1)
            ask(f, server), servers++;
    if (servers == 0)
        ask(f, "127.0.0.1");
    ask(f, "127.0.0.11"); /* Docker's, which forwards what it doesn't know even on an internal network */
    ask(f, "127.0.0.53");
}

const struct probe address_probes[] = {
    {"network.tcp4", tcp4, QUICK},
    {"network.tcp6", tcp6, QUICK},
    {"network.udp4", udp4, QUICK},
    {"network.udp6", udp6, QUICK},
    {"network.ping4", ping4, QUICK},
    {"network.ping6", ping6, QUICK},
    {"network.raw4", raw4, QUICK},
    {"network.raw6", raw6, QUICK},
    {"network.metadata", metadata, QUICK},
    {"network.metadata6", metadata6, QUICK},
    {"network.metadata_alibaba", metadata_alibaba, QUICK},
    {"network.metadata_azure", metadata_azure, QUICK},
    {"network.metadata_tasks", metadata_tasks, QUICK},
    {"network.neighbours6", neighbours6, QUICK},
    {"network.usual_hosts", usual_hosts, QUICK},
    {"network.everyone", everyone, QUICK},
    {"network.dns_configured", dns_configured, 0},
    {"network.dns_public", dns_public, QUICK},
    {"network.dns_public_tcp", dns_public_tcp, QUICK},
    {"network.dns_tls", dns_tls, QUICK},
    {NULL, NULL, 0},
};
