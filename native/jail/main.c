/* The jail's launcher: runs one program in namespaces of its own with nothing but what it was given, and sees to it that it ends.
 *
 * Two processes. The *supervisor* stays in the host's pid namespace, holds the lifeline and the deadline and reports on the status descriptor. The *child*
 * becomes the jailed program, pid 1 of a new pid namespace, so that its death is the death of everything in the jail. Input is argv from the owner only;
 * nothing is ever read from the jailed program.
 *
 * Steps, in the order they are taken. Supervisor: 1 options, 2 session and owner, 3 namespaces (24 id-mapped trees, where there are any), 4 identity and
 * control groups (27 subordinate ids, for an ordinary user), 19 drop, 20 watch. Child: 5 to 10, 15 identity, 22 mounts (28 the kernel's file systems), 11, 12,
 * 23 lock mounts, 13, 14, 16, 17; with an init it may make a network (25) and forks; the fork goes on with 18, run, and the child with 21, runtime. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A pidfd of the owner is a second lifeline: it fires even if a forked copy of the owner still holds the first one's other end. */
static int watch_owner(pid_t owner) {
    int pidfd = (int)syscall(SYS_pidfd_open, owner, 0);
    must(pidfd, "pidfd_open");
    if (getppid() != owner) {
        errno = ESRCH;
        fail("the owner is gone already");
    }
    return pidfd;
}

static pid_t spawn_in_namespaces(const struct options *options, int *child_pidfd) {
    step(3, "namespaces");
    int hosts_mounts = shift_trees(options);
    step(3, "namespaces");
    unsigned long flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD | SIGCHLD;
    own_as_stage(options);
    pid_t child = (pid_t)syscall(SYS_clone, flags, 0, child_pidfd, 0, 0);
    must(child, "clone");
    if (child) own_as_root(options);
    if (child && hosts_mounts >= 0) {
        must(setns(hosts_mounts, CLONE_NEWNS), "setns");
        close(hosts_mounts);
    }
    return child;
}

int main(int argc, char **argv) {
    struct options options;
    if (argc == 2 && !strcmp(argv[1], "--measure-clock")) return measure_clock();
    if (argc == 2 && !strcmp(argv[1], "--try-namespaces")) return try_namespaces();

    step(1, "options");
    parse_options(argc, argv, &options);
    fail_fd = options.status_fd;

    step(2, "session and owner");
    /* Away from the terminal: an interrupt typed there is the owner's to act on. */
    if (getpid() != getsid(0)) must(setsid(), "setsid");
    must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable");
    signal(SIGPIPE, SIG_IGN); /* a child that was killed on the way is a failed step, and not a silent end */
    int owner_pidfd = watch_owner(options.owner_pid);

    int go[2], errors[2], child_pidfd = -1;
    must(pipe2(go, O_CLOEXEC), "pipe");
    must(pipe2(errors, O_CLOEXEC), "pipe");
    step(3, "namespaces");
    enter_user_namespace(&options);
    /* A non-dumpable process's /proc files belong to root: an ordinary user could not write the child's maps. */
    if (!options.privileged) must(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable");
    pid_t child = spawn_in_namespaces(&options, &child_pidfd);
    if (child == 0) {
        fail_fd = errors[1];
        close(go[1]);
        enter_jail(&options, go[0]);
    }
    close(go[0]);
    close(errors[1]);

    step(4, "identity and control groups");
    map_ids(&options, child);
    join_cgroups(&options, child);
    must((int)write(go[1], "g", 1), "go");

    step(19, "supervisor's privileges");
    drop_supervisor_privileges();

    step(20, "watch");
    /* `go[1]` stays open: its end tells the child that the supervisor died before the parent-death signal was armed. */
    const int kept[] = {options.status_fd, options.lifeline_fd, options.held_fd, owner_pidfd, child_pidfd, errors[0], go[1]};
    keep_only(kept, (int)(sizeof kept / sizeof *kept));
    supervise(&options, child, child_pidfd, owner_pidfd, errors[0]);
}
