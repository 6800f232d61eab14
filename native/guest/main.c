/* Entry and event loop. As /init: the guest's process 1. As `agent --serve FD`: the same protocol on an inherited stream socket, without a container. */
#include "agent.h"
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#ifndef BUILD_ID
#define BUILD_ID "unknown"
#endif

enum { SWEEP_MS = 500, MAX_EVENTS = 64 };

int null_fd = -1, probe_fd = -1;
static int channel_fd = -1, signal_fd = -1;

/* ---- connection frames ---- */

static void on_hello(const uint8_t *p, uint32_t n)
{
    uint8_t answer[26];
    if (n != 18 || get_le(p, 2) != PROTOCOL_VERSION)
        fatal("the host speaks another version of the protocol", 0);
    ops_begin_again();
    touches_end();
    put_le(answer, PROTOCOL_VERSION, 2);
    memcpy(answer + 2, p + 2, 16);
    put_le(answer + 18, MAX_OPS, 4);
    put_le(answer + 22, STDIN_WINDOW_BYTES, 4);
    send_frame(F_WELCOME, 0, answer, sizeof answer);
}

static void on_config(uint8_t *p, uint32_t n)
{
    struct reader r = {p, p + n, false};
    struct config c = {.memory_max_bytes = take_int(&r, 8), .disk_bytes = take_int(&r, 8), .disk_inodes = take_int(&r, 8)};
    c.processes = (uint32_t)take_int(&r, 4);
    uint64_t capabilities = take_int(&r, 8);
    uint64_t flags = take_int(&r, 4);
    c.hostname = take_str(&r, NULL);
    uint32_t count = (uint32_t)take_int(&r, 4);
    const char *stage = "";
    uint8_t head[4];
    if (r.bad)
        fatal("the host sent a malformed CONFIG", 0);
    container.processes = c.processes;
    container.owns_network = capabilities & UINT64_C(1) << CAP_NET_ADMIN;
    int error = container.built ? EALREADY : !in_machine() ? 0 : container_build(&c, &stage);
    if (error == 0) { /* before anything below is made, which inherits both */
        confine_grant(capabilities);
        seccomp_for_debuggers(flags & 1);
        confine_setuid(flags & 2);
    }
    if (error == 0 && in_machine()) {
        container_warm(&r, count);
        renew_prepare(c.hostname);
        users_remember(container.root);
        if (error == 0)
            first_prepare();
    }
    put_le(head, (uint32_t)error, 4);
    send_text(F_CONFIGURED, 0, head, 4, in_machine() ? stage : "the container is not mine");
}

/* Around a snapshot: nothing of the workload runs, and no operation is underway. The clock stood still meanwhile. */
static void on_freeze(struct reader *r)
{
    uint8_t answer[4];
    uint64_t on = take_int(r, 1), realtime_ns = take_int(r, 8);
    if (r->bad || on > 1)
        fatal("the host sent an unknown frame", 0);
    int error = !in_machine() || !renewed ? EOPNOTSUPP : on && !ops_idle() ? EBUSY : 0;
    if (error == 0 && !on)
        set_clock(realtime_ns);
    if (error == 0)
        error = cgroups_freeze(on);
    if (error == 0 && on) /* else a fork would send it before it is asked anything */
        touches_flush();
    put_le(answer, (uint32_t)error, 4);
    send_frame(F_FROZEN, 0, answer, sizeof answer);
}

static void connection_frame(uint8_t type, uint8_t *p, uint32_t n)
{
    struct reader r = {p, p + n, false};
    if (type == F_HELLO)
        on_hello(p, n);
    else if (type == F_CONFIG)
        on_config(p, n);
    else if (type == F_RENEW)
        renew(&r);
    else if (type == F_FREEZE)
        on_freeze(&r);
    else if (type == F_WATCH)
        touches_watch(&r);
    else if (type == F_PING)
        send_frame(F_PONG, 0, p, n);
    else
        fatal("the host sent an unknown frame", 0);
}

static void on_frame(uint8_t type, uint32_t op, uint8_t *payload, uint32_t n)
{
    if (op == 0)
        connection_frame(type, payload, n);
    else
        op_frame(type, op, payload, n);
}

/* ---- the loop ---- */

static void on_channel(void)
{
    if (channel_read(on_frame))
        return;
    if (!in_machine())
        _exit(0);
    usleep(10 * 1000); /* a port whose host is gone is always "readable": the machine is about to end, don't spin meanwhile */
}

static void on_signals(void)
{
    struct signalfd_siginfo info[16];
    while (read(signal_fd, info, sizeof info) == sizeof info)
        ;
    touches_drain();
    ops_reap();
}

static void dispatch(const struct epoll_event *e);

static void on_outputs(void)
{
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(epoll_outputs, events, MAX_EVENTS, 0);
    for (int i = 0; i < n && channel_has_room(); i++)
        dispatch(&events[i]);
}

static void on_op(enum watch_kind kind, struct op *op)
{
    if (op == NULL)
        return; /* ended earlier in this round */
    if (kind == W_STATUS)
        op_status_ready(op);
    else if (kind == W_STDIN)
        stdin_ready(op);
    else
        output_ready(op, kind == W_STDOUT ? 0 : 1);
}

static void dispatch(const struct epoll_event *e)
{
    enum watch_kind kind = (enum watch_kind)(e->data.u64 >> 32);
    uint32_t id = (uint32_t)e->data.u64;
    if (kind == W_CHANNEL) {
        if (e->events & ~(uint32_t)EPOLLOUT)
            on_channel();
    } else if (kind == W_SIGNAL)
        on_signals();
    else if (kind == W_OUTPUTS)
        on_outputs();
    else if (kind == W_TOUCH)
        touches_ready();
    else if (kind == W_LEADER)
        leader_ready(id);
    else if (kind == W_DRAIN)
        drain_ready((int)id);
    else
        on_op(kind, op_find(id));
}

/* What the loop waits for: room in the channel only when there is something to send; the processes' output only when the send queue has room. */
static void adjust_watches(void)
{
    static bool waiting_out, outputs_on;
    bool out = channel_has_output(), room = channel_has_room();
    if (out != waiting_out) {
        struct epoll_event e = {.events = EPOLLIN | (out ? (uint32_t)EPOLLOUT : 0), .data.u64 = (uint64_t)W_CHANNEL << 32};
        epoll_ctl(epoll_main, EPOLL_CTL_MOD, channel_fd, &e);
        waiting_out = out;
    }
    if (room != outputs_on) {
        if (room)
            watch_add(W_OUTPUTS, 0, epoll_outputs, EPOLLIN);
        else
            watch_del(W_OUTPUTS, epoll_outputs);
        outputs_on = room;
    }
}

/* Milliseconds to wait at most. Leaves whose processes outlived their operation are looked at now and then, to be used again. */
static int sweep_and_tick(void)
{
    static int64_t next_sweep;
    static bool lingering;
    int wait = ops_tick();
    if (now_ns() >= next_sweep) {
        lingering = slots_sweep();
        next_sweep = now_ns() + (int64_t)SWEEP_MS * 1000000;
    }
    if (in_machine() && !ops_idle())
        starve_look();
    int touches = touches_tick();
    if (touches >= 0 && (wait < 0 || wait > touches))
        wait = touches;
    int rehearsal = first_tick(ops_idle() && !cgroups_frozen());
    if (rehearsal >= 0 && (wait < 0 || wait > rehearsal))
        wait = rehearsal;
    return lingering && (wait < 0 || wait > SWEEP_MS) ? SWEEP_MS : wait;
}

_Noreturn static void serve(void)
{
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        int wait = sweep_and_tick();
        channel_flush();
        adjust_watches();
        int n = epoll_wait(epoll_main, events, MAX_EVENTS, wait);
        for (int i = 0; i < n; i++)
            dispatch(&events[i]);
    }
}

static void prepare_loop(void)
{
    sigset_t child;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    signal_fd = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    watches_open();
    if (signal_fd < 0 || epoll_main < 0 || epoll_outputs < 0 || watch_add(W_SIGNAL, 0, signal_fd, EPOLLIN) != 0 ||
        watch_add(W_CHANNEL, 0, channel_fd, EPOLLIN) != 0)
        fatal("event loop", errno);
}

/* Descriptors 0…5 are what a child has; this process's own begin above them, so that a child can put its own in place without stepping on others. */
static void reserve_low_fds(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd < FIRST_FREE_FD)
        fd = fcntl(fd, F_DUPFD_CLOEXEC, fd + 1);
    null_fd = fd;
    if (fd < 0)
        fatal("/dev/null", errno);
}

static void say_ready(void)
{
    uint8_t version[2];
    put_le(version, PROTOCOL_VERSION, 2);
    send_text(F_READY, 0, version, 2, BUILD_ID);
}

/* Its own need, and the most that a child, without the right to raise it, can pass on. */
static void raise_files(void)
{
    struct rlimit files = {MAX_FILES, MAX_FILES};
    setrlimit(RLIMIT_NOFILE, &files);
}

/* A descriptor of this process's own, above the places of a child's; in its old place is /dev/null, so that no later one comes there. */
static int out_of_the_way(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    if (fd >= FIRST_FREE_FD)
        close(fd);
    else if (high >= 0)
        dup3(null_fd, fd, O_CLOEXEC);
    return high;
}

static void take_channel(int fd)
{
    channel_fd = out_of_the_way(fd);
    if (channel_fd < 0 || fcntl(channel_fd, F_SETFL, O_RDWR | O_NONBLOCK) != 0)
        fatal("channel", errno);
    channel_open(channel_fd);
}

static void serve_machine(void)
{
    raise_files();
    int port = boot();
    service_prepare();
    reserve_low_fds();
    if (probe_fd >= 0)
        probe_fd = out_of_the_way(probe_fd);
    take_channel(port);
}

static void serve_natively(int argc, char **argv)
{
    native_mode = true;
    reserve_low_fds();
    if (argc == 5 && (probe_fd = open(argv[4], O_RDONLY | O_CLOEXEC)) < 0)
        fatal(argv[4], errno);
    take_channel(atoi(argv[2]));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void serve_contained(int argc, char **argv)
{
    contained_mode = true;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    reserve_low_fds();
    take_channel(atoi(argv[2]));
    if (setresgid(-1, -1, ID_COUNT - 1) != 0) /* then nobody's ids are this process's: no right over it comes from being the same user */
        fatal("ids", errno);
    hide(argc, argv);
    service_prepare();
    confine_prepare();
    container.root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    container.proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    container.pts = open("/dev/pts", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW); /* nothing of the image has run: these are the runtime's own */
    for (int fd = 1; fd <= 2; fd++) /* the runtime's own pipes: under gVisor root opens through /proc/PID/fd what another process has open */
        dup3(null_fd, fd, O_CLOEXEC);
}

int main(int argc, char **argv)
{
    bool native = (argc == 3 || (argc == 5 && strcmp(argv[3], "--probe") == 0)) && strcmp(argv[1], "--serve") == 0;
    bool contained = argc > 2 && strcmp(argv[1], "--contained") == 0;
    if (!native && getpid() != 1) {
        static const char usage[] = "usage: init --serve FD [--probe PATH]\n";
        return write_all(2, usage, sizeof usage - 1) == 0 ? 2 : 3;
    }
    prctl(PR_SET_DUMPABLE, 0);
    if (native)
        serve_natively(argc, argv);
    else if (contained)
        serve_contained(argc, argv);
    else
        serve_machine();
    prepare_loop();
    say_ready();
    serve();
}
