/* What an operation's process gives up before it runs anything of the image, in this order: groups and ids, the bounding set, capabilities, new
 * privileges, most of the kernel's calls. */
#include "agent.h"
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define CAP(c) (UINT64_C(1) << (c))

/* What a container's root usually has. All of it counts in the container's user namespace only. */
static const uint64_t ROOT_CAPABILITIES = CAP(CAP_CHOWN) | CAP(CAP_DAC_OVERRIDE) | CAP(CAP_FSETID) | CAP(CAP_FOWNER) | CAP(CAP_MKNOD) | CAP(CAP_NET_RAW) |
    CAP(CAP_SETGID) | CAP(CAP_SETUID) | CAP(CAP_SETFCAP) | CAP(CAP_SETPCAP) | CAP(CAP_NET_BIND_SERVICE) | CAP(CAP_SYS_CHROOT) | CAP(CAP_KILL) |
    CAP(CAP_AUDIT_WRITE);

/* What the workload's root may have, and what is left in the bounding set. Contained, both are what the runtime gave of the list. */
static uint64_t of_root = ROOT_CAPABILITIES, bounded = UINT64_MAX;

/* Which capabilities CONFIG can add, whatever it says: only in the machine, where the agent's memory belongs to a user namespace in which the workload has none.
 * Contained, the agent shares the workload's, and the one that reaches nothing of the agent's is the runtime's to give. */
static const uint64_t GRANTABLE = CAP(CAP_SYS_PTRACE) | CAP(CAP_DAC_READ_SEARCH) | CAP(CAP_NET_ADMIN);

void confine_grant(uint64_t capabilities)
{
    if (in_machine())
        of_root = ROOT_CAPABILITIES | (capabilities & GRANTABLE);
}

/* Whether set-user-ID programs gain their owner's rights, as root of the container has them: only in the machine, whose kernel is the cell's own.
 * Without no-new-privileges the filter is installed by a process that may, before it gives its capabilities up. */
static bool setuid_works;

void confine_setuid(bool works) { setuid_works = works && in_machine(); }

static int set_capabilities(uint64_t set)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {
        {.effective = (uint32_t)set, .permitted = (uint32_t)set},
        {.effective = (uint32_t)(set >> 32), .permitted = (uint32_t)(set >> 32)},
    };
    return syscall(SYS_capset, &header, data) != 0 ? errno : 0;
}

static int drop_bounding(uint64_t keep)
{
    for (int c = 0; c < 64; c++) {
        if (keep & CAP(c) || !(bounded & CAP(c)))
            continue;
        if (prctl(PR_CAPBSET_DROP, c, 0, 0, 0) != 0) {
            if (errno == EINVAL)
                return 0; /* past the kernel's last capability */
            return native_mode ? 0 : errno; /* an ordinary user has none to drop */
        }
    }
    return 0;
}

/* Raw calls: musl's wrappers synchronise threads there aren't. */
static int set_ids(const struct user *user)
{
    if (native_mode && geteuid() != 0)
        return user->uid == geteuid() ? 0 : EPERM;
    if (syscall(SYS_setgroups, (size_t)user->group_count, user->groups) != 0)
        return errno;
    if (syscall(SYS_setresgid, user->gid, user->gid, user->gid) != 0)
        return errno;
    return syscall(SYS_setresuid, user->uid, user->uid, user->uid) != 0 ? errno : 0;
}

static int keep_over_setuid(void) { return prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0 ? errno : 0; }

/* For a process of our own that needs no rights at all. The bounding set goes first: dropping it is itself a right. */
int become_nobody(uid_t id)
{
    int error = drop_bounding(0);
    if (error == 0 && (syscall(SYS_setgroups, (size_t)0, NULL) != 0 || syscall(SYS_setresgid, id, id, id) != 0 || syscall(SYS_setresuid, id, id, id) != 0))
        error = errno;
    if (error == 0)
        error = set_capabilities(0);
    if (error == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        error = errno;
    return error != 0 ? error : seccomp_install();
}

static uint64_t own_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    return syscall(SYS_capget, &header, data) != 0 ? 0 : data[0].permitted | (uint64_t)data[1].permitted << 32;
}

/* Fewer calls for every operation. Device nodes are the runtime's to make, not the workload's. */
void confine_prepare(void)
{
    uint64_t own = own_capabilities();
    of_root = ((ROOT_CAPABILITIES & ~CAP(CAP_MKNOD)) | CAP(CAP_NET_ADMIN)) & own;
    if (drop_bounding(of_root) != 0)
        fatal("bounding set", errno);
    bounded = of_root;
}

/* Contained: the right to make namespaces is this process's alone, and no leader's. */
int confine_without_mounts(void) { return set_capabilities(own_capabilities() & ~CAP(CAP_SYS_ADMIN)); }

int confine_leader(void) { return !setuid_works && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ? errno : seccomp_install(); }

static bool filtered;

int confine_early(void)
{
    filtered = true;
    return confine_leader();
}

/* Contained, this bounds the user's processes; elsewhere the operation's control group does. Set as the user, so that processes which the user already has stop no execve. */
static int limit_processes(bool root)
{
    rlim_t n = container.processes + (root ? container.own_processes : 0);
    struct rlimit most = {n, n};
    return contained_mode && container.processes != 0 && setrlimit(RLIMIT_NPROC, &most) != 0 ? errno : 0;
}

/* To what a command of the container's root is: its ids, and of this process's rights those that it has. */
int confine_to_root(void)
{
    static const struct user root = {.groups = {0}, .group_count = 1};
    int error = native_mode ? 0 : setuid_works && !filtered ? confine_early() : 0;
    if (error == 0 && !native_mode)
        error = set_ids(&root);
    return native_mode || error != 0 ? error : set_capabilities(of_root & own_capabilities());
}

int confine(const struct user *user)
{
    bool root = user->uid == 0, setuid = setuid_works && filtered;
    int error = drop_bounding(root || setuid ? of_root : 0);
    if (error == 0)
        error = keep_over_setuid();
    if (error == 0)
        error = set_ids(user);
    if (error == 0 && !(native_mode && geteuid() != 0 && root))
        error = set_capabilities(root ? of_root : 0);
    if (error == 0 && (prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) != 0 || (!setuid && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)))
        error = errno;
    if (error == 0)
        error = limit_processes(root);
    return error != 0 || contained_mode || filtered ? error : seccomp_install(); /* a leader's child has its leader's filter */
}
