/* In the machine, the process of the first operation is made before the snapshot: in its leaf, in the container, its descriptors in place, under the filter.
 * What an emulated processor does for the first time is slow, and so a restored clone has less of it to do. It is a child as any other is between its fork and
 * its request. There is one, for the first operation only: nothing of the image has run while it waits, nor does anything run beside it. */
#include "agent.h"
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { READY_MS = 5000, REHEARSAL_MS = 300, PAUSE_MS = 100 };

static struct { pid_t pid; struct slot *slot; struct pairs pipes; } first = {.pid = -1};
static bool rehearsal_due;

static void close_childs_ends(struct pairs *p)
{
    int *ends[] = {&p->in[0], &p->out[1], &p->err[1], &p->status[1]};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        close(*ends[i]), *ends[i] = -1;
}

static void forget(void)
{
    close_pairs(&first.pipes);
    slot_release(first.slot);
    first.pid = -1;
}

static void end(void)
{
    kill(first.pid, SIGKILL);
    waitpid(first.pid, NULL, 0);
    forget();
}

static bool is_ready(int timeout_ms)
{
    struct pollfd status = {.fd = first.pipes.status[0], .events = POLLIN};
    char byte;
    return poll(&status, 1, timeout_ms) == 1 && recv(first.pipes.status[0], &byte, 1, 0) == 1;
}

/* Without it, the first operation is made as the second is. */
static void make(int timeout_ms)
{
    struct op command = {.kind = KIND_EXEC};
    struct pairs *p = &first.pipes;
    bool opened = open_pairs(p, &command, true);
    first.slot = opened ? slot_take() : NULL;
    if (first.slot == NULL) {
        close_pairs(p);
        return;
    }
    first.pid = fork_into(first.slot);
    if (first.pid == 0) {
        struct plumbing plumbing = {null_fd, p->out[1], p->err[1], p->status[1], container.pts, probe_fd, p->in[0]};
        child_wait(&plumbing);
    }
    if (first.pid < 0) {
        forget();
        return;
    }
    close_childs_ends(p);
    if (!is_ready(timeout_ms))
        end();
}

void first_prepare(void) { make(READY_MS); }

/* The second operation would pay for what the first was spared: its way is gone once, without a request, when the first is over and the host lets us rest. */
static void rehearse(void)
{
    rehearsal_due = false;
    make(REHEARSAL_MS);
    if (first_waits())
        end();
}

int first_tick(bool idle)
{
    static int64_t since_ns;
    if (!rehearsal_due)
        return -1;
    if (!idle || since_ns == 0)
        since_ns = now_ns();
    if (!idle)
        return -1;
    int left_ms = PAUSE_MS - (int)((now_ns() - since_ns) / 1000000);
    if (left_ms <= 0)
        rehearse();
    return left_ms > 0 ? left_ms : -1;
}

bool first_waits(void) { return first.pid > 0; }

static bool hand_over(const struct op *op, const uint8_t *body)
{
    uint8_t kind = op->kind;
    struct iovec parts[] = {{&kind, 1}, {(void *)(uintptr_t)body, op->body_n}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return op->body_n <= FIRST_REQUEST_BYTES && sendmsg(first.pipes.status[0], &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)op->body_n + 1;
}

static void keep_only(const struct op *op, uint32_t flags, struct pairs *p)
{
    bool command = op->kind == KIND_EXEC, in = takes_input(op->kind) || (command && (flags & EXEC_STDIN));
    if (op->pty || !in)
        close_pair(p->in);
    if (op->pty || takes_input(op->kind))
        close_pair(p->out);
    if (op->pty || !command)
        close_pair(p->err);
}

bool first_take(struct op *op, uint32_t flags, const uint8_t *body, struct pairs *left)
{
    if (!first_waits())
        return false;
    if (!hand_over(op, body)) {
        end(); /* no image's program may run while it waits */
        return false;
    }
    op->pid = first.pid, op->slot = first.slot;
    *left = first.pipes;
    keep_only(op, flags, left);
    first.pid = -1;
    rehearsal_due = true;
    return true;
}

/* It was made in the container's own namespace, and isn't for what comes now. */
void first_dismiss(void)
{
    if (first_waits())
        end();
}

bool first_ended(pid_t pid)
{
    if (pid != first.pid)
        return false;
    forget();
    return true;
}
