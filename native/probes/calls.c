/* System calls that act on the whole machine, or that were a way into the kernel. Arguments that can't work tell a permission without using it. */
#include "probe.h"
#include <linux/bpf.h>
#include <linux/fanotify.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <sys/uio.h>

enum { NR_IO_URING_SETUP = 425 };

static void gives_descriptor(struct finding *f, const char *what, long fd)
{
    permitted(f, what, fd);
    if (fd >= 0)
        close((int)fd);
}

/* An empty image: no kernel takes it. */
static void modules(struct finding *f)
{
    permitted(f, "finit_module", syscall(SYS_finit_module, -1, "", 0));
    permitted(f, "init_module", syscall(SYS_init_module, NULL, 0UL, ""));
}

/* Flags that don't exist: no kernel is loaded, and the one that is stays. */
static void kexec(struct finding *f)
{
    permitted(f, "kexec_load", syscall(SYS_kexec_load, 0UL, 0UL, NULL, 0xffffUL));
#ifdef SYS_kexec_file_load
    permitted(f, "kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0UL, NULL, 0xffffUL));
#endif
}

static void bpf(struct finding *f)
{
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    long fd = syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map);
    if (fd >= 0) {
        reached(f, "made a map");
        close((int)fd);
    } else {
        refused(f, "bpf");
    }
}

static void measure(struct finding *f, int pid, int cpu)
{
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_CPU_CLOCK, .disabled = 1};
    long fd = syscall(SYS_perf_event_open, &event, pid, cpu, -1, 0UL);
    if (fd < 0) {
        refused(f, "perf_event_open");
        return;
    }
    reached(f, "measures %s", pid == 0 ? "the kernel in this process" : "the whole machine");
    close((int)fd);
}

static void perf(struct finding *f)
{
    measure(f, 0, -1);
    measure(f, -1, 0);
}

static void userfaultfd(struct finding *f)
{
    enum { USER_MODE_ONLY = 1 };
    gives_descriptor(f, "userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC));
    gives_descriptor(f, "userfaultfd for user mode", syscall(SYS_userfaultfd, O_CLOEXEC | USER_MODE_ONLY));
}

static void io_uring(struct finding *f)
{
    unsigned char parameters[120] = {0};
    gives_descriptor(f, "io_uring_setup", syscall(NR_IO_URING_SETUP, 1U, parameters));
}

/* Its contexts are counted for the whole machine, whose other users then have none. */
static void aio(struct finding *f)
{
    unsigned long context = 0;
    if (!same_kernel(f))
        return;
    if (syscall(SYS_io_setup, 1U, &context) != 0) {
        refused(f, "io_setup");
        return;
    }
    reached(f, "made a context");
    syscall(SYS_io_destroy, context);
}

/* Whether pages of a file that other cells have too are in memory, which one of them may have brought about. */
static void page_cache(struct finding *f)
{
    enum { NOWAIT = 8, NR_CACHESTAT = 451 };
    struct { uint64_t offset, length; } range = {0, 4096};
    uint64_t found[5];
    unsigned char resident;
    char byte;
    struct iovec one = {&byte, 1};
    if (!same_kernel(f))
        return;
    int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        refused(f, "/etc/passwd");
        return;
    }
    void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED && mincore(map, 4096, &resident) == 0)
        reached(f, "mincore answers");
    else
        refused(f, "mincore");
    if (preadv2(fd, &one, 1, 0, NOWAIT) >= 0 || errno == EAGAIN)
        reached(f, "preadv2 tells what must be waited for");
    else
        refused(f, "preadv2");
    if (syscall(NR_CACHESTAT, fd, &range, found, 0U) == 0)
        reached(f, "cachestat answers");
    else
        refused(f, "cachestat");
    if (map != MAP_FAILED)
        munmap(map, 4096);
    close(fd);
}

static void other_processes(struct finding *f)
{
    enum { NR_PIDFD_GETFD = 438, NR_PROCESS_MADVISE = 440 };
    const char *granted = needed(f, "debugger_calls");
    if (granted == NULL)
        return;
    if (granted[0] == '1') { /* then what counts is whether they reach anything: see channel and processes */
        denied(f, "granted by the plan");
        return;
    }
    permitted(f, "kcmp", syscall(SYS_kcmp, getpid(), getpid(), 0xffff, 0UL, 0UL));
    permitted(f, "pidfd_getfd", syscall(NR_PIDFD_GETFD, -1, 0, 0U));
    permitted(f, "process_madvise", syscall(NR_PROCESS_MADVISE, -1, NULL, 0UL, 0, 0U));
}

static void keys(struct finding *f)
{
    enum { PROCESS_KEYRING = -2 };
    permitted(f, "add_key", syscall(SYS_add_key, "user", "k", "v", 1UL, PROCESS_KEYRING));
}

/* It outlives every process, for days. */
static void persistent_keys(struct finding *f)
{
    enum { GET_PERSISTENT = 22, PROCESS_KEYRING = -2 };
    long key = syscall(SYS_keyctl, GET_PERSISTENT, -1, PROCESS_KEYRING);
    if (key >= 0)
        reached(f, "linked keyring %ld", key);
    else
        denied(f, "keyctl: %s", errno_name(errno));
}

static void rare_sockets(struct finding *f)
{
    static const struct { int family, type, protocol; const char *name; } KINDS[] = {
        {38, SOCK_SEQPACKET, 0, "AF_ALG"}, {15, SOCK_RAW, 2, "AF_KEY"}, {30, SOCK_SEQPACKET, 0, "AF_TIPC"}, {21, SOCK_SEQPACKET, 0, "AF_RDS"},
        {29, SOCK_RAW, 1, "AF_CAN"}, {31, SOCK_RAW, 1, "AF_BLUETOOTH"}, {9, SOCK_SEQPACKET, 0, "AF_X25"}, {41, SOCK_DGRAM, 0, "AF_KCM"},
        {2, SOCK_STREAM, 262, "MPTCP"}, {2, SOCK_DGRAM, 136, "UDP-Lite"}, {2, SOCK_STREAM, 132, "SCTP"}, {43, SOCK_STREAM, 0, "AF_SMC"}, {44, SOCK_RAW, 0, "AF_XDP"}, {42, SOCK_DGRAM, 0, "AF_QIPCRTR"}, {27, SOCK_RAW, 0, "AF_IB"},
    };
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
        int s = socket(KINDS[i].family, KINDS[i].type | SOCK_CLOEXEC, KINDS[i].protocol);
        if (s >= 0) {
            reached(f, "%s socket", KINDS[i].name);
            close(s);
        } else {
            refused(f, KINDS[i].name);
        }
    }
}

/* The clock's status, read and written back. */
static void clock_set(struct finding *f)
{
    struct timex state = {.modes = 0};
    if (syscall(SYS_adjtimex, &state) < 0) {
        refused(f, "adjtimex");
        return;
    }
    state.modes = ADJ_STATUS;
    if (syscall(SYS_adjtimex, &state) >= 0)
        reached(f, "the clock can be steered");
    else
        refused(f, "adjtimex");
}

static void host_name(struct finding *f)
{
    char name[65] = "";
    if (gethostname(name, sizeof name - 1) == 0)
        permitted(f, "sethostname", sethostname(name, strlen(name)));
}

/* Wrong magic numbers: the permission is looked at first, and nothing ends. */
static void reboot_call(struct finding *f)
{
    permitted(f, "reboot", syscall(SYS_reboot, 0x1, 0x2, 0x3, NULL));
}

static void swap(struct finding *f)
{
    permitted(f, "swapon", syscall(SYS_swapon, "", 0));
}

static void accounting(struct finding *f)
{
    permitted(f, "acct", syscall(SYS_acct, "/dev/null/no"));
}

static void watch_files(struct finding *f)
{
    gives_descriptor(f, "fanotify_init", syscall(SYS_fanotify_init, FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY));
}

/* Only this process's own rights change, and it ends at once. */
static void ports(struct finding *f)
{
#ifdef __x86_64__
    permitted(f, "ioperm", syscall(SYS_ioperm, 0x80UL, 1UL, 1));
    permitted(f, "iopl", syscall(SYS_iopl, 3));
#else
    absent(f, "this architecture has none");
#endif
}

/* A filter that knows only the numbers of one architecture is walked around through another's. Harmless: getpid. */
static void foreign_calls(struct finding *f)
{
#ifdef __x86_64__
    enum { GETPID_OF_I386 = 20 };
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(GETPID_OF_I386) : "memory", "r8", "r9", "r10", "r11");
    if (answer == getpid())
        reached(f, "a 32-bit call went through");
    else
        denied(f, "a 32-bit call gave %ld", answer);
#else
    absent(f, "this program knows none for this architecture");
#endif
}

const struct probe call_probes[] = {
    {"kernel.modules", modules, QUICK},
    {"kernel.kexec", kexec, QUICK},
    {"kernel.bpf", bpf, QUICK},
    {"kernel.perf", perf, QUICK},
    {"kernel.userfaultfd", userfaultfd, QUICK},
    {"kernel.io_uring", io_uring, QUICK},
    {"kernel.aio", aio, QUICK},
    {"kernel.page_cache", page_cache, QUICK},
    {"kernel.other_processes", other_processes, QUICK},
    {"kernel.keys", keys, QUICK},
    {"kernel.persistent_keys", persistent_keys, QUICK},
    {"kernel.rare_sockets", rare_sockets, QUICK},
    {"kernel.clock", clock_set, QUICK},
    {"kernel.host_name", host_name, QUICK},
    {"kernel.reboot", reboot_call, QUICK},
    {"kernel.swap", swap, QUICK},
    {"kernel.accounting", accounting, QUICK},
    {"kernel.watch_files", watch_files, QUICK},
    {"kernel.ports", ports, APART},
    {"kernel.foreign_calls", foreign_calls, APART | SIGNAL_IS_NO},
    {NULL, NULL, 0},
};
