/* The kernel's calls that a workload may not make. A table, not a list of what is allowed: the kernel in the guest is pinned, and what is newer than
 * LAST_KNOWN_CALL doesn't exist for the workload. The refused ones answer as they would to an ordinary user (EPERM) or an older kernel (ENOSYS).
 * This is the second wall: each of these also needs a right that the container's owner doesn't have. */
#include "agent.h"
#include "../seccomp.h"
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { NR_QUOTACTL_FD = 443, NR_MOUNT_SETATTR = 442, NR_STATMOUNT = 457, NR_LISTMOUNT = 458,
    NR_PIDFD_GETFD = 438, NR_PROCESS_MADVISE = 440 };

static const uint16_t refused[] = {
    /* mounts */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, NR_MOUNT_SETATTR,
    NR_STATMOUNT, NR_LISTMOUNT,
    /* namespaces */
    SYS_unshare, SYS_setns,
    /* kernel code, and machinery that was a way in before */
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_fanotify_init, SYS_lookup_dcookie,
    SYS_move_pages, SYS_migrate_pages, SYS_vhangup,
    /* the machine */
    SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, NR_QUOTACTL_FD, SYS_syslog, SYS_nfsservctl, SYS_open_by_handle_at,
    SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS__sysctl, SYS_sysfs, SYS_ustat, SYS_uselib, SYS_create_module, SYS_get_kernel_syms, SYS_query_module,
#endif
};

static const uint32_t refused_ioctls[] = {0x5412 /* TIOCSTI */, 0x541C /* TIOCLINUX */, 0x5423 /* TIOCSETD */,
    0x8901 /* FIOSETOWN */, 0x8902 /* SIOCSPGRP: see owner_rules */};
static const uint32_t allowed_families[] = {AF_UNSPEC, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET};
static const uint32_t allowed_personalities[] = {0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF};

/* The last of those refused, and any personality: for debuggers, where CONFIG says so. Each needs the right to trace its target. */
static const uint16_t of_debuggers[] = {SYS_kcmp, NR_PIDFD_GETFD, NR_PROCESS_MADVISE};
static bool for_debuggers;

void seccomp_for_debuggers(bool open) { for_debuggers = open; }

enum { MAX_CODE = 320 };
static struct sock_filter code[MAX_CODE];
static uint16_t length;

static void emit(uint16_t op, uint32_t k, uint8_t yes, uint8_t no)
{
    if (length < MAX_CODE)
        code[length++] = (struct sock_filter){.code = op, .jt = yes, .jf = no, .k = k};
}

static void load(size_t offset) { emit(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0); }
static void answer(uint32_t action) { emit(BPF_RET | BPF_K, action, 0, 0); }
static void answer_errno(int error) { answer(SECCOMP_RET_ERRNO | (uint32_t)error); }

/* For one call: the 32 bits of an argument that the kernel itself looks at are in `list` or not; that decides between allow and `error`. */
static void by_argument(uint32_t nr, int argument, const uint32_t *list, uint8_t n, bool in_list_allowed, int error)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, (uint8_t)(n + 3));
    load(offsetof(struct seccomp_data, args) + 8 * (size_t)argument);
    for (uint8_t i = 0; i < n; i++)
        emit(BPF_JMP | BPF_JEQ | BPF_K, list[i], (uint8_t)(n - i), 0);
    if (in_list_allowed) {
        answer_errno(error);
        answer(SECCOMP_RET_ALLOW);
    } else {
        answer(SECCOMP_RET_ALLOW);
        answer_errno(error);
    }
}

/* Of netlink, routes only. Libraries that ask for the kernel's audit take this answer for a kernel without, and EPERM for a fault. */
static void netlink_rules(void)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 6);
    load(offsetof(struct seccomp_data, args));
    emit(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 3);
    load(offsetof(struct seccomp_data, args) + 16);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0 /* NETLINK_ROUTE */, 1, 0);
    answer_errno(EPROTONOSUPPORT);
    load(offsetof(struct seccomp_data, nr));
}

/* Of the internet's protocols TCP, UDP and ping; raw sockets need a right. MPTCP, UDP-Lite, SCTP and DCCP are little used, and were a way in before. */
static void internet_rules(void)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 14);
    load(offsetof(struct seccomp_data, args));
    emit(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 1, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 10);
    load(offsetof(struct seccomp_data, args) + 8);
    emit(BPF_ALU | BPF_AND | BPF_K, 0xF, 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, SOCK_RAW, 7, 0);
    load(offsetof(struct seccomp_data, args) + 16);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 5, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_TCP, 4, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_UDP, 3, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_ICMP, 2, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_ICMPV6, 1, 0);
    answer_errno(EPROTONOSUPPORT);
    load(offsetof(struct seccomp_data, nr));
}

/* No device is made: Linux refuses it anyhow, gVisor lets any process make and open its own. */
static void device_rules(uint32_t nr, int argument)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 6);
    load(offsetof(struct seccomp_data, args) + 8 * (size_t)argument);
    emit(BPF_ALU | BPF_AND | BPF_K, S_IFMT, 0, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, S_IFCHR, 1, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, S_IFBLK, 0, 1);
    answer_errno(EPERM);
    load(offsetof(struct seccomp_data, nr));
}

static void clone_rules(void)
{
    emit(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    load(offsetof(struct seccomp_data, args));
    emit(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1);
    answer_errno(EPERM);
    answer(SECCOMP_RET_ALLOW);
    emit(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1); /* its flags are in memory, where a filter can't look: libc falls back to clone */
    answer_errno(ENOSYS);
}

/* A descriptor's owner is sent any signal that its holder chooses (F_SETSIG) when there is input (O_ASYNC). F_SETOWN_EX and two ioctls have the owner in
 * memory, where a filter can't look. -1 is process 1's group. Linux discards such a signal to process 1, gVisor's kernel ends it. */
static void owner_rules(void)
{
    enum { SETOWN = 8, SETOWN_EX = 15 };
    emit(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 8);
    load(offsetof(struct seccomp_data, args) + 8);
    emit(BPF_JMP | BPF_JEQ | BPF_K, SETOWN_EX, 5, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, SETOWN, 0, 3);
    load(offsetof(struct seccomp_data, args) + 16);
    emit(BPF_JMP | BPF_JEQ | BPF_K, 1, 2, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, UINT32_MAX, 1, 0);
    answer(SECCOMP_RET_ALLOW);
    answer_errno(EPERM);
}

/* Linux discards a signal from inside to a process 1 that has no handler for it. gVisor delivers it, and the cell would end of it. */
static void spare_process_1(void)
{
    static const uint16_t calls[] = {SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_open};
    static const uint32_t process_1[] = {1};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        by_argument(calls[i], 0, process_1, 1, false, EPERM);
}

/* gVisor's file server says EBADF for these on a link, at which `ls -l` complains; this is what a file system without attributes says. */
static void deny_link_attributes(void)
{
    static const uint16_t calls[] = {SYS_lgetxattr, SYS_llistxattr};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        emit(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        answer_errno(EOPNOTSUPP);
    }
}

static void build(void)
{
    load(offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(struct seccomp_data, nr));
    emit(BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN_CALL, 0, 1); /* x32 too: its numbers begin at 0x40000000 */
    answer_errno(ENOSYS);
    clone_rules();
    if (in_sentry && !service_runs()) /* beside a service's program, that is process 1 */
        spare_process_1();
    if (in_sentry)
        deny_link_attributes();
    owner_rules();
    netlink_rules();
    internet_rules();
#ifdef SYS_mknod
    device_rules(SYS_mknod, 1);
#endif
    device_rules(SYS_mknodat, 2);
    by_argument(SYS_ioctl, 1, refused_ioctls, sizeof refused_ioctls / sizeof *refused_ioctls, false, EPERM);
    by_argument(SYS_socket, 0, allowed_families, sizeof allowed_families / sizeof *allowed_families, true, EAFNOSUPPORT);
    if (!for_debuggers) {
        by_argument(SYS_personality, 0, allowed_personalities, sizeof allowed_personalities / sizeof *allowed_personalities, true, EPERM);
        for (size_t i = 0; i < sizeof of_debuggers / sizeof *of_debuggers; i++) {
            emit(BPF_JMP | BPF_JEQ | BPF_K, of_debuggers[i], 0, 1);
            answer_errno(EPERM);
        }
    }
    const uint8_t n = sizeof refused / sizeof *refused;
    for (uint8_t i = 0; i < n; i++)
        emit(BPF_JMP | BPF_JEQ | BPF_K, refused[i], (uint8_t)(n - i), 0);
    answer(SECCOMP_RET_ALLOW);
    answer_errno(EPERM);
}

int seccomp_install(void)
{
    if (length == 0)
        build();
    if (length == MAX_CODE)
        return EINVAL;
    struct sock_fprog program = {.len = length, .filter = code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0 ? errno : 0;
}
