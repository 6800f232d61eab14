/* The remove operation, with the user's own rights: one file or link, or a directory with all that is in it. No link is followed but those on the way to
 * the path. */
#include "agent.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MAX_REMOVE_DEPTH = 256 }; /* of directories in each other: a descriptor and two KiB of stack each */

static int remove_one(int dir, const char *name, uint32_t depth, uint64_t *removed)
{
    int error, inner;
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT) {
        ++*removed;
        return 0;
    }
    error = errno; /* of a directory EISDIR, or EPERM as POSIX has it */
    if ((inner = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        return errno == ENOTDIR || errno == ELOOP ? error : errno;
    error = depth == 0 ? ELOOP : remove_below(inner, depth - 1, removed);
    close(inner);
    if (error != 0)
        return error;
    ++*removed;
    return unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
}

/* 0 or errno. Looked at again until nothing is left: what was removed may have hidden what comes after it. */
int remove_below(int dir, uint32_t depth, uint64_t *removed)
{
    _Alignas(struct dirent) char some[2048];
    long n;
    bool found;
    do {
        found = false;
        lseek(dir, 0, SEEK_SET);
        while ((n = syscall(SYS_getdents64, dir, some, sizeof some)) > 0)
            for (long at = 0; at < n;) {
                struct dirent *entry = (struct dirent *)(some + at);
                at += entry->d_reclen;
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                    continue;
                found = true;
                int error = remove_one(dir, entry->d_name, depth, removed);
                if (error != 0)
                    return error;
            }
        if (n < 0)
            return errno;
    } while (found);
    return 0;
}

_Noreturn void child_remove(const struct request *r)
{
    struct stat s;
    uint64_t removed = 0;
    uint8_t answer[8];
    int error = 0;
    if (lstat(r->path, &s) != 0)
        child_fail(ST_OPEN, errno, r->path);
    if (S_ISDIR(s.st_mode) && !(r->flags & REMOVE_TREE))
        child_fail(ST_OPEN, EISDIR, r->path);
    child_started(0);
    error = remove_one(AT_FDCWD, r->path, MAX_REMOVE_DEPTH, &removed);
    put_le(answer, removed, 8);
    if (error == 0)
        error = -write_all(1, answer, sizeof answer);
    if (error != 0)
        child_fail(ST_WRITE, error < 0 ? -error : error, r->path);
    _exit(0);
}
