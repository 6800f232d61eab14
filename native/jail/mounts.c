/* What is mounted in the new root. Host paths are opened first, as detached mounts, while we may still read them; the mounts are made later, as the user that
 * the program will be, so that what they hold is owned by ids that exist in the jail. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { OPEN_TREE_COPY = 1, MOVE_FROM_EMPTY_PATH = 4, CALL_OPEN_TREE = 428, CALL_MOVE_MOUNT = 429, CALL_MOUNT_SETATTR = 442 };

struct mount_attributes {
    uint64_t set, clear, propagation, userns_fd;
};

/* mount_setattr only adds: flags that the host's mount has and locks (noatime, nodev) stay as they are. */
void bind_with(const char *source, const char *target, uint64_t attributes) {
    must(mount(source, target, NULL, MS_BIND, NULL), source);
    struct mount_attributes set = {.set = attributes};
    must((int)syscall(CALL_MOUNT_SETATTR, AT_FDCWD, target, 0, &set, sizeof set), target);
}

int clone_mount(const char *source, uint64_t attributes, int userns_fd) {
    int fd = (int)syscall(CALL_OPEN_TREE, AT_FDCWD, source, OPEN_TREE_COPY | O_CLOEXEC);
    must(fd, source);
    struct mount_attributes set = {.set = attributes, .userns_fd = userns_fd < 0 ? 0 : (uint64_t)userns_fd};
    must((int)syscall(CALL_MOUNT_SETATTR, fd, "", AT_EMPTY_PATH, &set, sizeof set), source);
    return fd;
}

void place_mount(int fd, const char *target) {
    must((int)syscall(CALL_MOVE_MOUNT, fd, "", AT_FDCWD, target, MOVE_FROM_EMPTY_PATH), target);
    close(fd);
}

static uint64_t attributes_of(const struct mount_setting *m) {
    switch (m->kind) {
    case MOUNT_TREE: return ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV;
    case MOUNT_DEVICE: return ATTR_RDONLY | ATTR_NOSUID | ATTR_NOEXEC;
    default: return ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC | ATTR_NOSYMFOLLOW | (m->writable ? 0 : ATTR_RDONLY);
    }
}

static void check_type(const struct mount_setting *m) {
    struct stat found;
    must(fstat(m->fd, &found), m->source);
    errno = m->kind == MOUNT_TREE ? ENOTDIR : ENODEV;
    if (m->kind == MOUNT_TREE && !S_ISDIR(found.st_mode)) fail(m->source);
    if (m->kind == MOUNT_DEVICE && !S_ISCHR(found.st_mode)) fail(m->source);
    errno = EINVAL;
    if (m->kind == MOUNT_BIND && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode)) fail(m->source);
}

void open_sources(struct options *o) {
    for (int i = 0; i < o->mount_count; i++) {
        struct mount_setting *m = &o->mounts[i];
        if (!m->source) continue;
        m->fd = clone_mount(m->source, attributes_of(m), -1);
        check_type(m);
    }
}

/* A path of the new root, seen from it: it is the working directory, and what lies above it may be closed to us by now. */
static const char *inside(const char *path, char *buffer, size_t size) {
    if (snprintf(buffer, size, ".%s", path) < (int)size) return buffer;
    errno = ENAMETOOLONG;
    fail(path);
}

/* The root is read-only: this can only make what lies on a tmpfs of ours. */
static void make_mount_point(const char *path, bool directory) {
    if (access(path, F_OK) == 0) return;
    must(directory ? mkdir(path, 0755) : mknod(path, S_IFREG | 0644, 0), path);
}

static bool is_directory(int fd) {
    struct stat found;
    must(fstat(fd, &found), "source");
    return S_ISDIR(found.st_mode);
}

static void mount_tmpfs(const struct mount_setting *m, const char *target) {
    char data[128];
    snprintf(data, sizeof data, "size=%llu,nr_inodes=%llu,mode=%o", m->size_bytes, m->inodes, m->mode);
    must(mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV | (m->executable ? 0 : MS_NOEXEC), data), m->target);
}

/* A tmpfs keeps user attributes since Linux 6.6. Without them an overlay works until a directory is made where one was deleted: better now than then. */
static void check_user_attributes(const char *directory) {
    if (setxattr(directory, "user.a", "", 0, 0)) fail("the file system of an overlay's upper directory keeps no user attributes (a tmpfs does since Linux 6.6)");
    must(removexattr(directory, "user.a"), directory);
}

static void make_upper(const char *lower, const char *upper) {
    struct stat below;
    must(stat(lower, &below), lower);
    must(mkdir(upper, 0700), upper);
    check_user_attributes(upper);
    must(chown(upper, 1, 1), upper);
    must(chmod(upper, below.st_mode & 07777), upper);
}

/* `userxattr`: an overlay's own marks are user attributes, since trusted ones are the host root's. It rules out redirect_dir: renaming a directory of the image
 * is a copy (EXDEV), as in other engines. */
static void mount_overlay(const struct mount_setting *m, const char *target) {
    char lower[1024], upper[1024], work[1024], data[3200];
    inside(m->lower, lower, sizeof lower);
    inside(m->upper, upper, sizeof upper);
    inside(m->work, work, sizeof work);
    make_upper(lower, upper);
    must(mkdir(work, 0700), work);
    snprintf(data, sizeof data, "lowerdir=%s,upperdir=%s,workdir=%s,userxattr", lower, upper, work);
    must(mount("overlay", target, "overlay", MS_NODEV, data), m->target);
}

/* A step of its own: the kernel refuses them where parts of the host's are covered, as in a container (mount_too_revealing). */
static void mount_kernel_files(const char *type, const char *target, unsigned long flags) {
    step(28, "kernel's file systems");
    must(mount(type, target, type, flags, NULL), type);
    step(22, "mounts");
}

static void make_mount(const struct mount_setting *m) {
    const unsigned long safe = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    char target[4096];
    inside(m->target, target, sizeof target);
    make_mount_point(target, m->fd < 0 || is_directory(m->fd));
    switch (m->kind) {
    case MOUNT_TMPFS: return mount_tmpfs(m, target);
    case MOUNT_OVERLAY: return mount_overlay(m, target);
    case MOUNT_PROC: return mount_kernel_files("proc", target, safe);
    case MOUNT_SYSFS: return mount_kernel_files("sysfs", target, safe | MS_RDONLY);
    /* The jail's own group as the root, and not to be written: runc looks whether there is one, and then does without. */
    case MOUNT_CGROUP: return must(mount("cgroup2", target, "cgroup2", safe | MS_RDONLY, NULL), m->target);
    default: return place_mount(m->fd, target);
    }
}

void make_mounts(const struct options *o) {
    for (int i = 0; i < o->mount_count; i++) make_mount(&o->mounts[i]);
}

static void verify_mount(const char *path, unsigned long flags) {
    struct statvfs fs;
    must(statvfs(path, &fs), path);
    if (flags & ST_RDONLY & ~fs.f_flag) {
        errno = EROFS;
        fail("a mount that must be read-only is not");
    }
    if (flags & ~fs.f_flag) {
        errno = EPERM;
        fail("a mount lacks nosuid, nodev or noexec");
    }
}

static unsigned long flags_of(const struct mount_setting *m) {
    const unsigned long safe = ST_NOSUID | ST_NODEV;
    switch (m->kind) {
    case MOUNT_BIND: return safe | ST_NOEXEC | (m->writable ? 0 : ST_RDONLY);
    case MOUNT_TREE: return safe | ST_RDONLY;
    case MOUNT_DEVICE: return ST_NOSUID | ST_NOEXEC | ST_RDONLY;
    case MOUNT_TMPFS: return safe | (m->executable ? 0 : ST_NOEXEC);
    case MOUNT_SYSFS:
    case MOUNT_CGROUP: return safe | ST_NOEXEC | ST_RDONLY;
    case MOUNT_PROC: return safe | ST_NOEXEC;
    case MOUNT_OVERLAY: return ST_NODEV;
    }
    return safe;
}

static bool is_mounted(const struct options *o, const char *target) {
    for (int i = 0; i < o->mount_count; i++)
        if (!strcmp(o->mounts[i].target, target)) return true;
    return false;
}

static void verify_absence(const struct options *o, const char *directory, const char *file) {
    if (is_mounted(o, directory) || access(file, F_OK)) return;
    errno = EEXIST;
    fail("the root has /proc or /dev");
}

void verify_mounts(const struct options *o) {
    verify_mount("/", ST_RDONLY | ST_NOSUID | ST_NODEV);
    for (int i = 0; i < o->bind_count; i++) verify_mount(o->binds[i].target, ST_NOSUID | ST_NODEV | ST_RDONLY);
    for (int i = 0; i < o->mount_count; i++) verify_mount(o->mounts[i].target, flags_of(&o->mounts[i]));
    verify_absence(o, "/proc", "/proc/self");
    verify_absence(o, "/dev", "/dev/null");
}
