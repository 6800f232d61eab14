/* Leaders: contained mode's answer to "which processes are this operation's?". A leader is a fork of this process that is a child subreaper: what its
 * operation starts stays below it. It starts the operation's process by vfork, reports how that ended, and when no process is left; then it is used again,
 * which spares the next operation a fork. Before anything of the image runs below it, it is under the workload's filter. */
#include "agent.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

enum { INLINE_BYTES = 32 << 10, MAX_IDLE = 8, ORDER_FDS = 6, PASS_NS = 2000000, LAST_RESORT_MS = 4000, PATIENCE_MS = 150, CROWD = 24, SPARE_PROCESSES = 32 };
static const char OOM_SCORE[] = "200";
enum { TELL_ENDED = 1, TELL_ALONE = 2 };

struct order { uint32_t signo, n, processes, own; uint8_t kind, large, probe; }; /* a signal for the main process, or a request of n bytes that follow */
/* Its descriptors: in, out, err, status; if `large` the memory that the request is in; if `probe` the probe program. */
struct news { uint32_t what; int32_t wait_status; };

static struct leader *leaders[MAX_OPS * 2];
static int leader_count;
static uint32_t last_id;
static bool strays;
static int64_t strays_since_ns, next_pass_ns;

/* ---- the leader's own side ---- */

static int control_fd = -1;
static pid_t main_pid = -1;
static bool led; /* something was started whose end has not been reported */

static void on_child(int signo) { (void)signo; }

static void tell(uint32_t what, int wait_status)
{
    struct news news = {what, wait_status};
    while (send(control_fd, &news, sizeof news, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* Everything that has ended is taken in; one message for what there is to say. */
static void take_in(void)
{
    int wait_status = 0, how = 0;
    uint32_t what = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0)
        if (pid == main_pid)
            main_pid = -1, what |= TELL_ENDED, how = wait_status;
    if (pid < 0 && led)
        led = false, what |= TELL_ALONE;
    if (what != 0)
        tell(what, how);
}

static ssize_t receive_order(uint8_t *buffer, size_t n, int fds[ORDER_FDS])
{
    union { struct cmsghdr head; char room[CMSG_SPACE(ORDER_FDS * sizeof(int))]; } control = {0};
    struct iovec data = {buffer, n};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    ssize_t got = recvmsg(control_fd, &message, MSG_CMSG_CLOEXEC);
    for (int i = 0; i < ORDER_FDS; i++)
        fds[i] = -1;
    if (got > 0 && message.msg_controllen >= CMSG_LEN(sizeof(int)) && control.head.cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(&control.head), control.head.cmsg_len - CMSG_LEN(0));
    return got;
}

static bool read_whole(int fd, uint8_t *to, uint32_t n)
{
    for (uint32_t at = 0; at < n;) {
        ssize_t k = pread(fd, to + at, n - at, at);
        if (k <= 0)
            return false;
        at += (uint32_t)k;
    }
    return true;
}

/* The child has this process's memory until its execve, and this process waits for that: what the child leaves in memory is freed here. */
static pid_t launch(uint8_t kind, struct request *request, const struct plumbing *pipes)
{
    uint32_t envc = request->envc;
    temporary_name[0] = 0;
    pid_t pid = vfork();
    if (pid == 0)
        child_main(kind, request, pipes);
    if (temporary_name[0] != 0)
        unlink(temporary_name); /* it was killed on the way. The name is random: no other file can be meant by it */
    for (; kind == KIND_EXEC && envc < request->envc; envc++)
        free(request->env[envc]);
    return pid;
}

static void start_main(const struct order *order, uint8_t *body, const int fds[ORDER_FDS])
{
    struct request request = {0};
    if (!request_parse(order->kind, body, order->n, &request))
        _exit(75); /* it was parsed before it was sent */
    struct plumbing pipes = {fds[0], fds[1], fds[2], fds[3], request.flags & EXEC_PTY && order->kind == KIND_EXEC ? container.pts : -1,
                             order->probe ? fds[4 + order->large] : -1, -1};
    container.processes = order->processes, container.own_processes = order->own;
    led = true;
    main_pid = launch(order->kind, &request, &pipes);
    if (main_pid < 0)
        child_report(fds[3], ST_FORK, errno);
    request_free(&request);
}

static void obey(void)
{
    static uint8_t buffer[sizeof(struct order) + INLINE_BYTES + 8];
    struct order order;
    int fds[ORDER_FDS];
    ssize_t got = receive_order(buffer, sizeof buffer - 8, fds);
    if (got < (ssize_t)sizeof order)
        _exit(0);
    memcpy(&order, buffer, sizeof order);
    uint8_t *large = !order.large ? NULL : must_alloc(NULL, order.n + 8), *body = large == NULL ? buffer + sizeof order : large;
    if (large != NULL && !read_whole(fds[4], large, order.n))
        _exit(75);
    if (order.kind != 0)
        start_main(&order, body, fds);
    else if (main_pid > 0)
        kill(main_pid, (int)order.signo);
    free(large);
    for (int i = 0; i < ORDER_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* What isn't this process's business any more: the channel, other operations' pipes, the loop. */
static void close_all_but(int *keep, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && keep[k] < keep[k - 1]; k--) {
            int swap = keep[k];
            keep[k] = keep[k - 1], keep[k - 1] = swap;
        }
    int from = FIRST_FREE_FD;
    for (int i = 0; i < n; i++) {
        if (keep[i] < from)
            continue;
        if (keep[i] > from)
            close_between(from, keep[i] - 1);
        from = keep[i] + 1;
    }
    close_from(from);
}

/* What a leader is, and a service's program that has none. */
int leader_confine(void)
{
    write_at(AT_FDCWD, "/proc/self/oom_score_adj", OOM_SCORE); /* out of memory, the workload goes first: this is its container's group too */
    int error = confine_without_mounts();
    return error != 0 ? error : confine_early();
}

_Noreturn static void lead(int control)
{
    int keep[] = {control, container.pts, null_fd};
    channel_drop();
    if (service_join() != 0)
        _exit(76);
    control_fd = control;
    close_all_but(keep, 3);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 || setsid() < 0 || leader_confine() != 0)
        _exit(76);
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, on_child);
    for (;;) {
        struct pollfd order = {.fd = control_fd, .events = POLLIN};
        if (ppoll(&order, 1, NULL, &none) > 0) /* the only moment at which a child's end interrupts */
            obey();
        take_in();
    }
}

/* ---- the agent's side ---- */

static struct leader *leader_make(void)
{
    int pair[2];
    errno = EAGAIN;
    if (leader_count == sizeof leaders / sizeof *leaders || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return NULL;
    int error = service_make_room();
    pid_t pid = error != 0 ? -1 : fork();
    if (pid == 0)
        lead(pair[1]);
    error = error == 0 && pid < 0 ? errno : error;
    close(pair[1]);
    if (error != 0) {
        close(pair[0]);
        errno = error;
        return NULL;
    }
    struct leader *leader = must_alloc(NULL, sizeof *leader);
    *leader = (struct leader){.pid = pid, .fd = pair[0], .id = ++last_id, .era = service_era};
    watch_add(W_LEADER, leader->id, leader->fd, EPOLLIN);
    leaders[leader_count++] = leader;
    return leader;
}

uint32_t leaders_count(void) { return (uint32_t)leader_count; }

void leaders_prepare(void)
{
    if (contained_mode && leader_count == 0)
        leader_make();
}

static struct leader *leader_find(uint32_t id)
{
    for (int i = 0; i < leader_count; i++)
        if (leaders[i]->id == id)
            return leaders[i];
    return NULL;
}

struct leader *leader_take(void)
{
    struct leader *leader = NULL;
    for (int i = 0; i < leader_count && leader == NULL; i++)
        if (leaders[i]->op_id == 0 && !leaders[i]->busy && leaders[i]->era == service_era)
            leader = leaders[i];
    return leader != NULL ? leader : leader_make();
}

static void leader_forget(struct leader *leader)
{
    int i = 0;
    while (leaders[i] != leader)
        i++;
    leaders[i] = leaders[--leader_count];
    watch_del(W_LEADER, leader->fd);
    close(leader->fd);
    free(leader);
}

static int idle_leaders(void)
{
    int n = 0;
    for (int i = 0; i < leader_count; i++)
        n += leaders[i]->op_id == 0 && !leaders[i]->busy;
    return n;
}

/* An idle leader ends when its other end is closed. */
static void keep_or_dismiss(struct leader *leader)
{
    leader->killing = false;
    if (leader->op_id == 0 && (idle_leaders() > MAX_IDLE || leader->era != service_era))
        leader_forget(leader);
}

static void dismiss_idle(bool all)
{
    for (int i = leader_count; i-- > 0;)
        if (leaders[i]->op_id == 0 && !leaders[i]->busy && (all || leaders[i]->era != service_era))
            leader_forget(leaders[i]);
}

/* Those that wait in another namespace than the one in which things start now. */
void leaders_dismiss_old(void) { dismiss_idle(false); }

void leader_release(struct leader *leader)
{
    if (leader == NULL)
        return;
    leader->op_id = 0;
    if (!leader->busy)
        keep_or_dismiss(leader);
}

static int in_memory(const uint8_t *body, uint32_t n)
{
    int fd = (int)syscall(SYS_memfd_create, "m", MFD_CLOEXEC);
    if (fd >= 0 && write_all(fd, body, n) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool send_order(int to, struct order *order, const uint8_t *body, uint32_t n, const int *fds, int fd_count)
{
    union { struct cmsghdr head; char room[CMSG_SPACE(ORDER_FDS * sizeof(int))]; } control = {0};
    struct iovec data[2] = {{order, sizeof *order}, {(void *)(uintptr_t)body, n}};
    struct msghdr message = {.msg_iov = data, .msg_iovlen = 2};
    if (fd_count > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        control.head.cmsg_level = SOL_SOCKET, control.head.cmsg_type = SCM_RIGHTS, control.head.cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        memcpy(CMSG_DATA(&control.head), fds, (size_t)fd_count * sizeof(int));
    }
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

/* Every operation has room that those before it don't have, so that what one of them left running doesn't shut out the next. */
static uint32_t process_limit(void)
{
    bool others = service_runs();
    for (int i = 0; i < leader_count; i++)
        others |= leaders[i]->busy;
    return container.processes == 0 ? 0 : container.processes + (others ? SPARE_PROCESSES : 0);
}

int leader_run(struct leader *leader, uint32_t op_id, uint8_t kind, const uint8_t *body, uint32_t n, const struct plumbing *pipes)
{
    struct order order = {.n = n, .kind = kind, .processes = process_limit(), .own = (uint32_t)leader_count + 1};
    int fds[ORDER_FDS] = {pipes->in, pipes->out, pipes->err, pipes->status, -1, -1};
    bool large = n > INLINE_BYTES;
    if (large && (fds[4] = in_memory(body, n)) < 0)
        return errno;
    order.large = large, order.probe = pipes->probe >= 0;
    fds[4 + large] = order.probe ? pipes->probe : fds[4 + large];
    bool sent = send_order(leader->fd, &order, body, large ? 0 : n, fds, 4 + large + order.probe);
    int error = sent ? 0 : errno;
    if (large)
        close(fds[4]);
    if (sent)
        leader->op_id = op_id, leader->busy = true;
    return error;
}

void leader_signal_main(struct leader *leader, int signo)
{
    struct order order = {.signo = (uint32_t)signo};
    send_order(leader->fd, &order, NULL, 0, NULL, 0);
}

void leader_ready(uint32_t id)
{
    struct leader *leader = leader_find(id);
    struct news news;
    while (leader != NULL && recv(leader->fd, &news, sizeof news, MSG_DONTWAIT) == sizeof news) {
        uint32_t op_id = leader->op_id;
        if (news.what & TELL_ALONE)
            leader->busy = false;
        if (op_id != 0) /* alone without an end: it could not even be started */
            op_main_ended(op_id, news.what & TELL_ENDED ? news.wait_status : NEVER_STARTED);
        leader = leader_find(id);
        if (leader != NULL && news.what & TELL_ALONE)
            keep_or_dismiss(leader);
        if (op_id != 0 && op_find(op_id) != NULL)
            op_settle(op_find(op_id));
        leader = leader_find(id);
    }
}

/* Root of the container can kill a leader. Then what was below it can't be told apart, except that it is below no other leader: all of that is ended. */
bool leader_ended(pid_t pid)
{
    for (int i = 0; i < leader_count; i++) {
        if (leaders[i]->pid != pid)
            continue;
        uint32_t id = leaders[i]->id, op_id = leaders[i]->op_id, era = leaders[i]->era;
        leader_ready(id); /* its last message, after which it may be forgotten */
        if (leader_find(id) != NULL)
            leader_forget(leader_find(id));
        bool program_ended = op_id != 0 && service_give_up(era);
        strays = true, strays_since_ns = now_ns(), next_pass_ns = 0;
        dismiss_idle(true); /* the same kill(-1) may have hit them, and one that has yet to die of it would take the next operation with it */
        if (op_id != 0)
            op_leader_lost(op_id, program_ended);
        return true;
    }
    return false;
}

static bool is_kept(pid_t pid)
{
    if (service_keeps(pid))
        return true;
    for (int i = 0; i < leader_count; i++)
        if (leaders[i]->pid == pid)
            return true;
    return false;
}

bool leader_strays(void) { return strays; }

void leader_no_strays(void) { strays = false; }

/* A tree that forks as fast as it is searched is stopped first, with the whole container, since that is one call. In gVisor many processes alone are
 * enough to starve this one. */
static int kill_below(pid_t top, int64_t since_ns, tree_filter *leave_out)
{
    struct sysinfo info = {0};
    bool crowd = in_sentry && sysinfo(&info) == 0 && info.procs > CROWD;
    bool hold = getpid() == 1 && (crowd || now_ns() - since_ns > (int64_t)PATIENCE_MS * 1000000);
    if (hold)
        kill(-1, SIGSTOP);
    int reached = tree_signal(container.proc, top, SIGKILL, leave_out);
    if (hold)
        kill(-1, SIGCONT);
    next_pass_ns = now_ns() + PASS_NS;
    return reached;
}

void leader_kill(struct leader *leader)
{
    if (!leader->killing)
        leader->killing = true, leader->since_ns = now_ns();
    kill_below(leader->pid, leader->since_ns, NULL);
}

void leader_signal_tree(struct leader *leader, int signo) { tree_signal(container.proc, leader->pid, signo, NULL); }

/* Processes below this one and below no leader: their leader is gone. */
static void end_strays(void)
{
    if (kill_below(getpid(), strays_since_ns, is_kept) == 0)
        strays = false;
}

/* Repeated until none is left; if some are left even then, everything is killed, which the kernel does in one call. */
int leaders_tick(void)
{
    int64_t now = now_ns();
    bool some = strays, resort = strays && now - strays_since_ns > (int64_t)LAST_RESORT_MS * 1000000;
    for (int i = 0; i < leader_count; i++) {
        some |= leaders[i]->killing && leaders[i]->busy;
        resort |= leaders[i]->killing && leaders[i]->busy && now - leaders[i]->since_ns > (int64_t)LAST_RESORT_MS * 1000000;
    }
    if (!some)
        return -1;
    if (now >= next_pass_ns) {
        for (int i = 0; i < leader_count; i++)
            if (leaders[i]->killing && leaders[i]->busy)
                leader_kill(leaders[i]);
        if (strays)
            end_strays();
        if (resort && getpid() == 1)
            kill(-1, SIGKILL);
        next_pass_ns = now_ns() + PASS_NS;
    }
    return 2;
}
