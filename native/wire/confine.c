/* After the last thing that needs a right. If a frame compromises this process, it can do with two sockets what it does itself, and nothing else. */
#define _GNU_SOURCE
#include "../seccomp.h"
#include "wire.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef SYS_poll
#define NR_POLL SYS_poll
#else
#define NR_POLL SYS_ppoll
#endif

static struct sock_filter rules[] = {
    CHECK_ARCH(SECCOMP_RET_KILL_PROCESS),
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
