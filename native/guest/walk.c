/* The walk operation: what a path is, what a directory holds, or a whole tree with its contents, as records on stdout, with the user's own rights. Only
 * the path itself may be followed through links, never through a magic one; below it nothing is followed, and nothing but a regular file is opened to be
 * read. */
#include "agent.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static char buffer[64 << 10]; /* of output that was not written yet */
static size_t buffered;
static uint64_t entries_left, bytes_left;
static uint32_t flags;

static void flush(void)
{
    int error = write_all(1, buffer, buffered);
    if (error != 0)
        child_fail(ST_READ, error < 0 ? -error : error, "output");
    buffered = 0;
}

static void put(const void *data, size_t n)
{
    if (buffered + n > sizeof buffer)
        flush();
    memcpy(buffer + buffered, data, n); /* a record and a name are smaller than the buffer */
    buffered += n;
}

static void put_record(uint8_t kind, const struct stat *s, const char *name, const char *link, size_t link_n)
{
    uint8_t head[RECORD_BYTES];
    size_t name_n = strlen(name);
    if (kind != R_LEAVE && entries_left-- == 0)
        child_fail(ST_READ, E2BIG, name);
    head[0] = kind;
    put_le(head + 1, s->st_mode & 07777, 2);
    put_le(head + 3, S_ISREG(s->st_mode) ? (uint64_t)s->st_size : 0, 8);
    put_le(head + 11, (uint64_t)s->st_mtim.tv_sec, 8);
    put_le(head + 19, (uint64_t)s->st_mtim.tv_nsec, 4);
    put_le(head + 23, name_n, 2);
    put_le(head + 25, link_n, 2);
    put(head, sizeof head);
    put(name, name_n);
    put(link, link_n);
}

static void put_contents(int fd, uint64_t n, const char *name)
{
    flush();
    while (n > 0) {
        ssize_t got = read(fd, buffer, n < sizeof buffer ? n : sizeof buffer);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            child_fail(ST_READ, got < 0 ? errno : ESTALE, name);
        buffered = (size_t)got;
        flush();
        n -= (uint64_t)got;
    }
}

static void walk_file(int fd, const char *name)
{
    struct stat s;
    if (fd < 0 || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        child_fail(ST_OPEN, fd < 0 || S_ISREG(s.st_mode) ? errno : ESTALE, name);
    if ((uint64_t)s.st_size > bytes_left)
        child_fail(ST_READ, EFBIG, name);
    bytes_left -= (uint64_t)s.st_size;
    put_record(R_FILE, &s, name, "", 0);
    put_contents(fd, (uint64_t)s.st_size, name);
    close(fd);
}

static void walk_directory(int fd, uint32_t depth);

static void walk_entry(int dir, const char *name, const struct stat *s, uint32_t depth)
{
    char link[PATH_MAX];
    if (S_ISLNK(s->st_mode)) {
        ssize_t n = readlinkat(dir, name, link, sizeof link);
        if (n < 0)
            child_fail(ST_READ, errno, name);
        put_record(R_LINK, s, name, link, (size_t)n);
    } else if (S_ISREG(s->st_mode) && (flags & WALK_CONTENTS)) {
        walk_file(openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), name);
    } else if (S_ISDIR(s->st_mode) && (flags & WALK_CONTENTS)) {
        int inner = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner < 0)
            child_fail(ST_OPEN, errno, name);
        if (depth == 0)
            child_fail(ST_READ, ELOOP, name);
        put_record(R_ENTER, s, name, "", 0);
        walk_directory(inner, depth - 1);
        put_record(R_LEAVE, s, "", "", 0);
    } else {
        put_record(S_ISREG(s->st_mode) ? R_FILE : S_ISDIR(s->st_mode) ? R_DIRECTORY : R_OTHER, s, name, "", 0);
    }
}

static void walk_directory(int fd, uint32_t depth)
{
    _Alignas(struct dirent) char some[2048]; /* one for each level: the whole name of one entry fits seven times */
    long n;
    while ((n = syscall(SYS_getdents64, fd, some, sizeof some)) > 0)
        for (long at = 0; at < n;) {
            struct dirent *entry = (struct dirent *)(some + at);
            struct stat s;
            at += entry->d_reclen;
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            if (fstatat(fd, entry->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0)
                walk_entry(fd, entry->d_name, &s, depth);
            else if (errno != ENOENT) /* it has gone meanwhile */
                child_fail(ST_READ, errno, entry->d_name);
        }
    if (n < 0)
        child_fail(ST_READ, errno, "directory");
    close(fd);
}

_Noreturn void child_walk(const struct request *r)
{
    struct stat s;
    buffered = 0, flags = r->flags, entries_left = r->max_entries, bytes_left = r->max_bytes; /* a leader's memory has seen others before */
    if (fstatat(AT_FDCWD, r->path, &s, flags & WALK_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW) != 0)
        child_fail(ST_OPEN, errno, r->path);
    bool inside = r->depth > 0 && S_ISDIR(s.st_mode), contents = (flags & WALK_CONTENTS) != 0;
    if (r->depth > 0 && !inside && (!contents || !S_ISREG(s.st_mode)))
        child_fail(ST_OPEN, contents ? EOPNOTSUPP : ENOTDIR, r->path);
    int fd = inside || contents ? open_without_magic(r->path, inside ? O_DIRECTORY : 0) : -1;
    if ((inside || contents) && fd < 0)
        child_fail(ST_OPEN, errno, r->path);
    child_started(0);
    if (inside) {
        put_record(R_ENTER, &s, "", "", 0);
        walk_directory(fd, r->depth - 1);
        put_record(R_LEAVE, &s, "", "", 0);
    } else if (contents) {
        walk_file(fd, "");
    } else {
        char link[PATH_MAX];
        ssize_t n = S_ISLNK(s.st_mode) ? readlink(r->path, link, sizeof link) : 0;
        if (n < 0)
            child_fail(ST_READ, errno, r->path);
        uint8_t kind = S_ISREG(s.st_mode) ? R_FILE : S_ISDIR(s.st_mode) ? R_DIRECTORY : S_ISLNK(s.st_mode) ? R_LINK : R_OTHER;
        put_record(kind, &s, "", link, (size_t)n);
    }
    flush();
    _exit(0);
}
