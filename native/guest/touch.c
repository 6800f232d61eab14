/* Touch sensor: which process opens or reads a watched file, by fanotify, for a machine of its own. The queue is the kernel's and bounded, no process waits
 * for this one, and what is alike is counted and sent at most four times a second. */
#include "agent.h"
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MAX_WATCHED = 256, MAX_NAMED = 64, MAX_TOUCHED = MAX_NAMED + 2 * MAX_WATCHED + 1, LOST = 3, EVENTS = 64, FLUSH_MS = 250, MAX_READS = 300, STATUS_BYTES = 4096 };

struct watched { dev_t device; ino_t inode; };
struct touched { uint32_t index, count, inner_pid; pid_t pid; uint8_t operation; char name[24]; };

static int queue = -1;
static uint32_t watched_n, touched_n, frames_left;
static struct watched watched[MAX_WATCHED];
static struct touched touched[MAX_TOUCHED];
static int64_t flushed_ns;

static struct { pid_t pid; uint32_t inner_pid; char name[24]; } last; /* what a process was called a moment ago: it may be gone */

static void look_at(pid_t pid)
{
    char path[40], status[STATUS_BYTES];
    if (pid == last.pid)
        return;
    last.pid = pid, last.inner_pid = 0, last.name[0] = 0;
    format(path, sizeof path, "/proc/%d/status", (int)pid);
    if (read_at(AT_FDCWD, path, status, sizeof status) < 0)
        return;
    char *end = strchr(status, '\n'), *numbers = strstr(status, "\nNSpid:");
    if (end != NULL && strncmp(status, "Name:\t", 6) == 0)
        format(last.name, sizeof last.name, "%.*s", (int)(end - status - 6), status + 6);
    if (numbers != NULL && (end = strchr(numbers + 1, '\n')) != NULL) {
        while (end > numbers && end[-1] >= '0' && end[-1] <= '9')
            end--;
        last.inner_pid = (uint32_t)strtoul(end, NULL, 10);
    }
}

static void flush(bool all)
{
    flushed_ns = now_ns();
    while (touched_n > 0 && frames_left > 0 && (all || channel_has_room())) {
        struct touched *t = &touched[--touched_n];
        uint8_t head[14];
        put_le(head, t->index, 4);
        put_le(head + 4, t->operation, 2);
        put_le(head + 6, t->count, 4);
        put_le(head + 10, t->inner_pid, 4);
        send_text(F_TOUCHED, 0, head, sizeof head, t->name);
        frames_left--;
    }
}

static struct touched *find(uint32_t index, uint8_t operation, pid_t pid)
{
    for (struct touched *t = touched; t < touched + touched_n; t++)
        if (t->index == index && t->operation == operation && (pid < 0 || t->pid == pid))
            return t;
    return NULL;
}

/* When all names are taken, what comes is counted with another process's, and neither is named. */
static void count(uint32_t index, uint8_t operation, pid_t pid)
{
    struct touched *t = find(index, operation, pid);
    if (t == NULL && touched_n < MAX_NAMED) {
        look_at(pid);
        t = &touched[touched_n++];
        *t = (struct touched){.index = index, .operation = operation, .pid = pid, .inner_pid = last.inner_pid};
        memcpy(t->name, last.name, sizeof t->name);
    } else if (t == NULL && (t = find(index, operation, -1)) != NULL)
        t->pid = 0, t->inner_pid = 0, t->name[0] = 0;
    else if (t == NULL) { /* the first of this file: there is room for one of each */
        t = &touched[touched_n++];
        *t = (struct touched){.index = index, .operation = operation};
    }
    t->count += t->count < UINT32_MAX;
}

static void one_event(const struct fanotify_event_metadata *event)
{
    struct stat s;
    if (event->fd < 0) { /* the kernel's queue was full */
        count(0, LOST, -1);
        return;
    }
    bool known = fstat(event->fd, &s) == 0 && !ops_reads(event->pid);
    close(event->fd);
    for (uint32_t i = 0; known && i < watched_n; i++)
        if (watched[i].inode == s.st_ino && watched[i].device == s.st_dev) {
            if (event->mask & FAN_OPEN)
                count(i, 1, event->pid);
            if (event->mask & FAN_ACCESS)
                count(i, 2, event->pid);
        }
}

static bool read_queue(void)
{
    struct fanotify_event_metadata events[EVENTS];
    ssize_t n = queue < 0 ? -1 : read(queue, events, sizeof events);
    if (queue >= 0 && n < 0 && errno != EAGAIN && errno != EINTR) { /* the kernel has dropped an event: no descriptor for it, no memory */
        count(0, LOST, -1);
        return true;
    }
    if (n <= 0)
        return false;
    for (struct fanotify_event_metadata *e = events; FAN_EVENT_OK(e, n); e = FAN_EVENT_NEXT(e, n))
        one_event(e);
    last.pid = 0; /* the number may be another's by the next time */
    return true;
}

void touches_ready(void)
{
    if (read_queue() && touches_wait() <= 0)
        flush(false);
}

void touches_drain(void)
{
    for (int i = 0; i < MAX_READS && read_queue(); i++)
        ;
}

void touches_flush(void)
{
    touches_drain();
    flush(true);
}

int touches_wait(void)
{
    if (touched_n == 0 || frames_left == 0)
        return -1;
    int64_t left_ms = (flushed_ns - now_ns()) / 1000000 + FLUSH_MS;
    return left_ms > 0 ? (int)left_ms : 0;
}

int touches_tick(void)
{
    if (touches_wait() == 0)
        flush(false);
    return touches_wait();
}

static int mark(const char *path)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    struct stat s;
    char name[40];
    int error = 0, fd = (int)syscall(SYS_openat2, container.root, path, &how, sizeof how);
    watched[watched_n] = (struct watched){0}; /* not what was there in the watch before */
    if (fd < 0)
        return errno;
    format(name, sizeof name, "/proc/self/fd/%d", fd);
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        error = EINVAL;
    else if (fanotify_mark(queue, FAN_MARK_ADD, FAN_OPEN | FAN_ACCESS, AT_FDCWD, name) != 0)
        error = errno;
    else
        watched[watched_n] = (struct watched){.device = s.st_dev, .inode = s.st_ino};
    close(fd);
    return error;
}

/* Without a word: in a fork of a used machine, whose host has asked for no watch. */
void touches_end(void)
{
    if (queue >= 0) {
        watch_del(W_TOUCH, queue);
        close(queue);
    }
    queue = -1;
    watched_n = touched_n = frames_left = 0;
}

static int start(void)
{
    if (!in_machine())
        return EOPNOTSUPP;
    queue = fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_LARGEFILE);
    return queue < 0 || watch_add(W_TOUCH, 0, queue, EPOLLIN) != 0 ? errno : 0;
}

void touches_watch(struct reader *r)
{
    uint32_t most = (uint32_t)take_int(r, 4), n = (uint32_t)take_int(r, 4), told = 0;
    uint8_t answer[8 + 4 * MAX_WATCHED];
    if (r->bad || n > MAX_WATCHED)
        fatal("the host sent a malformed WATCH", 0);
    touches_flush(); /* they end with the queue: nothing of them is left out because the channel is full */
    touches_end();
    int error = n == 0 ? 0 : start();
    while (error == 0 && told < n) {
        const char *path = take_str(r, NULL);
        if (r->bad)
            fatal("the host sent a malformed WATCH", 0);
        put_le(answer + 8 + 4 * told++, (uint32_t)mark(path), 4);
        watched_n++;
    }
    frames_left = most;
    put_le(answer, (uint32_t)error, 4);
    put_le(answer + 4, told, 4);
    send_frame(F_WATCHED, 0, answer, 8 + 4 * told);
}
