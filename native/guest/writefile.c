/* The write operation: stdin to a file, with the user's own rights. The new contents are gathered in a file without a name, so a process that is killed on
 * the way leaves nothing; then they get a name beside the target and are renamed over it. What can't be done that way is written in place. */
#include "agent.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>

enum { MAX_LINKS = 40 };

struct target {
    char path[PATH_MAX], dir[PATH_MAX]; /* the last component is not a link */
    bool exists;
    struct stat was;
};

static void dir_of(const char *path, char *dir)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        strcpy(dir, ".");
    else
        format(dir, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* Links in the last component are followed by hand, so that the rename replaces the file and not the link. Each step is the kernel's own lookup. */
static void follow(struct target *t, const char *path)
{
    char link[PATH_MAX];
    if (strlen(path) >= sizeof t->path)
        child_fail(ST_OPEN, ENAMETOOLONG, path);
    strcpy(t->path, path);
    for (int hops = 0; hops <= MAX_LINKS; hops++) {
        dir_of(t->path, t->dir);
        ssize_t n = readlink(t->path, link, sizeof link - 1);
        if (n < 0)
            return;
        link[n] = 0;
        if (link[0] == '/')
            strcpy(t->path, link);
        else if (!format(t->path, sizeof t->path, "%s/%s", t->dir, link))
            child_fail(ST_OPEN, ENAMETOOLONG, path);
    }
    child_fail(ST_OPEN, ELOOP, path);
}

void make_parents(const char *path)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof part)
        child_fail(ST_OPEN, ENAMETOOLONG, path);
    for (size_t i = 1; i < n; i++) {
        if (path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
            child_fail(ST_OPEN, errno, part);
    }
}

/* May this user write the file that is there? Only the kernel knows; asked by opening it, which blocks on nothing and changes nothing. */
static void check_existing(struct target *t)
{
    struct stat s;
    if (lstat(t->path, &t->was) != 0) {
        if (errno != ENOENT)
            child_fail(ST_OPEN, errno, t->path);
        return;
    }
    if (S_ISDIR(t->was.st_mode))
        child_fail(ST_OPEN, EISDIR, t->path);
    if (!S_ISREG(t->was.st_mode))
        child_fail(ST_OPEN, EOPNOTSUPP, t->path);
    int fd = open(t->path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ETXTBSY)
        child_fail(ST_OPEN, errno, t->path);
    if (fd >= 0 && (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)))
        child_fail(ST_OPEN, EOPNOTSUPP, t->path);
    close(fd);
    t->exists = true;
}

static int open_in_place(const struct target *t)
{
    struct stat s;
    int fd = open(t->path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC | O_TRUNC);
    if (fd < 0)
        child_fail(ST_OPEN, errno, t->path);
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        child_fail(ST_OPEN, EOPNOTSUPP, t->path);
    return fd;
}

static void copy_from(int from, int to, const char *path)
{
    static char buffer[256 << 10];
    for (;;) {
        ssize_t n = read(from, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR)
            continue;
        int error = n < 0 ? errno : n > 0 ? -write_all(to, buffer, (size_t)n) : 0;
        if (error != 0)
            child_fail(ST_WRITE, error, path);
        if (n == 0)
            return;
    }
}

/* Owner and mode: as asked; else an existing file keeps its own (its owner only if the user may give files away), a new one has the umask's. */
static void dress(int fd, const struct target *t, const struct request *r)
{
    struct user owner;
    int error;
    mode_t mode = r->mode != MODE_KEEP ? r->mode & 07777 : t->exists ? t->was.st_mode & 07777 : 0644;
    if (r->owner[0] != 0) {
        if ((error = user_find(r->owner, &owner, false)) != 0)
            child_fail(ST_USER, error, r->owner);
        if (fchown(fd, owner.uid, owner.gid) != 0)
            child_fail(ST_CREDENTIALS, errno, r->owner);
    } else if (t->exists && fchown(fd, t->was.st_uid, t->was.st_gid) != 0) {
        errno = 0; /* the file becomes the user's, as the note says */
    }
    if (fchmod(fd, mode) != 0)
        child_fail(ST_WRITE, errno, t->path);
}

/* Without O_TMPFILE a half-written file has a name. The leader, which shares this memory, removes it if this process can't. */
char temporary_name[2 * PATH_MAX];

static void remember(const char *name)
{
    size_t n = 0;
    if (name[0] != '/' && getcwd(temporary_name, PATH_MAX) != NULL)
        n = strlen(temporary_name);
    format(temporary_name + n, sizeof temporary_name - n, "%s%s", n != 0 ? "/" : "", name);
}

static void random_name(const char *dir, char *path)
{
    unsigned long long bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
        child_fail(ST_WRITE, errno, dir);
    if (!format(path, PATH_MAX, "%s/.%llu", dir, bits))
        child_fail(ST_OPEN, ENAMETOOLONG, dir);
}

/* 0, or why there can't be a new file in that directory. `name` stays empty while the file has none. */
static int open_temporary(const struct target *t, char *name, int *fd)
{
    name[0] = 0;
    *fd = open(t->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)
        return errno;
    random_name(t->dir, name);
    remember(name);
    *fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*fd < 0)
        name[0] = 0;
    return *fd < 0 ? errno : 0;
}

static int give_name(int fd, const struct target *t, char *name)
{
    char self[32];
    if (name[0] != 0)
        return 0;
    random_name(t->dir, name);
    format(self, sizeof self, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    name[0] = 0;
    return errno;
}

static void rewrite_in_place(int temporary, const struct target *t)
{
    int fd = open_in_place(t);
    if (lseek(temporary, 0, SEEK_SET) != 0)
        child_fail(ST_WRITE, errno, t->path);
    copy_from(temporary, fd, t->path);
}

/* A rename may be refused where the write is not: another's file in a sticky directory. */
static void replace(int temporary, const struct target *t, char *name)
{
    int error = give_name(temporary, t, name);
    if (error == 0 && rename(name, t->path) == 0) {
        temporary_name[0] = 0;
        _exit(0);
    }
    error = error != 0 ? error : errno;
    if (name[0] != 0)
        unlink(name);
    if (!t->exists || (error != EPERM && error != EACCES))
        child_fail(ST_RENAME, error, t->path);
    rewrite_in_place(temporary, t);
    _exit(0);
}

_Noreturn static void in_place(const struct target *t, const struct request *r)
{
    int fd = open_in_place(t);
    child_started(0);
    copy_from(0, fd, t->path);
    if (r->mode != MODE_KEEP || r->owner[0] != 0)
        dress(fd, t, r);
    _exit(0);
}

_Noreturn static void make_directory(const struct request *r)
{
    struct user owner;
    int error = r->owner[0] != 0 ? user_find(r->owner, &owner, false) : 0;
    if (error != 0)
        child_fail(ST_USER, error, r->owner);
    make_parents(r->path);
    if (mkdir(r->path, 0755) != 0 && errno != EEXIST)
        child_fail(ST_OPEN, errno, r->path);
    int fd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        child_fail(ST_OPEN, errno, r->path);
    if (r->owner[0] != 0 && fchown(fd, owner.uid, owner.gid) != 0)
        child_fail(ST_CREDENTIALS, errno, r->owner);
    if (r->mode != MODE_KEEP && fchmod(fd, r->mode & 07777) != 0)
        child_fail(ST_WRITE, errno, r->path);
    child_started(0);
    _exit(0);
}

_Noreturn void child_write_file(const struct request *request, const struct user *user)
{
    static struct target target;
    char name[PATH_MAX];
    int fd;
    (void)user;
    target.exists = false; /* a leader's memory has seen others before */
    size_t n = strlen(request->path);
    if (n == 0 || request->path[n - 1] == '/')
        child_fail(ST_OPEN, n == 0 ? ENOENT : EISDIR, request->path);
    if (request->flags & WRITE_DIRECTORY)
        make_directory(request);
    make_parents(request->path);
    follow(&target, request->path);
    check_existing(&target);
    int error = open_temporary(&target, name, &fd);
    if (error != 0 && target.exists && (error == EACCES || error == EPERM || error == EROFS))
        in_place(&target, request);
    if (error != 0)
        child_fail(ST_OPEN, error, target.path);
    child_started(0);
    copy_from(0, fd, target.path);
    dress(fd, &target, request);
    replace(fd, &target, name);
    _exit(0);
}
