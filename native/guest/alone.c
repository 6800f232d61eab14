/* An operation that runs alone. The workload shares its user, under gVisor even its pipes, with what the host runs beside it. So before the probes run, all of
 * the workload is ended, and this process checks that none of it is left. Until then it does nothing else, so that nothing new starts. */
#include "agent.h"
#include <fcntl.h>
#include <signal.h>

enum { PATIENCE_MS = 5000, PAUSE_US = 1000, LOOKS = 2 };

static void kill_below_here(void)
{
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0)
        return;
    tree_signal(proc, getpid(), SIGKILL, NULL);
    close(proc);
}

/* Contained, that is every process but this one, leaders too: one call, which no fork can race. */
static void kill_all(void)
{
    if (in_machine())
        slots_kill();
    else if (contained_mode)
        kill(-1, SIGKILL);
    else
        kill_below_here();
}

/* Orphans come to this process: when it has no child, no process of the workload is left. In the machine the control groups show it, which no process leaves. */
static bool is_nobody_left(void)
{
    bool childless = ops_reap();
    return in_machine() ? !slots_populated() && !service_runs() : childless;
}

bool end_workload(void)
{
    int64_t until_ns = now_ns() + (int64_t)PATIENCE_MS * 1000000;
    if (first_waits())
        return true; /* nothing of the image has run */
    for (int looks = 0; looks < LOOKS;) {
        kill_all();
        looks = is_nobody_left() ? looks + 1 : 0;
        if (looks == 0 && now_ns() >= until_ns)
            return false;
        if (looks == 0)
            usleep(PAUSE_US);
    }
    leader_no_strays();
    return true;
}
