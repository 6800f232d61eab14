/* The read operation: a regular file to stdout, with the user's own rights. A FIFO, a socket or a device is refused before it is opened; should one be put
 * there between the look and the open, the open doesn't block and the second look refuses it. */
#include "agent.h"
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { CHUNK_BYTES = 1 << 20 };

static int refuse_special(const struct stat *s)
{
    return S_ISREG(s->st_mode) ? 0 : S_ISDIR(s->st_mode) ? EISDIR : EOPNOTSUPP;
}

static bool is_own_program(int fd)
{
    struct stat file, own;
    return fstat(fd, &file) == 0 && stat("/proc/self/exe", &own) == 0 && file.st_dev == own.st_dev && file.st_ino == own.st_ino;
}

/* A link of the workload's may lead through /proc/self: there this process is itself, and its program is not the image's. */
int open_without_magic(const char *path, int more)
{
    struct open_how how = {.flags = (uint64_t)(O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | more), .resolve = RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    if (fd >= 0 || !no_such_call() || in_machine())
        return fd;
    fd = open(path, (int)how.flags);
    if (fd < 0 || !is_own_program(fd))
        return fd;
    close(fd);
    errno = ELOOP;
    return -1;
}

static int open_regular(const char *path, struct stat *s)
{
    int error, fd;
    if (stat(path, s) != 0)
        child_fail(ST_OPEN, errno, path);
    if ((error = refuse_special(s)) != 0)
        child_fail(ST_OPEN, error, path);
    if ((fd = open_without_magic(path, 0)) < 0 || fstat(fd, s) != 0)
        child_fail(ST_OPEN, errno, path);
    if ((error = refuse_special(s)) != 0)
        child_fail(ST_OPEN, error, path);
    return fd;
}

static bool no_splice;

/* Page by page of the cache, without a copy; files that can't (some of /proc) are read and written. */
static ssize_t move_some(int fd, uint64_t most)
{
    static char buffer[65536];
    if (!no_splice) {
        ssize_t n = splice(fd, NULL, 1, NULL, most < CHUNK_BYTES ? most : CHUNK_BYTES, 0);
        if (n >= 0 || (errno != EINVAL && errno != EAGAIN)) /* EAGAIN is gVisor's: it looks at the other end's mode */
            return n;
        no_splice = true;
    }
    ssize_t n = read(fd, buffer, most < sizeof buffer ? most : sizeof buffer);
    if (n > 0 && write_all(1, buffer, (size_t)n) != 0)
        return -1;
    return n;
}

_Noreturn void child_read_file(const struct request *request)
{
    struct stat s;
    uint64_t done = 0, most = request->max_bytes;
    int fd = open_regular(request->path, &s);
    no_splice = false; /* a leader's memory has seen others before */
    child_started((uint64_t)s.st_size);
    if ((uint64_t)s.st_size > most)
        child_fail(ST_READ, EFBIG, request->path);
    for (;;) {
        uint64_t room = most - done;
        ssize_t n = move_some(fd, room < CHUNK_BYTES ? room + 1 : CHUNK_BYTES); /* one more than allowed tells a file that has grown */
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            child_fail(ST_READ, errno, request->path);
        if (n == 0)
            _exit(0);
        done += (uint64_t)n;
        if (done > most)
            child_fail(ST_READ, EFBIG, request->path);
    }
}
