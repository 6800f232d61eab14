/* Bytes between an operation's pipes and the channel. Back-pressure: output is read only with credit and room in the send queue (or to be dropped); input
 * is kept within the window that was granted, and more is granted as the process takes it. */
#include "agent.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>

enum { CREDIT_STEP = STDIN_WINDOW_BYTES / 4, BIG_PIPE = 1 << 20, DATA_MOST = MAX_PAYLOAD_BYTES - 1 };

static uint8_t scratch[65536];

static enum watch_kind watch_of(int stream) { return stream == 0 ? W_STDOUT : W_STDERR; }

/* ---- input ---- */

static void grant(struct op *op, uint32_t n)
{
    if (op->host_eof) /* the host sends no more, and the byte that ends a terminal's input was never its own */
        return;
    uint8_t more[4];
    op->in_unacked += n;
    if (op->in_unacked < CREDIT_STEP)
        return;
    put_le(more, op->in_unacked, 4);
    send_frame(F_CREDIT, op->id, more, 4);
    op->in_unacked = 0;
}

static void watch_stdin(struct op *op, bool on)
{
    if (on == op->stdin_watched)
        return;
    if (!on)
        watch_del(W_STDIN, op->in_fd);
    op->stdin_watched = on && watch_add(W_STDIN, op->id, op->in_fd, EPOLLOUT) == 0;
}

void stdin_close(struct op *op)
{
    if (op->in_fd >= 0) {
        watch_stdin(op, false);
        close(op->in_fd);
    }
    op->in_fd = -1;
    if (op->in_n > 0)
        grant(op, op->in_n); /* nobody will read it: the host must still be able to send the rest */
    free(op->in_ring);
    op->in_ring = NULL, op->in_n = 0;
}

/* How many bytes the process took; -1: it takes no more. */
static ssize_t feed(struct op *op, const uint8_t *data, uint32_t n)
{
    ssize_t k = write(op->in_fd, data, n);
    if (k >= 0)
        return k;
    return errno == EAGAIN || errno == EINTR ? 0 : -1;
}

static void keep(struct op *op, const uint8_t *data, uint32_t n)
{
    if (n == 0)
        return;
    if (op->in_ring == NULL) {
        op->in_ring = must_alloc(NULL, STDIN_WINDOW_BYTES);
        op->in_start = 0;
        fcntl(op->in_fd, F_SETPIPE_SZ, BIG_PIPE); /* it lags: fewer wake-ups with a larger pipe. A refusal changes nothing */
    }
    if (op->in_n + n > STDIN_WINDOW_BYTES)
        fatal("the host sent more than it was granted", 0);
    uint32_t at = (op->in_start + op->in_n) % STDIN_WINDOW_BYTES, first = STDIN_WINDOW_BYTES - at;
    memcpy(op->in_ring + at, data, n < first ? n : first);
    if (n > first)
        memcpy(op->in_ring, data + first, n - first);
    op->in_n += n;
    watch_stdin(op, true);
}

static void finish_stdin(struct op *op)
{
    static const uint8_t end_of_transmission = 4;
    if (op->stdin_finished)
        return;
    op->stdin_finished = true;
    if (op->pty)
        keep(op, &end_of_transmission, feed(op, &end_of_transmission, 1) == 1 ? 0 : 1);
    else
        stdin_close(op);
}

void stdin_data(struct op *op, const uint8_t *data, uint32_t n)
{
    if (op->host_eof)
        return;
    if (op->in_fd < 0 && op->state == OP_RUNNING) {
        grant(op, n);
        return;
    }
    if (op->in_n == 0 && op->in_fd >= 0) {
        ssize_t k = feed(op, data, n);
        if (k < 0) {
            stdin_close(op);
            grant(op, n);
            return;
        }
        grant(op, (uint32_t)k);
        data += k, n -= (uint32_t)k;
    }
    keep(op, data, n);
}

void stdin_eof(struct op *op)
{
    if (op->host_eof)
        return;
    op->host_eof = true;
    if (op->in_n == 0 && op->in_fd >= 0)
        finish_stdin(op);
}

void stdin_ready(struct op *op)
{
    while (op->in_n > 0) {
        uint32_t run = STDIN_WINDOW_BYTES - op->in_start;
        ssize_t k = feed(op, op->in_ring + op->in_start, op->in_n < run ? op->in_n : run);
        if (k < 0) {
            stdin_close(op);
            return;
        }
        if (k == 0) {
            watch_stdin(op, true);
            return;
        }
        op->in_start = (op->in_start + (uint32_t)k) % STDIN_WINDOW_BYTES;
        op->in_n -= (uint32_t)k;
        grant(op, (uint32_t)k);
    }
    watch_stdin(op, false);
    if (op->host_eof)
        finish_stdin(op);
}

/* ---- output ---- */

static bool past_cap(const struct op *op, int stream) { return op->sent[stream] >= op->cap[stream]; }

void outputs_enable(struct op *op)
{
    for (int s = 0; s < 2; s++) {
        bool want = op->state == OP_RUNNING && op->out_fd[s] >= 0 && (op->credit > 0 || past_cap(op, s));
        if (want && !op->output_on[s])
            watch_add(watch_of(s), op->id, op->out_fd[s], EPOLLIN);
        if (!want && op->output_on[s])
            watch_del(watch_of(s), op->out_fd[s]);
        op->output_on[s] = want;
    }
}

static int drains[MAX_DRAINS], drain_count;

static void drain_forget(int index)
{
    watch_del(W_DRAIN, drains[index]);
    close(drains[index]);
    memmove(drains + index, drains + index + 1, sizeof *drains * (size_t)(--drain_count - index));
}

/* A background child holds the other end: reading on keeps it from SIGPIPE. The oldest gives way when there are too many. */
static void drain_add(int fd)
{
    if (drain_count == MAX_DRAINS)
        drain_forget(0);
    if (watch_add(W_DRAIN, (uint32_t)fd, fd, EPOLLIN) == 0)
        drains[drain_count++] = fd;
    else
        close(fd);
}

/* An event may be older than the descriptor's present use: only what is in the list is read. */
void drain_ready(int fd)
{
    int i = 0;
    while (i < drain_count && drains[i] != fd)
        i++;
    if (i == drain_count)
        return;
    ssize_t n = read(fd, scratch, sizeof scratch);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        drain_forget(i);
}

void output_close(struct op *op, int stream, bool keep_draining)
{
    int fd = op->out_fd[stream];
    if (fd < 0)
        return;
    if (op->output_on[stream])
        watch_del(watch_of(stream), fd);
    op->output_on[stream] = false;
    op->out_fd[stream] = -1;
    if (keep_draining && !op->pty)
        drain_add(fd);
    else
        close(fd);
}

static void paid(struct op *op, int stream, uint64_t n)
{
    op->owed[stream] = op->owed[stream] > n ? op->owed[stream] - n : 0;
}

/* A result of read that isn't bytes: true if the stream is over. */
static bool over(ssize_t n) { return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR); }

static void end_of_output(struct op *op, int stream)
{
    uint8_t which = (uint8_t)(stream + 1);
    output_close(op, stream, false);
    op->owed[stream] = 0;
    send_frame(F_EOF, op->id, &which, 1);
    op_settle(op);
}

static void drop_some(struct op *op, int stream)
{
    ssize_t n = read(op->out_fd[stream], scratch, sizeof scratch);
    if (over(n)) {
        end_of_output(op, stream);
        return;
    }
    if (n <= 0)
        return;
    op->dropped[stream] += (uint64_t)n;
    op->flags |= FLAG_CAPPED;
    paid(op, stream, (uint64_t)n);
}

static void send_some(struct op *op, int stream)
{
    uint64_t most = op->cap[stream] - op->sent[stream];
    most = most < op->credit ? most : op->credit;
    most = most < DATA_MOST ? most : DATA_MOST;
    uint8_t *p = frame_begin(F_DATA, op->id, MAX_PAYLOAD_BYTES);
    ssize_t n = read(op->out_fd[stream], p + 1, most);
    if (n <= 0) {
        frame_end(0xFFFFFFFF);
        if (over(n))
            end_of_output(op, stream);
        return;
    }
    p[0] = (uint8_t)(stream + 1);
    frame_end((uint32_t)n + 1);
    op->sent[stream] += (uint64_t)n;
    op->credit -= (uint64_t)n;
    paid(op, stream, (uint64_t)n);
    outputs_enable(op);
}

void output_ready(struct op *op, int stream)
{
    if (op->out_fd[stream] < 0 || !op->output_on[stream])
        return;
    ops_see_limits(); /* a program that was refused reports it, and may clean up next */
    if (past_cap(op, stream))
        drop_some(op, stream);
    else if (op->credit > 0)
        send_some(op, stream);
}
