/* The host's processes. The one that may be sent a signal has SIGUSR1 blocked; another of that number is left alone. */
#include "probe.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum told { NOT_VISIBLE, ANOTHER, THE_HOSTS };

static bool blocks_usr1(const char *status)
{
    const char *line = strstr(status, "\nSigBlk:");
    return line != NULL && (strtoull(line + 8, NULL, 16) & (1ULL << (SIGUSR1 - 1))) != 0;
}

static enum told look_at(long pid)
{
    char path[64], status[4096];
    path_of(path, sizeof path, "/proc/%ld/status", pid);
    if (read_text(path, status, sizeof status) < 0)
        return NOT_VISIBLE;
    return blocks_usr1(status) ? THE_HOSTS : ANOTHER;
}

/* The host's process, or -1 where the number means another or none was told. */
static long target(struct finding *f)
{
    long long pid = needed_number(f, "pid");
    if (pid < 0)
        return -1;
    if (pid >= 2 && pid < INT32_MAX && look_at((long)pid) != ANOTHER)
        return (long)pid;
    absent(f, "process %lld is another one here", pid);
    return -1;
}

static void see_host(struct finding *f)
{
    long pid = target(f);
    if (pid < 0)
        return;
    if (look_at(pid) == THE_HOSTS)
        reached(f, "/proc/%ld is the host's process", pid);
    else
        absent(f, "/proc/%ld is not there", pid);
}

static void signal_host(struct finding *f)
{
    long pid = target(f);
    if (pid < 0)
        return;
    if (kill((pid_t)pid, SIGUSR1) == 0)
        reached(f, "sent SIGUSR1 to %ld", pid);
    else
        refused(f, "kill");
}

/* PTRACE_SEIZE doesn't stop it, and the end of this process lets go of it. */
static void trace_host(struct finding *f)
{
    long pid = target(f);
    if (pid < 0)
        return;
    if (ptrace(PTRACE_SEIZE, (pid_t)pid, NULL, NULL) == 0)
        reached(f, "traces %ld", pid);
    else
        refused(f, "ptrace");
}

static void read_host(struct finding *f)
{
    static const char *const FILES[] = {"environ", "maps", "mem"};
    char path[64];
    long pid = target(f);
    for (size_t i = 0; pid > 0 && i < sizeof FILES / sizeof *FILES; i++) {
        path_of(path, sizeof path, "/proc/%ld/%s", pid, FILES[i]);
        opens(f, path, O_RDONLY);
    }
}

/* Kernel threads are seen from the first pid namespace only. */
static void kernel_threads(struct finding *f)
{
    char name[64];
    if (read_text("/proc/2/comm", name, sizeof name) > 0 && strcmp(name, "kthreadd\n") == 0)
        reached(f, "kthreadd is process 2 here");
    else
        absent(f, "no kernel thread is process 2");
}

static void see_namespace(struct finding *f, long pid)
{
    char path[64], theirs[64] = "", ours[64] = "";
    path_of(path, sizeof path, "/proc/%ld/ns/pid", pid);
    if (readlink(path, theirs, sizeof theirs - 1) > 0 && readlink("/proc/self/ns/pid", ours, sizeof ours - 1) > 0 && strcmp(ours, theirs) != 0)
        reached(f, "process %ld is in %s, this one in %s", pid, theirs, ours);
}

static void foreign(struct finding *f)
{
    absent(f, "all processes are of one pid namespace");
    each_process(f, see_namespace);
}

const struct probe process_probes[] = {
    {"processes.see_host", see_host, QUICK},
    {"processes.signal_host", signal_host, QUICK},
    {"processes.trace_host", trace_host, APART},
    {"processes.read_host", read_host, QUICK},
    {"processes.kernel_threads", kernel_threads, QUICK},
    {"processes.foreign", foreign, 0},
    {NULL, NULL, 0},
};
