/* Small things every file needs. */
#include "agent.h"
#include <sys/socket.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <time.h>

bool native_mode, contained_mode;

int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static char *decimal(uint64_t value, char *end)
{
    *end = 0;
    do
        *--end = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    return end;
}

/* As snprintf, for %s %.*s %d %u %llu only: the C library's brings floating point with it, a tenth of this program. True: it fitted. */
bool format(char *out, size_t n, const char *pattern, ...)
{
    char digits[24];
    size_t at = 0;
    va_list args;
    va_start(args, pattern);
    for (const char *p = pattern; *p != 0; p++) {
        size_t most = SIZE_MAX;
        const char *text = digits;
        if (*p != '%') {
            if (at < n)
                out[at] = *p;
            at++;
            continue;
        }
        if (*++p == '.')
            most = (size_t)va_arg(args, int), p += 2;
        if (*p == 's')
            text = va_arg(args, const char *);
        else if (*p == 'd')
            text = decimal((uint64_t)va_arg(args, int), digits + 23); /* never negative here */
        else if (*p == 'u')
            text = decimal(va_arg(args, unsigned), digits + 23);
        else
            text = decimal(va_arg(args, unsigned long long), digits + 23), p += 2;
        for (size_t i = 0; i < most && text[i] != 0; i++, at++)
            if (at < n)
                out[at] = text[i];
    }
    va_end(args);
    out[at < n ? at : n - 1] = 0;
    return at < n;
}

void put_le(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

uint64_t get_le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

int write_all(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno != EINTR)
            return -errno;
        if (k > 0)
            p += k, n -= (size_t)k;
    }
    return 0;
}

int write_at(int dir, const char *path, const char *text)
{
    int fd = openat(dir, path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    int error = write_all(fd, text, strlen(text));
    close(fd);
    return error;
}

ssize_t read_at(int dir, const char *path, char *out, size_t n)
{
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t got = read(fd, out, n - 1);
    int error = errno;
    close(fd);
    if (got < 0)
        return -error;
    out[got] = 0;
    return got;
}

uint64_t number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at == NULL ? 0 : strtoull(at + strlen(key), NULL, 10);
}

/* Not ~0U for the last one: gVisor takes that for -1, refuses, and everything would stay open. */
void close_between(int first, int last)
{
    if (syscall(SYS_close_range, first, last, 0) != 0)
        _exit(127);
}

void close_from(int first) { close_between(first, INT32_MAX); }

void console_line(const char *text)
{
    int fd = !in_machine() ? dup(2) : open("/dev/console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    write_all(fd, text, strlen(text));
    write_all(fd, "\n", 1);
    close(fd);
}

/* The machine can't go on in an unknown state: say why, on both ways out, and end. A wrong guess here costs a cell, never the host. */
_Noreturn void fatal(const char *what, int error)
{
    static bool again;
    char line[256];
    if (error != 0)
        format(line, sizeof line, "init: %s: error %d", what, error);
    else
        format(line, sizeof line, "init: %s", what);
    console_line(line);
    if (!again) {
        again = true;
        send_text(F_FATAL, 0, NULL, 0, line);
        channel_flush();
    }
    if (!in_machine())
        _exit(70);
    usleep(200 * 1000); /* the host's end of the ring is emptied by another thread */
    if (getpid() == 1)
        reboot(RB_AUTOBOOT); /* the machine is started so that a reset ends it; were that not so, init's exit panics, and a panic resets */
    _exit(70);
}

void *must_alloc(void *old, size_t n)
{
    void *p = realloc(old, n);
    if (p == NULL)
        fatal("out of memory", 0);
    return p;
}

uint64_t take_int(struct reader *r, int bytes)
{
    if (r->bad || r->end - r->p < bytes) {
        r->bad = true;
        return 0;
    }
    r->p += bytes;
    return get_le(r->p - bytes, bytes);
}

char *take_str(struct reader *r, uint32_t *length)
{
    uint32_t n = (uint32_t)take_int(r, 4);
    if (r->bad || (uint64_t)(r->end - r->p) < n) {
        r->bad = true;
        return NULL;
    }
    char *text = (char *)r->p - 4;
    memmove(text, r->p, n);
    text[n] = 0;
    r->p += n;
    if (length != NULL)
        *length = n;
    else if (memchr(text, 0, n) != NULL)
        r->bad = true;
    return text;
}

/* A message with a descriptor beside it. */
bool send_with(int to, const void *data, size_t n, int fd, int how)
{
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec part = {(void *)(uintptr_t)data, n};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    control.head.cmsg_level = SOL_SOCKET, control.head.cmsg_type = SCM_RIGHTS, control.head.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    return sendmsg(to, &message, MSG_NOSIGNAL | how) == (ssize_t)n;
}

/* `fd`: -1 when none came. */
ssize_t receive_with(int from, void *data, size_t n, int *fd, int how)
{
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec part = {data, n};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    ssize_t got = recvmsg(from, &message, MSG_CMSG_CLOEXEC | how);
    *fd = -1;
    if (got > 0 && message.msg_controllen >= CMSG_LEN(sizeof(int)) && control.head.cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(&control.head), sizeof *fd);
    return got;
}
