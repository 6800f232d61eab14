/* Operations: from their first frame to their RESULT. */
#include "agent.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>

enum { LOOK_AGAIN_NS = 2000000, TRACERS_NS = 500000000, GONE_MS = 6000, LAST_RESORT_MS = 6000 };

static struct op *ops[MAX_OPS];
static int op_count;

struct op *op_find(uint32_t id)
{
    for (int i = 0; i < op_count; i++)
        if (ops[i]->id == id)
            return ops[i];
    return NULL;
}

bool ops_idle(void) { return op_count == 0; }

bool ops_one_is_alone(void)
{
    for (int i = 0; i < op_count; i++)
        if (ops[i]->alone)
            return true;
    return false;
}

static struct op *op_new(uint32_t id)
{
    if (op_count == MAX_OPS)
        return NULL;
    struct op *op = must_alloc(NULL, sizeof *op);
    *op = (struct op){.id = id, .status_fd = -1, .in_fd = -1, .out_fd = {-1, -1}, .pid = -1, .credit = OUTPUT_WINDOW_BYTES};
    ops[op_count++] = op;
    return op;
}

static void op_free(struct op *op)
{
    int i = 0;
    while (ops[i] != op)
        i++;
    memmove(ops + i, ops + i + 1, sizeof *ops * (size_t)(--op_count - i));
    if (op->status_fd >= 0) {
        watch_del(W_STATUS, op->status_fd);
        close(op->status_fd);
    }
    op->in_unacked = 0, op->in_n = 0; /* no credit is granted to the dead */
    stdin_close(op);
    slot_release(op->slot);
    leader_release(op->leader);
    free(op->body);
    free(op);
}

/* ---- the end ---- */

static void send_result(uint32_t id, const struct op *op, uint8_t outcome, uint16_t stage, int32_t code, const char *detail)
{
    uint8_t p[32];
    p[0] = outcome;
    p[1] = op == NULL ? 0 : op->flags;
    put_le(p + 2, stage, 2);
    put_le(p + 4, (uint32_t)code, 4);
    put_le(p + 8, op == NULL ? 0 : op->dropped[0], 8);
    put_le(p + 16, op == NULL ? 0 : op->dropped[1], 8);
    put_le(p + 24, op == NULL || op->start_ns == 0 ? 0 : (uint64_t)(now_ns() - op->start_ns), 8);
    send_text(F_RESULT, id, p, sizeof p, detail);
}

void op_refuse(struct op *op, int stage, int error, const char *detail)
{
    op->flags |= stage == ST_FORK && error == EAGAIN ? FLAG_PROCESSES : 0;
    send_result(op->id, op, OUT_NOT_STARTED, (uint16_t)stage, error, detail);
    op_free(op);
}

/* A limit that is full now and was not when an operation began, or has not been since, is reported for it, and for every operation beside it. */
void ops_see_limits(void)
{
    uint8_t full = limits_now();
    for (int i = 0; i < op_count; i++) {
        ops[i]->flags |= ops[i]->state == OP_GATHERING ? 0 : full & (uint8_t)~ops[i]->full_before;
        ops[i]->full_before &= full;
    }
}

static void record_limits(struct op *op)
{
    const struct status *f = &op->failure;
    ops_see_limits();
    op->flags |= slot_oom_seen(op->slot) ? FLAG_OOM : 0;
    op->flags |= slot_refused(op->slot) || (f->type == S_FAILED && f->stage == ST_FORK && f->error == EAGAIN) ? FLAG_PROCESSES : 0;
    op->flags |= f->type == S_FAILED && (f->error == ENOSPC || f->error == EDQUOT) ? FLAG_DISK : 0;
}

static void conclude(struct op *op)
{
    const struct status *f = &op->failure;
    record_limits(op);
    if (f->type == S_FAILED) {
        bool file_work = op->kind != KIND_EXEC && f->stage >= ST_OPEN && f->stage <= ST_RENAME;
        send_result(op->id, op, file_work ? OUT_IO : OUT_NOT_STARTED, f->stage, f->error, f->detail);
    } else if (WIFSIGNALED(op->wait_status)) {
        send_result(op->id, op, OUT_SIGNALLED, 0, WTERMSIG(op->wait_status), "");
    } else if (op->kind != KIND_EXEC && WEXITSTATUS(op->wait_status) != 0) {
        send_result(op->id, op, OUT_IO, takes_input(op->kind) ? ST_WRITE : ST_READ, EIO, "");
    } else {
        send_result(op->id, op, OUT_EXITED, 0, WEXITSTATUS(op->wait_status), "");
    }
    op_free(op);
}

/* Everything that was in the pipes when the main process ended has been sent, and the time for stragglers is over or the pipes are. */
static bool outputs_settled(const struct op *op)
{
    if (op->failure.type == S_FAILED && op->state == OP_STARTING)
        return true;
    if (op->out_fd[0] < 0 && op->out_fd[1] < 0)
        return true;
    return op->owed[0] == 0 && op->owed[1] == 0 && now_ns() >= op->drain_ns;
}

static uint64_t waiting_bytes(int fd)
{
    int n = 0;
    return fd >= 0 && ioctl(fd, FIONREAD, &n) == 0 && n > 0 ? (uint64_t)n : 0;
}

/* A tree that was ended is gone, not just going: the host may look. Bounded by the time for stragglers: a process can be stuck in the kernel. */
static bool tree_settled(const struct op *op)
{
    if (!op->killed || now_ns() >= (contained_mode ? op->gone_ns : op->drain_ns))
        return true;
    if (contained_mode)
        return op->leader != NULL ? !op->leader->busy : !leader_strays();
    if (op->slot != NULL)
        return !slot_populated(op->slot);
    return kill(-op->pid, 0) != 0 && errno == ESRCH;
}

/* What was owed can vanish: a terminal can be flushed from its other end, a pipe read by another process that opens it. What isn't there is not waited for. */
static void forgive(struct op *op)
{
    for (int s = 0; s < 2; s++) {
        uint64_t there = op->owed[s] == 0 ? 0 : waiting_bytes(op->out_fd[s]);
        op->owed[s] = op->owed[s] < there ? op->owed[s] : there;
    }
}

void op_settle(struct op *op)
{
    if (op->reaped)
        forgive(op);
    if (!op->reaped || op->status_fd >= 0 || !outputs_settled(op) || !tree_settled(op))
        return;
    for (int s = 0; s < 2; s++) {
        op->dropped[s] += waiting_bytes(op->out_fd[s]); /* what is left there will never be sent: that is said */
        output_close(op, s, true);
    }
    conclude(op);
}

static void record_owed(struct op *op)
{
    bool unwanted = op->killed && (op->flags & FLAG_TREE_KILLED); /* the host has given it up: it may have given up its credit too */
    for (int s = 0; s < 2; s++)
        op->owed[s] = unwanted ? 0 : waiting_bytes(op->out_fd[s]);
}

static void main_ended(struct op *op, int wait_status)
{
    op->reaped = true;
    op->wait_status = wait_status;
    op->drain_ns = now_ns() + (int64_t)DRAIN_MS * 1000000;
    op->gone_ns = now_ns() + (int64_t)GONE_MS * 1000000;
    op->deadline_ns = 0;
    op_status_ready(op); /* what it said last */
}

void op_main_ended(uint32_t id, int wait_status)
{
    struct op *op = op_find(id);
    if (op != NULL && !op->reaped)
        main_ended(op, wait_status);
}

/* Nobody will tell any more how its main process ended: it is ended. */
void op_leader_lost(uint32_t id, bool program_ended)
{
    struct op *op = op_find(id);
    if (op == NULL)
        return;
    op->leader = NULL, op->killed = true;
    op->flags |= program_ended ? FLAG_PROGRAM_ENDED : 0;
    op_main_ended(id, SIGKILL /* as wait would say it */);
}

bool ops_reads(pid_t pid)
{
    for (int i = 0; i < op_count; i++)
        if (ops[i]->pid == pid && ops[i]->kind != KIND_EXEC)
            return true;
    return false;
}

bool ops_reap(void)
{
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG | (contained_mode ? WUNTRACED : 0))) > 0) {
        if (WIFSTOPPED(wait_status)) {
            kill(pid, SIGCONT); /* root of the container can stop a leader, and nobody would hear of its operation's end */
            continue;
        }
        if (pid == container.init_pid)
            fatal("the container's process 1 ended", 0);
        service_reaped(pid);
        if (contained_mode && leader_ended(pid))
            continue;
        if (first_ended(pid))
            continue;
        for (int i = 0; i < op_count; i++)
            if (ops[i]->pid == pid && !ops[i]->reaped) {
                main_ended(ops[i], wait_status);
                break;
            }
    }
    return pid < 0 && errno == ECHILD;
}

/* ---- signals and time ---- */

static void signal_tree(struct op *op, int signo)
{
    if (op->slot != NULL) {
        slot_signal(op->slot, signo);
        return;
    }
    if (op->leader != NULL) {
        (signo == SIGKILL ? leader_kill(op->leader) : leader_signal_tree(op->leader, signo));
        return;
    }
    if (op->pid <= 0)
        return;
    if (!op->reaped && kill(-op->pid, signo) != 0) /* native mode: its process group, which is itself until it has called setsid */
        kill(op->pid, signo);
}

/* A killed process ends for its parent when its tracer has seen it. A tracer that doesn't look ends with all others, before the host gives the cell up. Returns
 * when to look again. */
static int64_t end_tracers(struct op *op, int64_t now)
{
    if (op->gone_ns == 0)
        op->gone_ns = now + (int64_t)LAST_RESORT_MS * 1000000;
    if (now < op->gone_ns)
        return op->gone_ns;
    slots_kill();
    return now + 500000000;
}

int ops_tick(void)
{
    static int64_t next_tracers_ns;
    int64_t now = now_ns(), next = INT64_MAX;
    bool tracers = now >= next_tracers_ns;
    next_tracers_ns = tracers ? now + TRACERS_NS : next_tracers_ns;
    for (int i = op_count - 1; i >= 0; i--) {
        struct op *op = ops[i];
        if (op->deadline_ns != 0 && now >= op->deadline_ns) {
            op->flags |= FLAG_TIMED_OUT;
            op->deadline_ns = 0;
            op->killed = true;
            signal_tree(op, SIGKILL);
        }
        if (op->deadline_ns != 0 && op->deadline_ns < next)
            next = op->deadline_ns;
        if (!op->reaped && op->killed && op->slot != NULL) {
            int64_t later = end_tracers(op, now);
            next = later < next ? later : next;
        }
        if (tracers && !op->reaped && op->pid > 0)
            tree_end_tracer(op);
        if (!op->reaped)
            continue;
        int64_t again = op->killed && now < op->drain_ns ? now + LOOK_AGAIN_NS : op->drain_ns;
        if (again <= now && (op->owed[0] != 0 || op->owed[1] != 0))
            again = now + (int64_t)DRAIN_MS * 1000000;
        if (now < again && again < next)
            next = again;
        op_settle(op);
    }
    if (op_count > 0 && limits_wait() == 0)
        ops_see_limits();
    if (op_count > 0 && now + (int64_t)limits_wait() * 1000000 < next)
        next = now + (int64_t)limits_wait() * 1000000;
    int others = leaders_tick();
    if (others >= 0 && now + (int64_t)others * 1000000 < next)
        next = now + (int64_t)others * 1000000;
    return next == INT64_MAX ? -1 : next <= now ? 0 : (int)((next - now) / 1000000 > 3600000 ? 3600000 : (next - now + 999999) / 1000000);
}

/* Its program runs on, as one that an operation left behind; one that is starting, when it has started. One that has ended is not left: its RESULT comes. */
static void leave_running(struct op *op)
{
    op->left = op->service;
    if (!op->service || op->reaped || op->state != OP_RUNNING)
        return;
    op->flags |= FLAG_RUNS_ON;
    send_result(op->id, op, OUT_EXITED, 0, 0, "");
    op_free(op);
}

static void on_signal(struct op *op, const uint8_t *p, uint32_t n)
{
    if (n != 2 || op->state == OP_GATHERING || p[0] == 0 || p[0] > 64)
        return;
    if (p[1] == 2) {
        leave_running(op);
    } else if (p[1] == 1) {
        op->flags |= FLAG_TREE_KILLED;
        if (p[0] == SIGKILL)
            op->killed = true, op->owed[0] = op->owed[1] = 0;
        signal_tree(op, p[0]);
    } else if (op->leader != NULL) {
        leader_signal_main(op->leader, p[0]);
    } else if (!op->reaped && op->pid > 0) {
        kill(op->pid, p[0]);
    }
}

static void on_resize(struct op *op, const uint8_t *p, uint32_t n)
{
    if (n != 4)
        return;
    op->rows = (uint16_t)get_le(p, 2), op->cols = (uint16_t)get_le(p + 2, 2);
    struct winsize size = {.ws_row = op->rows, .ws_col = op->cols};
    if (op->pty && op->out_fd[0] >= 0)
        ioctl(op->out_fd[0], TIOCSWINSZ, &size);
    if (op->pty && op->leader != NULL && in_sentry) /* gVisor sends no signal; a process without a handler ignores this one */
        leader_signal_tree(op->leader, SIGWINCH);
}

/* ---- frames before the start ---- */

static void append(struct op *op, const uint8_t *data, uint32_t n)
{
    if (op->body_n + n > MAX_REQUEST_BYTES)
        fatal("the host sent a request that is too long", 0);
    if (op->body_n + n > op->body_cap) {
        op->body_cap = op->body_n + n > 2 * op->body_cap ? op->body_n + n : 2 * op->body_cap;
        op->body = must_alloc(op->body, op->body_cap + 4);
    }
    memcpy(op->body + op->body_n, data, n);
    op->body_n += n;
}

/* ---- what the child says ---- */

static void take_master(struct op *op, int master)
{
    fcntl(master, F_SETFL, O_RDWR | O_NONBLOCK);
    op->out_fd[0] = master;
    op->in_fd = fcntl(master, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    if (op->rows != 0 || op->cols != 0) {
        struct winsize size = {.ws_row = op->rows, .ws_col = op->cols};
        ioctl(master, TIOCSWINSZ, &size); /* the host resized before there was a terminal */
    }
}

static void started(struct op *op, uint64_t info)
{
    uint8_t p[8];
    if (op->state == OP_RUNNING)
        return;
    op->state = OP_RUNNING;
    put_le(p, info, 8);
    send_frame(F_STARTED, op->id, p, 8);
    outputs_enable(op);
    if (op->in_fd >= 0)
        stdin_ready(op);
}

/* The other end is held by the child alone until execve closes it: its end without a failure is the start. */
static void status_over(struct op *op)
{
    watch_del(W_STATUS, op->status_fd);
    close(op->status_fd);
    op->status_fd = -1;
    if (op->failure.type != S_FAILED && op->kind == KIND_EXEC)
        started(op, 0);
}

void op_status_ready(struct op *op)
{
    struct status status = {0};
    int passed;
    while (op->status_fd >= 0) {
        ssize_t n = receive_with(op->status_fd, &status, sizeof status, &passed, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n == (ssize_t)sizeof status && status.type == S_TERMINAL && passed >= 0 && op->out_fd[0] < 0)
            take_master(op, passed);
        else if (n == (ssize_t)sizeof status && status.type == S_NAMESPACE && passed >= 0 && op->service && !op->reaped) /* else its /proc is of the dead */
            service_entered(passed);
        else if (passed >= 0)
            close(passed);
        if (n == (ssize_t)sizeof status && status.type == S_STARTED)
            started(op, status.info);
        if (n == (ssize_t)sizeof status && status.type == S_FAILED) {
            op->failure = status;
            op->failure.detail[sizeof status.detail - 1] = 0;
        }
        if (n != (ssize_t)sizeof status)
            status_over(op);
    }
    if (op->reaped) {
        record_owed(op);
        op_settle(op);
    } else if (op->left)
        leave_running(op);
}

/* ---- frames of the host ---- */

static void on_credit(struct op *op, const uint8_t *p, uint32_t n)
{
    if (n != 4)
        return;
    op->credit += get_le(p, 4);
    outputs_enable(op);
}

static uint32_t last;
void ops_begin_again(void) { last = 0; }

static void first_frame(uint8_t type, uint32_t id, uint8_t *p, uint32_t n)
{
    if ((type != F_PART && type != F_START) || id <= last)
        return; /* the host hadn't seen the RESULT yet */
    last = id;
    struct op *op = op_new(id);
    if (op == NULL) {
        if (type == F_START)
            send_result(id, NULL, OUT_NOT_STARTED, ST_FORK, EAGAIN, "too many operations");
        return;
    }
    op_frame(type, id, p, n);
}

static void gathering_frame(struct op *op, uint8_t type, const uint8_t *p, uint32_t n)
{
    if (type == F_PART) {
        append(op, p, n);
    } else if (type == F_START && n > 0) {
        op->kind = p[0];
        append(op, p + 1, n - 1);
        op_start(op);
    } else {
        op_refuse(op, ST_REQUEST, EINVAL, "START expected");
    }
}

void op_frame(uint8_t type, uint32_t id, uint8_t *p, uint32_t n)
{
    struct op *op = op_find(id);
    if (op == NULL)
        first_frame(type, id, p, n);
    else if (op->state == OP_GATHERING)
        gathering_frame(op, type, p, n);
    else if (type == F_DATA && n > 1 && p[0] == 0)
        stdin_data(op, p + 1, n - 1);
    else if (type == F_EOF)
        stdin_eof(op);
    else if (type == F_CREDIT)
        on_credit(op, p, n);
    else if (type == F_SIGNAL)
        on_signal(op, p, n);
    else if (type == F_RESIZE)
        on_resize(op, p, n);
}
