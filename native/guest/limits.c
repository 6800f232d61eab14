/* Limits that the kernel enforces without a notification: a full file system, a user's number of processes. They are found by polling:
 * after output (a refused program mostly reports it), now and then, and at the end. In the machine a fork that is refused is counted, by its leaf. */
#include "agent.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

enum { SELDOM_NS = 50000000, OFTEN_NS = 2000000, PAUSE_PER_COST = 20, LONGEST_PAUSE_NS = 200000000, NEARLY = 16, DISK_NEARLY = 1024 };

static const char *const places[] = {".", "dev/shm"}; /* all that a workload may write in */
static int place_fds[] = {-1, -1};

/* As soon as they are there, and before anything of the image could put others in their place. */
void limits_prepare(void)
{
    for (size_t i = 0; i < sizeof places / sizeof *places && !native_mode; i++)
        if (place_fds[i] < 0)
            place_fds[i] = openat(container.root, places[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* What is left of how much. Between the refusal and the look some may have gone again: the last part of it counts as none. */
static bool used_up(uint64_t left, uint64_t all, uint64_t nearly) { return all != 0 && left <= all / nearly; }

static bool disk_full(bool *soon)
{
    struct statvfs s;
    bool full = false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (place_fds[i] < 0 || fstatvfs(place_fds[i], &s) != 0)
            continue;
        full |= used_up(s.f_bavail, s.f_blocks, DISK_NEARLY) || used_up(s.f_ffree, s.f_files, DISK_NEARLY);
        *soon |= used_up(s.f_bavail, s.f_blocks, NEARLY) || used_up(s.f_ffree, s.f_files, NEARLY);
    }
    return full;
}

/* Threads count as processes do; zombies count until their parent has waited for them. */
static uint64_t workload_tasks(void)
{
    struct sysinfo info = {0};
    uint64_t own = leaders_count() + in_sentry, all = in_sentry ? (sysinfo(&info) == 0 ? info.procs : 0) : tree_tasks(container.proc);
    return all > own ? all - own : 0;
}

static bool processes_full(bool *soon)
{
    if (!contained_mode || container.processes == 0)
        return false;
    uint64_t tasks = workload_tasks(), most = container.processes;
    *soon = tasks > most / 2; /* a crowd can come and go between two looks */
    return tasks >= most || used_up(most - tasks, most, NEARLY);
}

static struct look { uint8_t flag; bool (*check)(bool *soon); bool full, soon; int64_t at_ns, cost_ns; } looks[] = {
    {.flag = FLAG_DISK, .check = disk_full},
    {.flag = FLAG_PROCESSES, .check = processes_full},
};
enum { LOOKS = sizeof looks / sizeof *looks };

/* Not more than a small part of the time is spent on it. A look that seems dear was mostly kept waiting, by a busy host: one such must not keep the eyes shut for long. */
static int64_t due_ns(const struct look *look, int64_t pause_ns)
{
    int64_t costly_ns = PAUSE_PER_COST * look->cost_ns;
    if (costly_ns > LONGEST_PAUSE_NS)
        costly_ns = LONGEST_PAUSE_NS;
    return look->at_ns + (pause_ns > costly_ns ? pause_ns : costly_ns);
}

uint8_t limits_now(void)
{
    uint8_t full = 0;
    for (int i = 0; i < LOOKS && !native_mode; i++) {
        int64_t now = now_ns();
        if (now >= due_ns(&looks[i], 0)) {
            looks[i].soon = false;
            looks[i].full = looks[i].check(&looks[i].soon);
            looks[i].at_ns = now_ns(), looks[i].cost_ns = looks[i].at_ns - now;
        }
        full |= looks[i].full ? looks[i].flag : 0;
    }
    return full;
}

int limits_wait(void)
{
    int64_t now = now_ns(), next = now + SELDOM_NS;
    for (int i = 0; i < LOOKS; i++) {
        int64_t due = due_ns(&looks[i], looks[i].soon ? OFTEN_NS : SELDOM_NS);
        next = due < next ? due : next;
    }
    return next <= now ? 0 : (int)((next - now + 999999) / 1000000);
}
