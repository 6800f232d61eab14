/* The put operation: a tree of records on stdin into a directory, with the user's own rights. All of it is first made in a new directory inside of that one,
 * whose name the host gave; only when it is whole is each entry renamed to its place. What is there already is kept unless the host says otherwise. */
#include "agent.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int target_fd, stage_fd;
static bool made_target;
static const struct request *asked;
static uint8_t input[64 << 10];
static size_t input_at, input_n;
static struct user owner;      /* of files, if one is asked for */
static struct timespec newest; /* of all files' times */
static struct stat base;       /* the nearest directory that was there before, and where its path ends in that which is asked for */
static size_t base_n;

_Noreturn static void give_up(int stage, int error, const char *detail)
{
    char kept[200];
    uint64_t removed = 0;
    format(kept, sizeof kept, "%s", detail);
    if (stage_fd >= 0 && remove_below(stage_fd, MAX_PUT_DEPTH, &removed) == 0)
        unlinkat(target_fd, asked->staging, AT_REMOVEDIR);
    if (made_target)
        rmdir(asked->path);
    child_fail(stage, error, kept);
}

/* As many bytes as there are, up to n; 0 at the end. */
static size_t take_some(const uint8_t **data, size_t n)
{
    while (input_at == input_n) {
        ssize_t got = read(0, input, sizeof input);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            give_up(ST_WRITE, errno, "input");
        if (got == 0)
            return 0;
        input_at = 0, input_n = (size_t)got;
    }
    size_t some = n < input_n - input_at ? n : input_n - input_at;
    *data = input + input_at;
    input_at += some;
    return some;
}

/* False: the input ended before the first of them. */
static bool take(void *to, size_t n)
{
    const uint8_t *data;
    for (size_t at = 0, some; at < n; at += some) {
        if ((some = take_some(&data, n - at)) == 0 && at == 0)
            return false;
        if (some == 0)
            give_up(ST_WRITE, EPROTO, "the input ended early");
        memcpy((char *)to + at, data, some);
    }
    return true;
}

/* As the record says, if the host asks for it. */
static int dress(int fd, const uint8_t *head)
{
    struct timespec when[2] = {{.tv_sec = (int64_t)get_le(head + 11, 8), .tv_nsec = (long)get_le(head + 19, 4)}};
    when[1] = when[0];
    if (asked->owner[0] != 0 && fchown(fd, owner.uid, owner.gid) != 0)
        return -1;
    if (when[0].tv_sec > newest.tv_sec)
        newest = when[0];
    return asked->flags & PUT_TIMES ? futimens(fd, when) : 0;
}

static void make_file(int dir, const char *name, const uint8_t *head)
{
    mode_t mode = (mode_t)get_le(head + 1, 2) & 0777;
    uint64_t n = get_le(head + 3, 8);
    const uint8_t *data;
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600), error;
    if (fd < 0)
        give_up(ST_OPEN, errno, name);
    while (n > 0) {
        size_t some = take_some(&data, n < sizeof input ? n : sizeof input);
        if (some == 0)
            give_up(ST_WRITE, EPROTO, name);
        if ((error = write_all(fd, data, some)) != 0)
            give_up(ST_WRITE, error < 0 ? -error : error, name);
        n -= some;
    }
    if (dress(fd, head) != 0 || fchmod(fd, mode) != 0 || close(fd) != 0)
        give_up(ST_WRITE, errno, name);
}

static int make_directory(int dir, const char *name, mode_t mode)
{
    int fd = -1;
    if (mkdirat(dir, name, 0700) != 0 || (fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0 || fchmod(fd, mode) != 0)
        give_up(ST_WRITE, errno, name);
    return fd;
}

static void make_all(void)
{
    uint8_t head[RECORD_BYTES];
    char name[NAME_MAX + 1], link[PATH_MAX];
    int dirs[MAX_PUT_DEPTH + 1] = {stage_fd}, depth = 0;
    while (take(head, sizeof head)) {
        size_t name_n = get_le(head + 23, 2), link_n = get_le(head + 25, 2);
        mode_t mode = (mode_t)get_le(head + 1, 2) & 0777;
        if (name_n > NAME_MAX || link_n >= PATH_MAX || (name_n != 0 && !take(name, name_n)) || (link_n != 0 && !take(link, link_n)))
            give_up(ST_REQUEST, EPROTO, "a record");
        name[name_n] = 0, link[link_n] = 0;
        bool plain = name_n != 0 && strlen(name) == name_n && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
        if (head[0] == R_LEAVE && depth > 0)
            close(dirs[depth--]);
        else if (head[0] == R_FILE && plain)
            make_file(dirs[depth], name, head);
        else if (head[0] == R_ENTER && plain && depth < (int)MAX_PUT_DEPTH)
            dirs[depth + 1] = make_directory(dirs[depth], name, mode), depth++;
        else if (head[0] == R_LINK && plain && strlen(link) == link_n) {
            if (symlinkat(link, dirs[depth], name) != 0)
                give_up(ST_WRITE, errno, name);
        } else
            give_up(ST_REQUEST, EPROTO, "a record");
    }
    if (depth != 0)
        give_up(ST_WRITE, EPROTO, "the input ended early");
}

static int open_inner(int dir, const char *name) { return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

static void bring(int from, int to, bool move);

static void bring_one(int from, int to, const char *name, bool move)
{
    struct stat mine, there;
    if (fstatat(from, name, &mine, AT_SYMLINK_NOFOLLOW) != 0)
        give_up(ST_RENAME, errno, name);
    bool exists = fstatat(to, name, &there, AT_SYMLINK_NOFOLLOW) == 0;
    if (exists && S_ISDIR(mine.st_mode) && S_ISDIR(there.st_mode)) {
        int inner = open_inner(from, name), other = open_inner(to, name);
        if (inner < 0 || other < 0)
            give_up(ST_RENAME, errno, name);
        bring(inner, other, move);
        close(inner), close(other);
        if (move && unlinkat(from, name, AT_REMOVEDIR) != 0)
            give_up(ST_RENAME, errno, name);
        return;
    }
    if (exists && (S_ISDIR(there.st_mode) || S_ISDIR(mine.st_mode) || !(asked->flags & PUT_REPLACE)))
        give_up(ST_RENAME, !(asked->flags & PUT_REPLACE) ? EEXIST : S_ISDIR(there.st_mode) ? EISDIR : ENOTDIR, name);
    if (move && renameat(from, name, to, name) != 0)
        give_up(ST_RENAME, errno, name);
}

/* Every entry of one directory to the other: first a look whether all may come, then the same again, to move them. */
static void bring(int from, int to, bool move)
{
    _Alignas(struct dirent) char some[2048];
    long n;
    bool found;
    do {
        found = false;
        lseek(from, 0, SEEK_SET);
        while ((n = syscall(SYS_getdents64, from, some, sizeof some)) > 0)
            for (long at = 0; at < n;) {
                struct dirent *entry = (struct dirent *)(some + at);
                at += entry->d_reclen;
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                    continue;
                found = true;
                bring_one(from, to, entry->d_name, move);
            }
        if (n < 0)
            give_up(ST_RENAME, errno, "directory");
    } while (found && move);
}

/* Whether the path of n bytes ends with a component; if so, it as a string. */
static bool prefix(char *part, const char *path, size_t n)
{
    return (path[n] == '/' || path[n] == 0) && format(part, PATH_MAX, "%.*s", n == 0 ? 1 : (int)n, path);
}

static void find_base(const char *path)
{
    char part[PATH_MAX];
    for (base_n = strlen(path); base_n > 0; base_n--)
        if (prefix(part, path, base_n) && stat(part, &base) == 0)
            return;
    stat("/", &base);
}

/* Directories that were made are as old as the newest file, all with one mode; the one above them keeps its time, but where it is another user's. */
static void dress_directories(const char *path)
{
    char part[PATH_MAX];
    struct timespec made[2] = {newest, newest}, kept[2] = {base.st_atim, base.st_mtim};
    for (size_t n = strlen(path) + 1; n-- > base_n;) {
        if (!prefix(part, path, n))
            continue;
        if (n > base_n && asked->mode != MODE_KEEP && chmod(part, asked->mode & 0777) != 0)
            give_up(ST_WRITE, errno, part);
        if (utimensat(AT_FDCWD, part, n > base_n ? made : kept, 0) != 0 && errno != EPERM)
            give_up(ST_WRITE, errno, part);
    }
}

_Noreturn void child_put(const struct request *r)
{
    int error;
    asked = r, stage_fd = target_fd = -1, made_target = false, input_at = input_n = 0; /* a leader's memory has seen others before */
    newest = (struct timespec){0};
    if (r->owner[0] != 0 && (error = user_find(r->owner, &owner, false)) != 0)
        child_fail(ST_USER, error, r->owner);
    find_base(r->path);
    make_parents(r->path);
    if (mkdir(r->path, 0777) == 0)
        made_target = true;
    target_fd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target_fd < 0)
        give_up(ST_OPEN, errno, r->path);
    if (made_target && r->mode != MODE_KEEP && fchmod(target_fd, r->mode & 0777) != 0)
        give_up(ST_WRITE, errno, r->path);
    if (mkdirat(target_fd, r->staging, 0700) != 0)
        give_up(ST_OPEN, errno, r->path);
    if ((stage_fd = open_inner(target_fd, r->staging)) < 0)
        give_up(ST_OPEN, errno, r->path);
    child_started(0);
    make_all();
    bring(stage_fd, target_fd, false);
    bring(stage_fd, target_fd, true);
    if (unlinkat(target_fd, r->staging, AT_REMOVEDIR) != 0)
        give_up(ST_RENAME, errno, r->path);
    if (r->flags & PUT_TIMES)
        dress_directories(r->path);
    _exit(0);
}
