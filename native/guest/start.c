/* An operation's start: its pipes, where its process is forked, and which ends of the pipes stay here. */
#include "agent.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

pid_t fork_into(struct slot *slot)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    if (slot == NULL)
        return fork();
    args.flags = CLONE_INTO_CGROUP;
    args.cgroup = (uint64_t)slot->fd;
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]), pair[i] = -1;
}

void close_pairs(struct pairs *p)
{
    close_pair(p->in), close_pair(p->out), close_pair(p->err), close_pair(p->status);
}

bool open_pairs(struct pairs *p, const struct op *op, bool in)
{
    *p = (struct pairs){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, p->status) != 0)
        return false;
    if (fcntl(p->status[1], F_SETFL, 0) != 0)
        return false;
    if (op->pty || op->service)
        return true;
    if ((in && pipe2(p->in, O_CLOEXEC) != 0) || (!takes_input(op->kind) && pipe2(p->out, O_CLOEXEC) != 0))
        return false;
    return op->kind != KIND_EXEC || pipe2(p->err, O_CLOEXEC) == 0;
}

static int take_end(int pair[2], int mine, bool large)
{
    int fd = pair[mine];
    pair[mine] = -1;
    if (fd < 0)
        return -1;
    fcntl(fd, F_SETFL, O_NONBLOCK | (mine == 1 ? O_WRONLY : 0));
    if (large)
        fcntl(fd, F_SETPIPE_SZ, 1 << 20);
    return fd;
}

static void take_ends(struct op *op, struct pairs *p)
{
    bool file = op->kind != KIND_EXEC;
    op->in_fd = take_end(p->in, 1, file);
    op->out_fd[0] = take_end(p->out, 0, file);
    op->out_fd[1] = take_end(p->err, 0, false);
    op->status_fd = p->status[0], p->status[0] = -1;
    watch_add(W_STATUS, op->id, op->status_fd, EPOLLIN);
}

static int end_or_null(int fd) { return fd >= 0 ? fd : null_fd; }

static int spawn_led(struct op *op, bool probe, const uint8_t *body, const struct pairs *p)
{
    struct plumbing plumbing = {end_or_null(p->in[0]), end_or_null(p->out[1]), end_or_null(p->err[1]), p->status[1], -1, probe ? borrow_probe() : -1, -1};
    struct leader *leader = leader_take();
    int error = leader == NULL ? errno : leader_run(leader, op->id, op->kind, body, op->body_n, &plumbing);
    if (error == 0)
        op->leader = leader;
    if (plumbing.probe >= 0)
        close(plumbing.probe);
    return error;
}

/* 0 or errno. */
static int make_process(struct op *op, struct request *request, const uint8_t *body, const struct pairs *p)
{
    bool probe = op->kind == KIND_EXEC && (request->flags & EXEC_PROBE);
    if (contained_mode && !op->service)
        return spawn_led(op, probe, body, p);
    op->pid = fork_into(op->slot);
    if (op->pid == 0) {
        struct plumbing plumbing = {end_or_null(p->in[0]), end_or_null(p->out[1]), end_or_null(p->err[1]), p->status[1], op->pty ? container.pts : -1, probe ? probe_fd : -1, -1};
        child_main(op->kind, request, &plumbing);
    }
    return op->pid < 0 ? errno : 0;
}

static bool in_dying_namespace(int error) { return error == ENOMEM || error == EPIPE || error == ECONNRESET; }

/* 0 or errno. */
static int spawn(struct op *op, struct request *request, bool in, const uint8_t *body)
{
    struct pairs p;
    if (op->service)
        first_dismiss();
    else if (first_take(op, request->flags, body, &p)) {
        take_ends(op, &p);
        close_pairs(&p);
        return 0;
    }
    bool opened = open_pairs(&p, op, in);
    int error = opened ? 0 : errno;
    if (error == 0 && in_machine() && (op->slot = slot_take()) == NULL)
        error = EAGAIN;
    bool begun = error == 0 && op->service;
    if (begun)
        error = service_begin(), begun = error == 0;
    if (error == 0)
        error = make_process(op, request, body, &p);
    if (!op->service && in_dying_namespace(error) && service_is_over())
        error = make_process(op, request, body, &p);
    if (begun)
        service_forked(op->pid);
    if (error == 0)
        take_ends(op, &p);
    close_pairs(&p);
    return error;
}

void op_start(struct op *op)
{
    struct request request = {0};
    if (!renewed) {
        op_refuse(op, ST_REQUEST, EACCES, "not renewed");
        return;
    }
    if (ops_one_is_alone()) {
        op_refuse(op, ST_REQUEST, EAGAIN, "another operation runs alone");
        return;
    }
    service_look();
    op->start_ns = now_ns();
    op->full_before = limits_now();
    uint8_t *as_sent = contained_mode || first_waits() ? memcpy(must_alloc(NULL, op->body_n + 1), op->body, op->body_n) : NULL; /* parsing moves its strings */
    if (!request_parse(op->kind, op->body, op->body_n, &request)) {
        request_free(&request);
        free(as_sent);
        op_refuse(op, ST_REQUEST, EINVAL, "malformed request");
        return;
    }
    op->pty = op->kind == KIND_EXEC && (request.flags & EXEC_PTY);
    op->service = op->kind == KIND_EXEC && (request.flags & EXEC_SERVICE);
    op->alone = op->kind == KIND_EXEC && (request.flags & EXEC_ALONE);
    op->cap[0] = request.cap[0], op->cap[1] = request.cap[1];
    if (request.timeout_ms != 0 && request.timeout_ms < (uint64_t)INT64_MAX / 2000000)
        op->deadline_ns = op->start_ns + (int64_t)request.timeout_ms * 1000000;
    bool in = takes_input(op->kind) || (op->kind == KIND_EXEC && (request.flags & EXEC_STDIN));
    op->state = OP_STARTING;
    op->host_eof = !in;
    bool may = !op->alone || end_workload();
    int error = may ? spawn(op, &request, in, as_sent) : EBUSY;
    request_free(&request);
    free(as_sent);
    free(op->body);
    op->body = NULL, op->body_n = op->body_cap = 0;
    if (error != 0)
        op_refuse(op, ST_FORK, error, may ? "" : "what else runs there could not be ended");
}
