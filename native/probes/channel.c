/* The way the host speaks with the cell: a process that reaches it, or the process that holds it, can forge what the host records. */
#include "probe.h"
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

enum { NR_PIDFD_OPEN = 434, NR_PIDFD_GETFD = 438 };

static void each_holder(struct finding *f, void (*visit)(struct finding *, pid_t))
{
    if (getpid() != 1)
        visit(f, 1);
    if (parent_pid > 1)
        visit(f, parent_pid);
    absent(f, "the channel's holder is outside this pid namespace");
}

/* Beyond the three that every program has. */
static void descriptors(struct finding *f)
{
    char path[64], target[128];
    DIR *list = opendir("/proc/self/fd");
    if (list == NULL) {
        refused(f, "/proc/self/fd");
        return;
    }
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        long fd = number_of(entry->d_name);
        if (fd <= 2 || fd == dirfd(list))
            continue;
        path_of(path, sizeof path, "/proc/self/fd/%ld", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
        reached(f, "descriptor %ld: %.60s", fd, target);
    }
    closedir(list);
    absent(f, "none but the first three");
}

static bool is_harmless(const struct stat *s)
{
    enum { MEMORY = 1, NULL_MINOR = 3, TTY = 5, FIRST_PTS = 136, LAST_PTS = 143 };
    unsigned ma = major(s->st_rdev);
    if (S_ISFIFO(s->st_mode))
        return true;
    if (!S_ISCHR(s->st_mode))
        return false;
    return (ma == MEMORY && minor(s->st_rdev) == NULL_MINOR) || ma == TTY || (ma >= FIRST_PTS && ma <= LAST_PTS);
}

/* Made inside, by the agent: under gVisor others of one's user could open a pipe through /proc. One from outside has another peer, whose pid is not of this namespace. */
static bool is_of_process_1(int fd)
{
    struct ucred peer = {0};
    struct sockaddr name = {0};
    socklen_t n = sizeof peer, named = sizeof name;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.pid == 1 && getpeername(fd, &name, &named) == 0 && name.sa_family == AF_UNIX;
}

static void streams(struct finding *f)
{
    for (int fd = 0; fd <= 2; fd++) {
        struct stat s;
        if (fstat(fd, &s) != 0)
            absent(f, "descriptor %d is closed", fd);
        else if (is_harmless(&s) || (S_ISSOCK(s.st_mode) && is_of_process_1(fd)))
            denied(f, "pipes or a terminal of its own");
        else
            reached(f, "descriptor %d is of kind %o", fd, (unsigned)(s.st_mode & S_IFMT));
    }
}

static void trace_one(struct finding *f, pid_t pid)
{
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0)
        reached(f, "traces process %d", pid);
    else
        refused(f, "ptrace");
}

static void trace_holder(struct finding *f) { each_holder(f, trace_one); }

/* An address that nobody has: only the permission counts. */
static void read_one(struct finding *f, pid_t pid)
{
    char path[64], byte;
    struct iovec here = {&byte, 1}, there = {(void *)16, 1};
    path_of(path, sizeof path, "/proc/%d/mem", pid);
    opens(f, path, O_RDONLY);
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) == 1 || errno == EFAULT)
        reached(f, "reads the memory of process %d", pid);
    else
        refused(f, "process_vm_readv");
}

static void read_holder(struct finding *f) { each_holder(f, read_one); }

static bool is_own_stream(const struct stat *s)
{
    struct stat own;
    for (int fd = 0; fd <= 2; fd++)
        if (fstat(fd, &own) == 0 && own.st_dev == s->st_dev && own.st_ino == s->st_ino)
            return true;
    return false;
}

/* A pipe or a device, not of the cell's own: what is written there is read outside. Directories and programs of the cell are no secret. */
static void open_one(struct finding *f, pid_t pid, long number)
{
    char path[64], target[128] = "";
    struct stat s = {0};
    path_of(path, sizeof path, "/proc/%d/fd/%ld", pid, number);
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &s) != 0)
        refused(f, path);
    else if (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode) || is_own_stream(&s) || (S_ISCHR(s.st_mode) && is_harmless(&s)))
        denied(f, "%s is of the cell's own", path);
    else
        reached(f, "opened %s for writing, %.60s", path, readlink(path, target, sizeof target - 1) > 0 ? target : "?");
    if (fd >= 0)
        close(fd);
}

static void open_each(struct finding *f, pid_t pid)
{
    enum { MOST = 64 };
    for (long number = 0; number < MOST; number++)
        open_one(f, pid, number);
}

static void open_descriptors(struct finding *f) { each_holder(f, open_each); }

static void borrow_one(struct finding *f, pid_t pid)
{
    int pidfd = (int)syscall(NR_PIDFD_OPEN, pid, 0);
    int fd = pidfd < 0 ? -1 : (int)syscall(NR_PIDFD_GETFD, pidfd, 0, 0);
    if (fd >= 0 || errno == EBADF)
        reached(f, "takes descriptors of process %d", pid);
    else
        refused(f, pidfd < 0 ? "pidfd_open" : "pidfd_getfd");
    if (fd >= 0)
        close(fd);
    if (pidfd >= 0)
        close(pidfd);
}

static void borrow_descriptors(struct finding *f) { each_holder(f, borrow_one); }

/* Read and set to what it was. */
static void limit_one(struct finding *f, pid_t pid)
{
    struct rlimit now;
    if (prlimit(pid, RLIMIT_FSIZE, NULL, &now) == 0 && prlimit(pid, RLIMIT_FSIZE, &now, NULL) == 0)
        reached(f, "sets the limits of process %d", pid);
    else
        refused(f, "prlimit");
}

static void limit_holder(struct finding *f) { each_holder(f, limit_one); }

/* Its holder may choose the signal that the owner of a descriptor gets. None is sent here. */
static void signal_holder(struct finding *f)
{
    pid_t pid = 1;
    enum { SETOWN_EX = 15, TO_PROCESS = 1, FIO_SETOWN = 0x8901, SIOC_SETOWN = 0x8902 };
    struct { int type; pid_t pid; } owner = {TO_PROCESS, pid};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fcntl(fd, F_SETOWN, pid) == 0 || fcntl(fd, F_SETOWN, -pid) == 0)
        reached(f, "F_SETOWN: process %d", pid);
    else
        refused(f, "F_SETOWN");
    if (fcntl(fd, SETOWN_EX, &owner) == 0)
        reached(f, "F_SETOWN_EX: process %d", pid);
    else
        refused(f, "F_SETOWN_EX");
    if (ioctl(fd, FIO_SETOWN, &pid) == 0 || ioctl(fd, SIOC_SETOWN, &pid) == 0)
        reached(f, "SIOCSPGRP: process %d", pid);
    else
        refused(f, "SIOCSPGRP");
    close(fd);
}

/* `prefix`: of the names that are meant. */
static void try_port(struct finding *f, const char *directory, const char *prefix)
{
    char path[320];
    DIR *list = opendir(directory);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        bool is_port = entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
        if (is_port && path_of(path, sizeof path, "%s/%s", directory, entry->d_name))
            opens(f, path, O_WRONLY);
    }
    if (list != NULL)
        closedir(list);
}

static void port(struct finding *f)
{
    try_port(f, "/dev", "vport");
    try_port(f, "/dev", "hvc");
    try_port(f, "/dev/virtio-ports", "");
    absent(f, "no port of the machine");
}

const struct probe channel_probes[] = {
    {"channel.descriptors", descriptors, QUICK},
    {"channel.streams", streams, QUICK},
    {"channel.trace_holder", trace_holder, APART},
    {"channel.read_holder", read_holder, QUICK},
    {"channel.open_descriptors", open_descriptors, QUICK},
    {"channel.borrow_descriptors", borrow_descriptors, QUICK},
    {"channel.limit_holder", limit_holder, QUICK},
    {"channel.signal_holder", signal_holder, QUICK},
    {"channel.port", port, QUICK},
    {NULL, NULL, 0},
};
