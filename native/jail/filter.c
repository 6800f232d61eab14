/* The system-call filters. First: what neither a VMM nor a compromised one has a use for. It stands beneath the VMM's own filter, from before its
 * first instruction, and is inherited by whatever it would start.
 *
 * Denied with EPERM rather than with death: a library that merely asks goes on. clone3 hides its flags behind a pointer, so it "does not exist" and the C
 * library falls back to clone, whose flags are checked. */
#define _GNU_SOURCE
#include "../seccomp.h"
#include "jail.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* The limit of core dumps stays what it was made before: at 1 the kernel starts no program for them, at 0 it may, as the host's root. Reading it is allowed. */
#define KEEP_CORE_LIMIT \
    IS(SYS_setrlimit, 0, 4), LOAD(args[0]), IS(RLIMIT_CORE, 0, 1), RETURN(SECCOMP_RET_ERRNO | EPERM), RETURN(SECCOMP_RET_ALLOW), \
    IS(SYS_prlimit64, 0, 8), LOAD(args[1]), IS(RLIMIT_CORE, 0, 5), LOAD(args[2]), IS(0, 0, 2), LOAD_UPPER(args[2]), IS(0, 1, 0), \
    RETURN(SECCOMP_RET_ERRNO | EPERM), RETURN(SECCOMP_RET_ALLOW)

static struct sock_filter vmm_filter[] = {
    CHECK_ARCH(SECCOMP_RET_KILL_PROCESS),
#if defined(__x86_64__)
    /* The x32 numbers would walk around the list. */
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
    RETURN(SECCOMP_RET_KILL_PROCESS),
#endif
    /* What is newer than this list "does not exist": nothing here was checked for it. */
    BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN_CALL, 0, 1),
    RETURN(SECCOMP_RET_ERRNO | ENOSYS),
    /* namespaces and mounts (428 to 433 and 442: open_tree … fspick, mount_setattr; the same on every architecture) */
    DENY(SYS_unshare), DENY(SYS_setns), DENY(SYS_mount), DENY(SYS_umount2), DENY(SYS_pivot_root), DENY(SYS_chroot),
    DENY(428), DENY(429), DENY(430), DENY(431), DENY(432), DENY(433), DENY(442),
    DENY(457 /* statmount: it tells host paths */), DENY(458 /* listmount */),
    /* other processes, tracing, measuring */
    DENY(SYS_ptrace), DENY(SYS_process_vm_readv), DENY(SYS_process_vm_writev), DENY(SYS_kcmp), DENY(SYS_perf_event_open), DENY(SYS_bpf),
    DENY(434 /* pidfd_open */), DENY(438 /* pidfd_getfd */), DENY(440 /* process_madvise */),
    /* the kernel's wider doors */
    DENY(SYS_init_module), DENY(SYS_finit_module), DENY(SYS_delete_module), DENY(SYS_kexec_load), DENY(SYS_reboot), DENY(SYS_swapon), DENY(SYS_swapoff),
    DENY(SYS_userfaultfd), ABSENT(425 /* io_uring_setup */), ABSENT(426), ABSENT(427), DENY(SYS_open_by_handle_at), DENY(SYS_name_to_handle_at),
    DENY(SYS_fanotify_init), DENY(SYS_quotactl), DENY(SYS_acct), DENY(SYS_syslog), DENY(SYS_personality), DENY(SYS_lookup_dcookie),
    DENY(SYS_keyctl), DENY(SYS_add_key), DENY(SYS_request_key),
#if defined(__x86_64__)
    DENY(SYS_kexec_file_load), DENY(SYS_iopl), DENY(SYS_ioperm), DENY(SYS_modify_ldt),
#endif
    /* no socket is ever made or found: those in use were given */
    DENY(SYS_socket), DENY(SYS_connect), DENY(SYS_bind), DENY(SYS_listen),
    /* clocks and names */
    DENY(SYS_settimeofday), DENY(SYS_clock_settime), DENY(SYS_adjtimex), DENY(SYS_clock_adjtime), DENY(SYS_sethostname), DENY(SYS_setdomainname),
    KEEP_CORE_LIMIT,
    /* outliving the supervisor */
    IS(SYS_prctl, 0, 4),
    LOAD(args[0]),
    IS(PR_SET_PDEATHSIG, 0, 1),
    RETURN(SECCOMP_RET_ERRNO | EPERM),
    RETURN(SECCOMP_RET_ALLOW),
    /* typing into a terminal */
    IS(SYS_ioctl, 0, 4),
    LOAD(args[1]),
    IS(TIOCSTI, 0, 1),
    RETURN(SECCOMP_RET_ERRNO | EPERM),
    RETURN(SECCOMP_RET_ALLOW),
    ABSENT(435 /* clone3 */),
    IS(SYS_clone, 0, 3),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1),
    RETURN(SECCOMP_RET_ERRNO | EPERM),
    RETURN(SECCOMP_RET_ALLOW),
};

/* For an OCI runtime, and so beneath all that it starts: namespaces and mounts are its trade, so it keeps these. Nothing kills here: gVisor's own filter sees
 * each call of its guest, of whatever architecture or number, and answers it (a trap takes precedence over an error, and death over both). */
static struct sock_filter runtime_filter[] = {
    CHECK_ARCH(SECCOMP_RET_ERRNO | ENOSYS),
    /* also x32's numbers, which would walk around the list */
    BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN_CALL, 0, 1),
    RETURN(SECCOMP_RET_ERRNO | ENOSYS),
    DENY(SYS_perf_event_open), DENY(SYS_bpf), DENY(SYS_userfaultfd), ABSENT(425 /* io_uring_setup */), ABSENT(426), ABSENT(427),
    DENY(SYS_init_module), DENY(SYS_finit_module), DENY(SYS_delete_module), DENY(SYS_kexec_load), DENY(SYS_reboot), DENY(SYS_swapon), DENY(SYS_swapoff),
    DENY(SYS_open_by_handle_at), DENY(SYS_fanotify_init), DENY(SYS_quotactl), DENY(SYS_acct), DENY(SYS_syslog), DENY(SYS_lookup_dcookie),
    DENY(SYS_add_key), DENY(SYS_request_key),
#if defined(__x86_64__)
    DENY(SYS_kexec_file_load), DENY(SYS_iopl), DENY(SYS_ioperm), DENY(SYS_modify_ldt),
#endif
    DENY(SYS_settimeofday), DENY(SYS_clock_settime), DENY(SYS_adjtimex), DENY(SYS_clock_adjtime),
    KEEP_CORE_LIMIT,
    IS(SYS_ioctl, 0, 4),
    LOAD(args[1]),
    IS(TIOCSTI, 0, 1),
    RETURN(SECCOMP_RET_ERRNO | EPERM),
    RETURN(SECCOMP_RET_ALLOW),
    RETURN(SECCOMP_RET_ALLOW),
};

static struct sock_filter init_filter[] = {
    CHECK_ARCH(SECCOMP_RET_KILL_PROCESS),
    ALLOW(SYS_wait4), ALLOW(SYS_write), ALLOW(SYS_close), ALLOW(SYS_exit_group), ALLOW(SYS_restart_syscall), ALLOW(SYS_rt_sigreturn),
    RETURN(SECCOMP_RET_ERRNO | EPERM),
};

static void install(struct sock_filter *rules, size_t count) {
    struct sock_fprog filter = {(unsigned short)count, rules};
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0), "filter");
}

void install_filter(void) { install(vmm_filter, sizeof vmm_filter / sizeof *vmm_filter); }

void install_runtime_filter(void) { install(runtime_filter, sizeof runtime_filter / sizeof *runtime_filter); }

void install_init_filter(void) { install(init_filter, sizeof init_filter / sizeof *init_filter); }
