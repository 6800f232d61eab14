/* The child's way into the jail: steps 5 to 18 and 25, each of which must succeed. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void bind_files(const struct options *o) {
    for (int i = 0; i < o->bind_count; i++) {
        char target[4096];
        if (snprintf(target, sizeof target, "%s%s", o->root, o->binds[i].target) >= (int)sizeof target) {
            errno = ENAMETOOLONG;
            fail(o->binds[i].target);
        }
        bind_with(o->binds[i].source, target, ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC | ATTR_NOSYMFOLLOW | ATTR_RDONLY);
    }
}

/* The working directory is the new root. */
static void change_root(void) {
    must((int)syscall(SYS_pivot_root, ".", "."), "pivot_root");
    /* The old root now lies on top of the new one at '.'. */
    must(umount2(".", MNT_DETACH), "old root");
    must(chdir("/"), "/");
}

static void close_others(const struct options *o, int go_fd) {
    int kept[MAX_KEPT + 4];
    memcpy(kept, o->kept, sizeof(int) * (size_t)o->kept_count);
    kept[o->kept_count] = go_fd;
    kept[o->kept_count + 1] = fail_fd;
    kept[o->kept_count + 2] = o->stdin_fd;
    kept[o->kept_count + 3] = o->network_fd;
    keep_only(kept, o->kept_count + 4);
    /* 0, 1 and 2 and the kept ones must outlive execve, whatever flag they came with. */
    for (int i = 0; i < o->kept_count; i++) must(fcntl(o->kept[i], F_SETFD, 0), "a kept descriptor is not open");
}

static void set_rlimits(const struct options *o) {
    for (int i = 0; i < o->rlimit_count; i++) {
        struct rlimit limit = {o->rlimits[i].value, o->rlimits[i].value}, had;
        must(getrlimit(o->rlimits[i].resource, &had), "getrlimit");
        /* A host's lower hard limit stays: a limit is never raised. */
        if (had.rlim_max != RLIM_INFINITY && had.rlim_max < limit.rlim_max) limit = (struct rlimit){had.rlim_max, had.rlim_max};
        must(setrlimit(o->rlimits[i].resource, &limit), "setrlimit");
    }
}

static void take_identity(const struct options *o) {
    uid_t uid = has_id_maps(o) ? 0 : o->inner_uid;
    gid_t gid = has_id_maps(o) ? 0 : o->inner_gid;
    if (o->privileged || o->newgidmap || o->userns_fd >= 0) must((int)syscall(SYS_setgroups, 0, NULL), "setgroups");
    must((int)syscall(SYS_setresgid, gid, gid, gid), "setresgid");
    must((int)syscall(SYS_setresuid, uid, uid, uid), "setresuid");
}

/* A session keyring is inherited and opens to any process that has it, whatever its uid. Where keys don't exist or are forbidden there is none to leave. */
static void leave_keyring(void) {
    if (syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL) < 0 && errno != ENOSYS && errno != EPERM) fail("keyctl");
}

/* After the last change of credentials, which would have disarmed the signal. The supervisor may have died before it was armed: then its pipe is closed. */
static void die_with_supervisor(int go_fd) {
    must(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "parent-death signal");
    struct pollfd supervisor = {go_fd, POLLIN, 0};
    if (poll(&supervisor, 1, 0) != 0) _exit(125);
    close(go_fd);
}

static void reset_signals(void) {
    sigset_t none;
    sigemptyset(&none);
    must(sigprocmask(SIG_SETMASK, &none, NULL), "signal mask");
    for (int number = 1; number < 65; number++) signal(number, SIG_DFL); /* those that can't be set don't matter */
}

static void take_stdin(const struct options *o) {
    if (o->stdin_fd <= 0) return;
    must(dup2(o->stdin_fd, 0), "stdin");
    close(o->stdin_fd);
}

void enter_jail(struct options *o, int go_fd) {
    char byte;
    int proc_fd = -1;

    step(5, "wait for identity and control groups");
    if (read(go_fd, &byte, 1) != 1) _exit(125); /* the supervisor failed and has said why */

    step(6, "cgroup namespace");
    must(unshare(CLONE_NEWCGROUP), "unshare");

    step(7, "host name");
    must(sethostname(o->hostname, strlen(o->hostname)), "sethostname");

    step(8, "private mounts");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "/");

    step(9, "root");
    bind_with(o->root, o->root, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV);

    step(10, "files");
    bind_files(o);
    open_sources(o);
    must(chdir(o->root), o->root);
    if (o->keep_capabilities) proc_fd = open_own_proc();

    step(15, "identity");
    take_identity(o);
    leave_keyring();

    step(22, "mounts");
    umask(0);
    make_mounts(o);

    step(11, "change root");
    change_root();

    step(12, "verify mounts");
    verify_mounts(o);

    step(23, "lock mounts");
    if (o->keep_capabilities) lock_mounts(o, proc_fd);

    step(13, "descriptors");
    close_others(o, go_fd);

    step(14, "resource limits");
    reset_signals();
    umask(o->keep_capabilities ? 022 : 077); /* a runtime makes directories on the way to what it mounts, for every user of the cell */
    set_rlimits(o);

    step(16, "capabilities");
    if (!o->keep_capabilities) hold_no_capability();
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no-new-privileges");
    /* An ordinary user must be able to see which namespaces its init is in; root always is, and a program's own is reset by execve. */
    must(prctl(PR_SET_DUMPABLE, o->init && !o->privileged, 0, 0, 0), "dumpable");

    step(17, "die with the supervisor");
    die_with_supervisor(go_fd);

    if (o->init) become_init(o);
    step(18, "run");
    take_stdin(o);
    if (o->keep_capabilities) install_runtime_filter();
    else install_filter();
    execve(o->argv[0], o->argv, o->environment);
    fail(o->argv[0]);
}
