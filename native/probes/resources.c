/* Limits: each attempt goes a little over the one it was told. */
#include "probe.h"
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* One descriptor numbered as the limit itself is one too many. */
static void open_files(struct finding *f)
{
    struct rlimit limit;
    long long most = needed_number(f, "open_files");
    if (most < 0)
        return;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, (int)most);
    if (fd >= 0)
        reached(f, "descriptor %d is open", fd);
    else
        denied(f, "descriptor %lld: %s", most, errno_name(errno));
    if (fd >= 0)
        close(fd);
}

static void raise_limits(struct finding *f)
{
    static const struct { int which; const char *name; } LIMITS[] = {{RLIMIT_NOFILE, "open files"}, {RLIMIT_NPROC, "processes"}, {RLIMIT_MEMLOCK, "locked memory"}};
    struct rlimit limit;
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++) {
        if (getrlimit(LIMITS[i].which, &limit) != 0 || limit.rlim_max == RLIM_INFINITY)
            continue;
        limit.rlim_max++;
        permitted(f, LIMITS[i].name, setrlimit(LIMITS[i].which, &limit));
    }
    absent(f, "they are bounded by the host alone");
}

enum { MARGIN = 64, MOST_PROCESSES = 8192, STACK_BYTES = 1024 };

static int wait_for_the_end(void *unused)
{
    (void)unused;
    for (;;)
        pause();
}

/* Their memory is ours: in gVisor hundreds with memory of their own take all that the cell has before the limit that is tried. */
static pid_t start_waiting(long long number)
{
    static char stacks[MOST_PROCESSES + MARGIN][STACK_BYTES] __attribute__((aligned(16)));
    return clone(wait_for_the_end, stacks[number] + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
}

static void end_all(const pid_t *pids, long long count)
{
    for (long long i = 0; i < count; i++)
        kill(pids[i], SIGKILL);
    for (long long i = 0; i < count; i++)
        waitpid(pids[i], NULL, 0);
}

/* They wait until they are ended. */
static void processes(struct finding *f)
{
    static pid_t pids[MOST_PROCESSES + MARGIN];
    long long most = needed_number(f, "processes"), made = 0;
    if (most < 0)
        return;
    if (most > MOST_PROCESSES) {
        failed(f, "more than %d would be too many to try", MOST_PROCESSES);
        return;
    }
    for (; made < most + MARGIN; made++) {
        pid_t pid = start_waiting(made);
        if (pid < 0)
            break;
        pids[made] = pid;
    }
    int error = errno;
    end_all(pids, made);
    if (made == most + MARGIN)
        reached(f, "%lld processes at once, where %lld are allowed", made, most);
    else
        denied(f, "process %lld: %s", made + 1, errno_name(error));
}

static int unnamed_file(void)
{
    char path[64];
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || scratch_directory(path) != 0)
        return fd;
    rmdir(path);
    fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    unlink(path);
    return fd;
}

static bool fills(int fd, long long bytes)
{
    static char chunk[1 << 18];
    if (fallocate(fd, 0, 0, bytes) == 0)
        return true;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return false;
    for (long long done = 0; done < bytes; done += (long long)sizeof chunk)
        if (write(fd, chunk, sizeof chunk) != (ssize_t)sizeof chunk)
            return false;
    return true;
}

static void disk(struct finding *f)
{
    enum { MORE = 1 << 20 };
    long long most = needed_number(f, "disk_bytes");
    if (most < 0)
        return;
    int fd = unnamed_file();
    if (fd < 0)
        refused(f, "a file");
    else if (fills(fd, most + MORE))
        reached(f, "a file of %lld bytes, where %lld are allowed", most + MORE, most);
    else
        denied(f, "%lld bytes: %s", most + MORE, errno_name(errno));
    if (fd >= 0)
        close(fd);
}

static void terminals(struct finding *f)
{
    enum { MOST = 1024 };
    static int opened[MOST + 1];
    long long most = needed_number(f, "terminals"), made = 0;
    if (most < 0 || !same_kernel(f))
        return;
    for (; made <= most && made <= MOST; made++)
        if ((opened[made] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0)
            break;
    int error = errno;
    for (long long i = 0; i < made; i++)
        close(opened[i]);
    if (made > most)
        reached(f, "%lld terminals, where %lld are allowed", made, most);
    else
        denied(f, "terminal %lld: %s", made + 1, errno_name(error));
}

/* Where devices are, files would be in memory that no limit of the disk counts. */
static void device_files(struct finding *f)
{
    enum { MOST = 2 << 20 };
    static const char path[] = "/dev/.t";
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        refused(f, path);
    else if (fills(fd, MOST))
        reached(f, "a file of %d bytes in /dev", MOST);
    else
        denied(f, "%s: %s", path, errno_name(errno));
    if (fd >= 0)
        close(fd), unlink(path);
}

enum { NO_PATTERN = '\n', UNKNOWN_PATTERN = '|' };

/* How the kernel's pattern begins. An empty one, or none, is a kernel that hands cores to nobody; one that can't be read is taken for a program's. */
static char core_pattern(void)
{
    char first = NO_PATTERN;
    int fd = open("/proc/sys/kernel/core_pattern", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? NO_PATTERN : UNKNOWN_PATTERN;
    if (read(fd, &first, 1) < 0)
        first = UNKNOWN_PATTERN;
    close(fd);
    return first;
}

/* Lowers the limit from 1 by one call or the other; whether that worked, with everything as before. */
static bool lowers_core_limit(bool by_setrlimit)
{
    struct rlimit none = {0, 1}, one = {1, 1}, now;
    if (by_setrlimit)
        syscall(SYS_setrlimit, RLIMIT_CORE, &none);
    else
        syscall(SYS_prlimit64, 0, RLIMIT_CORE, &none, NULL);
    bool lowered = getrlimit(RLIMIT_CORE, &now) != 0 || now.rlim_cur != 1;
    setrlimit(RLIMIT_CORE, &one);
    return lowered;
}

/* A core goes to a program of the host's choice, started as the host's root. A limit of one byte is none for a file, and the kernel's word for "no pipe either": at 0 it
 * would start the program. */
static void core_files(struct finding *f)
{
    struct rlimit limit;
    char pattern = core_pattern();
    if (getrlimit(RLIMIT_CORE, &limit) != 0)
        failed(f, "getrlimit: %s", errno_name(errno));
    else if (limit.rlim_max > 1)
        reached(f, "a crash may leave a core");
    else if (pattern == NO_PATTERN)
        denied(f, "the kernel has no pattern for cores");
    else if (limit.rlim_max == 0 && pattern != '|')
        denied(f, "no cores, and the pattern is a file's");
    else if (limit.rlim_cur != 1 || lowers_core_limit(false) || lowers_core_limit(true))
        reached(f, "the limit of cores can be 0, at which a program may be started for them");
    else
        denied(f, "no cores, and the limit stays");
}

static void priority(struct finding *f)
{
    errno = 0;
    int now = getpriority(PRIO_PROCESS, 0);
    if (setpriority(PRIO_PROCESS, 0, now - 1) == 0 && getpriority(PRIO_PROCESS, 0) == now - 1)
        reached(f, "a priority of %d, from %d", now - 1, now);
    else
        denied(f, "setpriority: %s", errno_name(errno));
}

static void real_time(struct finding *f)
{
    struct sched_param wanted = {.sched_priority = 1};
    long result = syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &wanted);
    if (result == 0)
        reached(f, "runs before everything else");
    else
        denied(f, "sched_setscheduler: %s", errno_name(errno));
}

static bool sets_score(const char *path, const char *value)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, value, strlen(value)) == (ssize_t)strlen(value);
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return done;
}

/* Below what a process has that nobody cares for: others would be killed for this cell's memory. */
static void killed_last(struct finding *f)
{
    static const char path[] = "/proc/self/oom_score_adj";
    char before[16];
    if (read_text(path, before, sizeof before) <= 0) {
        refused(f, path);
        return;
    }
    if (!sets_score(path, "-1\n")) {
        refused(f, path);
        return;
    }
    reached(f, "a score of -1, from %d", atoi(before));
    sets_score(path, before);
}

const struct probe resource_probes[] = {
    {"resources.open_files", open_files, APART},
    {"resources.raise_limits", raise_limits, APART},
    {"resources.processes", processes, APART},
    {"resources.disk", disk, APART},
    {"resources.terminals", terminals, APART},
    {"resources.device_files", device_files, 0},
    {"resources.core_files", core_files, QUICK},
    {"resources.priority", priority, APART},
    {"resources.real_time", real_time, APART},
    {"resources.killed_last", killed_last, 0},
    {NULL, NULL, 0},
};
