/* A hostile program in the VMM's place: tries what a taken-over VMM would, one attack a child, and says how each ended.
 *
 * jail_probe OUT_FD MODE HOST_PID IMAGE. MODE: "attack", "control" (outside a jail, the same attacks, each harmless there) or "stay" (sleeps for ever).
 * One line an attack: `name errno`, 0 when it succeeded. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *image;
static int out_fd, control;
static pid_t host_pid;

static int ended(long result) { return result < 0 ? errno : 0; }

static int write_image(void) {
    int fd = open(image, O_WRONLY);
    return fd < 0 ? errno : ended(write(fd, "x", 1));
}
static int truncate_image(void) { return ended(truncate(image, 0)); }
static int map_image_shared(void) {
    int fd = open(image, O_RDWR);
    if (fd < 0) return errno;
    return mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? errno : 0;
}
static int chmod_image(void) { return ended(chmod(image, 0666)); }
static int remount(const char *path) {
    if (control && unshare(CLONE_NEWNS)) return errno;
    if (control && (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount(path, path, NULL, MS_BIND, NULL))) return errno;
    return ended(mount(NULL, path, NULL, MS_REMOUNT | MS_BIND, NULL));
}
static int remount_image(void) { return remount(image); }
static int remount_root(void) { return remount("/"); }
static int mount_tmpfs(void) {
    if (control && unshare(CLONE_NEWNS)) return errno;
    if (control && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return errno;
    return ended(mount("t", "/", "tmpfs", 0, NULL));
}
static int remount_in_own_namespace(void) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) return errno;
    return control ? 0 : ended(mount(NULL, image, NULL, MS_REMOUNT | MS_BIND, NULL));
}
static int create_file(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s.new", control ? image : "/x");
    return ended(open(path, O_CREAT | O_WRONLY, 0600));
}
static int read_host_file(void) { return ended(open("/etc/passwd", O_RDONLY)); }
static int read_proc(void) { return ended(open("/proc/self/status", O_RDONLY)); }
static int open_device(void) { return ended(open("/dev/null", O_RDWR)); }
static int climb_out(void) {
    /* Out by '..' past the root, as after a chroot. */
    for (int i = 0; i < 64; i++)
        if (chdir("..")) return errno;
    return ended(open("etc/passwd", O_RDONLY));
}
static int chroot_away(void) { return ended(chroot("/")); }
static int see_host_process(void) { return ended(kill(host_pid, 0)); }
static int see_any_process(void) {
    for (pid_t pid = 1; pid < 70000; pid++)
        if (pid != getpid() && pid != getppid() && !kill(pid, 0)) return 0;
    return ESRCH;
}
static int trace_process(void) { return ended(ptrace(PTRACE_SEIZE, control ? host_pid : 1, NULL, NULL)); }
static int socket_of(int family) {
    int fd = socket(family, family == AF_NETLINK ? SOCK_RAW : SOCK_STREAM, 0);
    return ended(fd);
}
static int socket_inet(void) { return socket_of(AF_INET); }
static int socket_unix(void) { return socket_of(AF_UNIX); }
static int socket_netlink(void) { return socket_of(AF_NETLINK); }
static int socket_vsock(void) { return socket_of(40); }
static int become_root(void) { return ended(setresuid(0, 0, 0)); }
static int become_root_group(void) { return ended(setresgid(0, 0, 0)); }
static int join_group(void) {
    gid_t root = 0;
    return ended(setgroups(1, &root));
}
static int gain_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    if (syscall(SYS_capget, &header, caps)) return errno;
    caps[0].effective |= 1U << CAP_SYS_CHROOT | 1U << CAP_NET_RAW;
    caps[0].permitted |= 1U << CAP_SYS_CHROOT | 1U << CAP_NET_RAW;
    return ended(syscall(SYS_capset, &header, caps));
}
static int hold_capability(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    if (syscall(SYS_capget, &header, caps)) return errno;
    if (caps[0].permitted | caps[1].permitted | caps[0].effective | caps[1].effective | caps[0].inheritable) return 0;
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0)) return 0;
    return EPERM;
}
static int gain_privileges_by_exec(void) { return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) ? EPERM : 0; }
static int new_user_namespace(void) { return ended(unshare(CLONE_NEWUSER)); }
static int new_network_namespace(void) { return ended(unshare(CLONE_NEWNET)); }
static int clone_user_namespace(void) {
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return ended(pid);
}
static int clone3_user_namespace(void) {
    unsigned long long arguments[8] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
    long pid = syscall(435, arguments, sizeof arguments);
    if (pid == 0) _exit(0);
    return ended(pid);
}
static int make_device(void) { return ended(mknod(control ? "/tmp/.probe-device" : "/i/d", S_IFCHR | 0600, 1 << 8 | 3)); }
static int use_io_uring(void) {
    char parameters[120] = {0};
    return ended(syscall(425, 2, parameters));
}
static int use_keyring(void) { return ended(syscall(SYS_keyctl, 1 /* join a session keyring */, NULL)); }
static int use_userfaultfd(void) { return ended(syscall(SYS_userfaultfd, 1)); }
static int use_bpf(void) {
    char attributes[128] = {2 /* an array */, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1};
    return ended(syscall(SYS_bpf, 0, attributes, sizeof attributes));
}
static int extra_descriptor(void) {
    for (int fd = 3; fd < 4096; fd++)
        if (fd != out_fd && fcntl(fd, F_GETFD) >= 0) return 0;
    return EBADF;
}
static int read_environment(void) { return environ && environ[0] ? 0 : ENOENT; }
static int dump_core(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_CORE, &limit);
    return limit.rlim_max > 1 ? 0 : EPERM;
}
static const struct rlimit no_core = {0, 1};
static int lower_core_limit(void) { return ended(syscall(SYS_setrlimit, RLIMIT_CORE, &no_core)); }
static int lower_core_limit_newly(void) { return ended(syscall(SYS_prlimit64, 0, RLIMIT_CORE, &no_core, NULL)); }
static int lower_core_limit_with_old(void) {
    struct rlimit old;
    return ended(syscall(SYS_prlimit64, 0, (1L << 32) | RLIMIT_CORE, &no_core, &old));
}
static int raise_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_max = limit.rlim_cur = limit.rlim_max + (control ? 0 : 1);
    return ended(setrlimit(RLIMIT_NOFILE, &limit));
}
static int fork_a_thousand(void) {
    for (int i = 0; i < 1000; i++) {
        pid_t pid = fork();
        if (pid < 0) return errno;
        if (pid == 0) {
            pause();
            _exit(0);
        }
    }
    return 0;
}
static int clear_death_signal(void) { return ended(prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)); }
static int list_mounts(void) {
    unsigned long long found[8];
    struct {
        unsigned size, spare;
        unsigned long long mount, param;
    } request = {24, 0, ~0ULL, 0};
    return ended(syscall(458, &request, found, 8, 0));
}
static int call_of_tomorrow(void) { return syscall(464, -1, "", 0, "", 0, 0) < 0 && errno == ENOSYS ? ENOSYS : 0; }
static int set_host_name(void) { return control ? 0 : ended(sethostname("x", 1)); }

static const struct {
    const char *name;
    int (*attack)(void);
} attacks[] = {
#define A(name) {#name, name}
    A(write_image), A(truncate_image), A(map_image_shared), A(chmod_image), A(remount_image), A(remount_root), A(mount_tmpfs), A(remount_in_own_namespace),
    A(create_file), A(read_host_file), A(read_proc), A(open_device), A(climb_out), A(chroot_away), A(see_host_process), A(see_any_process), A(trace_process),
    A(socket_inet), A(socket_unix), A(socket_netlink), A(socket_vsock), A(become_root), A(become_root_group), A(join_group), A(gain_capabilities), A(hold_capability),
    A(gain_privileges_by_exec), A(new_user_namespace), A(new_network_namespace), A(clone_user_namespace), A(clone3_user_namespace), A(make_device),
    A(use_io_uring), A(use_keyring), A(use_userfaultfd), A(use_bpf), A(extra_descriptor), A(read_environment), A(dump_core), A(lower_core_limit), A(lower_core_limit_newly), A(lower_core_limit_with_old), A(raise_limit),
    A(fork_a_thousand), A(set_host_name), A(clear_death_signal), A(list_mounts), A(call_of_tomorrow),
};

/* In a group of its own, which is killed with all it started before the next attack. */
static int run(int (*attack)(void)) {
    int status;
    pid_t pid = fork();
    if (pid < 0) return errno;
    if (pid == 0) {
        setpgid(0, 0);
        _exit(attack());
    }
    waitpid(pid, &status, 0);
    kill(-pid, SIGKILL);
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    out_fd = atoi(argv[1]);
    control = !strcmp(argv[2], "control");
    host_pid = atoi(argv[3]);
    image = argv[4];
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks && strcmp(argv[2], "stay"); i++) dprintf(out_fd, "%s %d\n", attacks[i].name, run(attacks[i].attack));
    dprintf(out_fd, "uid %d\n", (int)getuid());
    for (; !strcmp(argv[2], "stay");) pause();
    return 0;
}
