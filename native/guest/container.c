/* The workload's container: its namespaces and their owners, its process 1, and how an operation's process enters.
 *
 * Owners. The user namespace maps 0 and on to 100000 and on, and owns only the network namespace, so that the few capabilities the workload may hold
 * (raw sockets, low ports) work there; not even that where the machine has a network device, unless CONFIG grants CAP_NET_ADMIN. The mount, pid, ipc, uts and cgroup namespaces stay owned by
 * the machine's first user namespace: whatever the workload becomes, even root with every capability of its own user namespace, it has no authority over a mount, a hostname or a pid namespace. */
#include "agent.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct container container = {.init_pidfd = -1, .user_ns = -1, .root = -1, .boot_id = -1, .pts = -1, .proc = -1};

static int open_ns(pid_t pid, const char *name)
{
    char path[64];
    format(path, sizeof path, "/proc/%d/ns/%s", (int)pid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int write_map(pid_t pid, const char *file)
{
    char path[64], map[64];
    format(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    format(map, sizeof map, "0 %d %u\n", ID_SHIFT, MACHINE_IDS);
    return -write_at(AT_FDCWD, path, map);
}

/* A short-lived process makes the user namespace and, where its rights are to hold there, the network namespace; both live on as descriptors. Else network.c makes the latter. */
static int make_user_and_net(int *user_ns, int *net_ns)
{
    int up[2], down[2];
    if (pipe2(up, O_CLOEXEC) != 0 || pipe2(down, O_CLOEXEC) != 0)
        return errno;
    pid_t pid = fork();
    if (pid < 0)
        return errno;
    if (pid == 0) {
        char byte = unshare(CLONE_NEWUSER | (container.owns_network ? CLONE_NEWNET : 0)) == 0 ? 0 : (char)errno;
        write_all(up[1], &byte, 1);
        close(down[1]);
        _exit(read(down[0], &byte, 1) != 0);
    }
    char failed = EIO;
    close(up[1]);
    int error = read(up[0], &failed, 1) == 1 ? failed : EIO;
    if (error == 0 && (error = write_map(pid, "uid_map")) == 0 && (error = write_map(pid, "gid_map")) == 0) {
        *user_ns = open_ns(pid, "user");
        if (container.owns_network)
            *net_ns = open_ns(pid, "net");
        error = *user_ns < 0 || (*net_ns < 0 && container.owns_network) ? errno : 0;
    }
    close(down[1]), close(down[0]), close(up[0]);
    waitpid(pid, NULL, 0);
    return error;
}

static int loopback_up(void)
{
    struct ifreq r = {.ifr_name = "lo"};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return errno;
    int error = ioctl(s, SIOCGIFFLAGS, &r) != 0 ? errno : 0;
    r.ifr_flags |= IFF_UP | IFF_RUNNING;
    if (error == 0 && ioctl(s, SIOCSIFFLAGS, &r) != 0)
        error = errno;
    close(s);
    return error;
}

/* Process 1 of the container: takes in orphans and lets them end. It has no handler, so the kernel discards every signal from inside; it stays in the
 * machine's user namespace under an id the container doesn't map, without capabilities, not dumpable: no ptrace, no prlimit, no /proc/1/mem. */
_Noreturn void reap_forever(void)
{
    write_at(AT_FDCWD, "/proc/self/oom_score_adj", "-1000");
    prctl(PR_SET_NAME, "init");
    close_from(0);
    if (become_nobody(65534) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0)
        _exit(72);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_SETMASK, &child, NULL);
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        siginfo_t info;
        sigwaitinfo(&child, &info);
    }
}

/* System V's objects outlive their makers and count as the workload's memory: bounded, so that they can't fill all of it for good. */
static void limit_ipc(uint64_t memory_max_bytes)
{
    char pages[24];
    format(pages, sizeof pages, "%llu", (unsigned long long)(memory_max_bytes / 8 / 4096));
    write_at(AT_FDCWD, "/proc/sys/kernel/shmall", pages); /* this ipc namespace's, as the next */
    write_at(AT_FDCWD, "/proc/sys/kernel/msgmni", "256");
    write_at(AT_FDCWD, "/proc/sys/kernel/sem", "250 16000 100 256");
}

struct report { int error; char stage[60]; };

/* Optional, both: raw sockets and low ports work without. With a device that the container doesn't own, no user may send echo requests. */
static void open_network(void)
{
    if (container.owns_network)
        write_at(AT_FDCWD, "/proc/sys/net/ipv4/ping_group_range", "0 2147483647"); /* this namespace's, as the next */
    write_at(AT_FDCWD, "/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}

_Noreturn static void init_main(const struct config *config, int user_ns, int net_ns, int report_fd, int root_fd[2])
{
    const char *stage = "network";
    struct report report = {0};
    channel_drop();
    report.error = setns(net_ns, CLONE_NEWNET) != 0 ? errno : loopback_up();
    open_network();
    limit_ipc(config->memory_max_bytes);
    if (report.error == 0)
        report.error = rootfs_build(config, user_ns, &stage);
    format(report.stage, sizeof report.stage, "%s", stage);
    write_all(report_fd, &report, sizeof report);
    char go;
    if (report.error != 0 || read(root_fd[0], &go, 1) != 1)
        _exit(74);
    reap_forever();
}

static pid_t clone_init(void)
{
    struct clone_args args = {
        .flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)cgroup_tree(),
    };
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

/* Descriptors into the finished root, taken through its first process before that drops everything. */
static int open_inside(const char **stage)
{
    char path[64];
    format(path, sizeof path, "/proc/%d/root", (int)container.init_pid);
    *stage = "descriptors";
    container.init_pidfd = (int)syscall(SYS_pidfd_open, container.init_pid, 0);
    container.root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (container.init_pidfd < 0 || container.root < 0)
        return errno;
    container.pts = openat(container.root, "dev/pts", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    container.boot_id = open("/run/boot_id", O_RDWR | O_CLOEXEC);
    return container.pts < 0 || container.boot_id < 0 ? errno : 0;
}

static int start_init(const struct config *config, int net_ns, const char **stage)
{
    static struct report report;
    int up[2], go[2];
    if (pipe2(up, O_CLOEXEC) != 0 || pipe2(go, O_CLOEXEC) != 0)
        return errno;
    *stage = "init";
    container.init_pid = clone_init();
    if (container.init_pid < 0)
        return errno;
    if (container.init_pid == 0) {
        close(go[1]);
        init_main(config, container.user_ns, net_ns, up[1], go);
    }
    close(up[1]), close(go[0]);
    int error = read(up[0], &report, sizeof report) == sizeof report ? report.error : EIO;
    if (error != 0)
        *stage = report.stage;
    if (error == 0)
        error = open_inside(stage);
    if (error == 0) {
        *stage = "cgroup tree";
        error = cgroups_divide(container.init_pid);
    }
    if (error == 0)
        write_all(go[1], "g", 1);
    close(up[0]), close(go[1]);
    return error;
}

int container_build(const struct config *config, const char **stage)
{
    int net_ns = -1, uts;
    *stage = "beside what it may take the machine has no room for its kernel";
    if (!cgroups_have_room(config->memory_max_bytes))
        return ENOMEM;
    *stage = "cgroup limits";
    int error = cgroups_limit(config);
    if (error != 0)
        return error;
    *stage = "user namespace";
    container.has_device = network_present();
    container.owns_network |= !container.has_device;
    if ((error = make_user_and_net(&container.user_ns, &net_ns)) != 0)
        return error;
    *stage = "network device";
    if (container.has_device && (error = network_build(&net_ns)) != 0)
        return error;
    if ((error = start_init(config, net_ns, stage)) != 0)
        return error;
    close(net_ns);
    *stage = "join";
    /* Children of this process are born in the container's pid namespace; this process itself stays outside, invisible to it. The uts namespace holds
     * only the hostname: being in it makes RENEW one call. */
    if ((uts = open_ns(container.init_pid, "uts")) < 0 || setns(uts, CLONE_NEWUTS) != 0 || setns(container.init_pidfd, CLONE_NEWPID) != 0)
        return errno;
    close(uts);
    if (sethostname(config->hostname, strlen(config->hostname)) != 0)
        return errno;
    container.built = true;
    return 0;
}

int container_enter(void)
{
    if (!in_machine())
        return 0;
    int rest = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP;
    if (setns(container.init_pidfd, rest) != 0)
        return errno;
    int error = service_join();
    return error != 0 ? error : setns(container.user_ns, CLONE_NEWUSER) != 0 ? errno : 0;
}

static void warm_one(const char *path)
{
    static char buffer[256 << 10];
    struct stat s;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode))
        while (read(fd, buffer, sizeof buffer) > 0)
            ;
    close(fd);
}

/* Reads files of the image into the page cache, from inside the container, so that the snapshot holds them. Absent ones are no error. */
void container_warm(struct reader *paths, uint32_t count)
{
    pid_t pid = in_machine() ? fork() : -1;
    if (pid == 0) {
        channel_drop();
        struct user root = {0};
        if (container_enter() != 0 || confine(&root) != 0)
            _exit(1);
        for (uint32_t i = 0; i < count && !paths->bad; i++) {
            const char *path = take_str(paths, NULL);
            if (!paths->bad)
                warm_one(path);
        }
        _exit(0);
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
}
