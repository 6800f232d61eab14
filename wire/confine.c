/* After the last thing that needs a right. Who takes this process over, by a frame, can do with two sockets what it does itself, and nothing else. */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#define NR_POLL SYS_poll
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#define NR_POLL SYS_ppoll
#else
#error "this architecture has no filter yet"
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), RETURN(SECCOMP_RET_ALLOW)

static struct sock_filter rules[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
    RETURN(SECCOMP_RET_KILL_PROCESS),
    LOAD(nr),
    ALLOW(NR_POLL), ALLOW(SYS_recvfrom), ALLOW(SYS_sendto), ALLOW(SYS_exit_group), ALLOW(SYS_restart_syscall), ALLOW(SYS_rt_sigreturn),
    RETURN(SECCOMP_RET_KILL_PROCESS),
};

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities");
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        must(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), "bounding set");
    must((int)syscall(SYS_capset, &header, none), "capabilities");
}

void confine(void)
{
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    drop_capabilities();
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no-new-privileges");
    must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0), "filter");
}
