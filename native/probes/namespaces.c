/* Namespaces and credentials: the host's, new ones, and what a process may still become. */
#include "probe.h"
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define CAP(c) (UINT64_C(1) << (c))

/* `namespaces=mnt:4026531841 pid:…`, as the host's own processes have them. */
static void compare_namespace(struct finding *f, const char *told)
{
    char kind[16], path[64];
    unsigned long long theirs;
    struct stat ours;
    if (sscanf(told, "%15[a-z]:%llu", kind, &theirs) != 2) {
        failed(f, "not a namespace: %.60s", told);
        return;
    }
    path_of(path, sizeof path, "/proc/self/ns/%s", kind);
    if (stat(path, &ours) != 0)
        refused(f, path);
    else if (ours.st_ino == theirs)
        reached(f, "the host's %s namespace", kind);
    else
        denied(f, "%s is another", kind);
}

static void shared(struct finding *f)
{
    static char list[VALUE_BYTES];
    const char *told = parameter("namespaces");
    if (told == NULL)
        absent(f, "not told: the host looks at the cell's processes");
    if (told == NULL || !same_kernel(f))
        return;
    snprintf(list, sizeof list, "%s", told);
    char *rest = list;
    for (char *one; (one = strsep(&rest, " ,")) != NULL;)
        if (one[0] != 0)
            compare_namespace(f, one);
}

static void make_user(struct finding *f)
{
    permitted(f, "unshare of a user namespace", unshare(CLONE_NEWUSER));
}

static void make_others(struct finding *f)
{
    static const struct { int flag; const char *name; } KINDS[] = {
        {CLONE_NEWNS, "unshare mount"}, {CLONE_NEWPID, "unshare pid"}, {CLONE_NEWNET, "unshare net"}, {CLONE_NEWIPC, "unshare ipc"}, {CLONE_NEWUTS, "unshare uts"},
        {CLONE_NEWCGROUP, "unshare cgroup"},
    };
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        permitted(f, KINDS[i].name, unshare(KINDS[i].flag));
}

static void born(struct finding *f, const char *what, long pid)
{
    if (pid == 0)
        _exit(0);
    permitted(f, what, pid);
    if (pid > 0)
        waitpid((pid_t)pid, NULL, 0);
}

static void clone_user(struct finding *f)
{
    born(f, "clone into a user namespace", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL));
}

static void clone3_user(struct finding *f)
{
    struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    born(f, "clone3 into a user namespace", syscall(SYS_clone3, &args, sizeof args));
}

static void enter_first(struct finding *f)
{
    static const char *const KINDS[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};
    char path[64];
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        path_of(path, sizeof path, "/proc/1/ns/%s", KINDS[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && setns(fd, 0) == 0)
            reached(f, "entered %s", path);
        else
            refused(f, path);
        if (fd >= 0)
            close(fd);
    }
}

/* On the host's own kernel, id 0 of the first user namespace is the host's root. */
static void host_ids(struct finding *f)
{
    char map[512];
    unsigned long inside, outside, count;
    if (!same_kernel(f))
        return;
    if (read_text("/proc/self/uid_map", map, sizeof map) < 0 || sscanf(map, "%lu %lu %lu", &inside, &outside, &count) != 3)
        refused(f, "/proc/self/uid_map");
    else if (inside == 0 && outside == 0)
        reached(f, "id 0 here is id 0 outside");
    else
        denied(f, "id %lu here is id %lu outside", inside, outside);
}

static uint64_t field_of(const char *status, const char *name)
{
    const char *line = strstr(status, name);
    return line == NULL ? 0 : strtoull(line + strlen(name), NULL, 16); /* not every kernel has all of them */
}

/* More than a container's root usually has, and than the plan grants. */
static void capabilities(struct finding *f)
{
    const char *told = needed(f, "capabilities");
    if (told == NULL)
        return;
    const uint64_t usual = strtoull(told, NULL, 16) | CAP(CAP_CHOWN) | CAP(CAP_DAC_OVERRIDE) | CAP(CAP_FSETID) | CAP(CAP_FOWNER) | CAP(CAP_MKNOD) | CAP(CAP_NET_RAW) | CAP(CAP_SETGID) |
        CAP(CAP_SETUID) | CAP(CAP_SETFCAP) | CAP(CAP_SETPCAP) | CAP(CAP_NET_BIND_SERVICE) | CAP(CAP_SYS_CHROOT) | CAP(CAP_KILL) | CAP(CAP_AUDIT_WRITE);
    static const char *const SETS[] = {"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"};
    char status[8192];
    if (read_text("/proc/self/status", status, sizeof status) < 0 || strstr(status, "CapEff:") == NULL || strstr(status, "CapBnd:") == NULL) {
        failed(f, "/proc/self/status has no capabilities");
        return;
    }
    for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++) {
        uint64_t more = field_of(status, SETS[i]) & ~usual;
        if (more != 0)
            reached(f, "%s %llx more", SETS[i], (unsigned long long)more);
    }
    denied(f, "no more than usual");
}

static void new_privileges(struct finding *f)
{
    const char *granted = needed(f, "setuid_programs");
    int set = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    if (granted == NULL)
        return;
    if (set == 0 && granted[0] == '1')
        denied(f, "granted by the plan");
    else if (set == 1)
        denied(f, "set-user-id programs give nothing");
    else if (set == 0)
        reached(f, "set-user-id programs work");
    else
        failed(f, "prctl: %s", errno_name(errno));
}

static void filter(struct finding *f)
{
    char status[8192];
    const char *line = read_text("/proc/self/status", status, sizeof status) < 0 ? NULL : strstr(status, "\nSeccomp:");
    long mode = line == NULL ? syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) : strtol(line + 9, NULL, 10);
    if (mode == 2)
        denied(f, "system calls are filtered");
    else if (mode == 0)
        reached(f, "no filter of system calls");
    else
        failed(f, "mode %ld", mode);
}

static void raise_capabilities(struct finding *f)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    if (syscall(SYS_capget, &header, data) != 0)
        return;
    data[0].permitted |= (uint32_t)CAP(CAP_SYS_ADMIN), data[0].effective |= (uint32_t)CAP(CAP_SYS_ADMIN);
    permitted(f, "capset", syscall(SYS_capset, &header, data));
}

/* Back to root, or to what root had. */
static void regain(struct finding *f)
{
    if (geteuid() != 0) {
        permitted(f, "setresuid to 0", syscall(SYS_setresuid, 0, 0, 0));
        permitted(f, "setresgid to 0", syscall(SYS_setresgid, 0, 0, 0));
    }
    raise_capabilities(f);
}

const struct probe namespace_probes[] = {
    {"namespaces.shared", shared, QUICK},
    {"namespaces.make_user", make_user, APART},
    {"namespaces.make_others", make_others, APART},
    {"namespaces.clone_user", clone_user, QUICK},
    {"namespaces.clone3_user", clone3_user, QUICK},
    {"namespaces.enter_first", enter_first, APART},
    {"namespaces.host_ids", host_ids, QUICK},
    {"namespaces.capabilities", capabilities, QUICK},
    {"namespaces.new_privileges", new_privileges, QUICK},
    {"namespaces.filter", filter, QUICK},
    {"namespaces.regain", regain, APART},
    {NULL, NULL, 0},
};
