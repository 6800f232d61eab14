/* Which process is below which, from /proc: how a tree of processes is ended where there is no control group to ask. The kernel keeps orphans below the nearest
 * child subreaper, so below a leader is everything its operation ever started, whatever it called itself or did to its session. */
#include "agent.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>

enum { FIRST_ROOM = 256 };
struct process { pid_t pid, parent; bool wanted; };

static struct process *found;
static size_t count, room;
static uint32_t tasks;

static void keep(pid_t pid, pid_t parent)
{
    if (count == room) {
        room = room == 0 ? FIRST_ROOM : 2 * room;
        found = must_alloc(found, room * sizeof *found);
    }
    found[count++] = (struct process){.pid = pid, .parent = parent};
}

/* From the end of its name on: the 18th word is how many threads it has; one that has ended is still one. */
static uint32_t threads_of(const char *after)
{
    for (int words = 0; words < 18 && after != NULL; words++)
        after = strchr(after + 1, ' ');
    long n = after == NULL ? 0 : strtol(after, NULL, 10);
    return n > 0 ? (uint32_t)n : 1;
}

/* A process whose first thread has ended is shown as a zombie while its other threads run on. */
static bool has_ended(const char *after) { return after[2] == 'X' || (after[2] == 'Z' && threads_of(after) < 2); }

/* A process's name can hold anything, a bracket too; what comes after the last one is the kernel's. */
static void look_at(int proc, const char *name)
{
    char path[32], text[512], *end;
    long pid = strtol(name, &end, 10);
    if (*end != 0 || pid <= 1 || !format(path, sizeof path, "%s/stat", name) || read_at(proc, path, text, sizeof text) < 0)
        return;
    char *after = strrchr(text, ')');
    tasks += after == NULL ? 0 : threads_of(after);
    if (after == NULL || strlen(after) < 5 || has_ended(after))
        return; /* it has ended; its parent only has to wait for it */
    keep((pid_t)pid, (pid_t)strtol(after + 4, NULL, 10));
}

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return (x > y) - (x < y);
}

static void scan(int proc_dir)
{
    count = 0, tasks = 0;
    int fd = openat(proc_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *proc = fd < 0 ? NULL : fdopendir(fd);
    if (proc == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            look_at(proc_dir, entry->d_name);
    closedir(proc);
    qsort(found, count, sizeof *found, by_pid);
}

static bool below(pid_t parent, pid_t top)
{
    struct process key = {.pid = parent};
    if (parent == top)
        return true;
    struct process *it = count == 0 ? NULL : bsearch(&key, found, count, sizeof *found, by_pid);
    return it != NULL && it->wanted;
}

/* Parents mostly have the lower number, so that one round finds nearly all; another follows until nothing changes. */
static void mark(pid_t top, tree_filter *leave_out)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < count; i++)
            if (!found[i].wanted && below(found[i].parent, top) && (leave_out == NULL || !leave_out(found[i].pid)))
                changed = found[i].wanted = true;
    }
}

int tree_signal(int proc_dir, pid_t top, int signo, tree_filter *leave_out)
{
    int reached = 0;
    scan(proc_dir);
    mark(top, leave_out);
    for (size_t i = 0; i < count; i++)
        if (found[i].wanted && kill(found[i].pid, signo) == 0)
            reached++;
    return reached;
}

/* The tracer of a process that waits for it: one that has ended, whose parent isn't told before, or, if `stopped` counts, that stands still. 0: none. */
static pid_t waits_for(pid_t pid, bool stopped)
{
    char path[32], text[4096];
    format(path, sizeof path, "/proc/%d/status", (int)pid);
    const char *state = read_at(AT_FDCWD, path, text, sizeof text) > 0 ? strstr(text, "\nState:\t") : NULL;
    bool waits = state != NULL && (state[8] == 'Z' ? number_after(state, "\nThreads:\t") < 2 : stopped && (state[8] == 't' || state[8] == 'T'));
    return waits ? (pid_t)number_after(state, "\nTracerPid:\t") : 0;
}

void tree_end_tracer(struct op *op)
{
    enum { HELD_LOOKS = 4 };
    pid_t tracer = waits_for(op->pid, op->service);
    op->held = tracer > 1 ? op->held + 1 : 0;
    if (op->held >= HELD_LOOKS && kill(tracer, SIGKILL) == 0)
        op->held = 0;
}

uint32_t tree_tasks(int proc_dir)
{
    scan(proc_dir);
    return tasks;
}
