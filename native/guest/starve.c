/* In the machine: a workload that has all of its memory in use need not meet the kernel's out-of-memory killer. As long as a page of a program can be thrown
 * away the kernel does that instead, and the program is read again, page by page, for minutes. Seen from outside that is a command without progress and a limit
 * that is never reported. So it is looked for, and then the limit is lowered for a moment below what can't be thrown away: the kernel ends the largest process.
 * A process that merely reads many files, beside however large a process, is not such a case: what it reads can be thrown away, and it waits for no page of a
 * program. While no operation runs, this does nothing. */
#include "agent.h"
#include <stdlib.h>

enum { LOOK_NS = 500000000, LOOKS = 4, LEFT_SHARE = 20, FAULTS = 16, LOWER_BYTES = 2 << 20, PAGE = 4096 };

static bool lowered;

static uint64_t memory_now(int tree)
{
    char text[32];
    return read_at(tree, "memory.current", text, sizeof text) < 0 ? 0 : strtoull(text, NULL, 10);
}

/* Whether nearly all memory is such as can't be thrown away, and since the last look all that is kept of files was read again, by programs that stood still
 * for it. */
static bool starves(int tree, uint64_t memory_max_bytes, uint64_t *must_stay_bytes)
{
    static char text[8192];
    static uint64_t refaults_before, faults_before;
    uint64_t current = memory_now(tree);
    if (read_at(tree, "memory.stat", text, sizeof text) < 0)
        return false;
    uint64_t refaults = number_after(text, "workingset_refault_file "), faults = number_after(text, "\npgmajfault ");
    uint64_t again = refaults - refaults_before, waits = faults - faults_before;
    uint64_t file_bytes = number_after(text, "\ninactive_file ") + number_after(text, "\nactive_file ");
    refaults_before = refaults, faults_before = faults;
    *must_stay_bytes = current > file_bytes ? current - file_bytes : 0;
    return *must_stay_bytes >= memory_max_bytes - memory_max_bytes / LEFT_SHARE && again >= file_bytes / PAGE && waits >= FAULTS;
}

void starve_look(void)
{
    static int64_t next_ns;
    static int seen;
    int64_t now = now_ns();
    int tree = cgroup_tree();
    uint64_t memory_max_bytes = cgroup_memory_limit(), must_stay_bytes = 0;
    if (memory_max_bytes == 0 || tree < 0 || now < next_ns)
        return;
    next_ns = now + LOOK_NS;
    if (lowered)
        lowered = cgroup_memory_max(memory_max_bytes) != 0;
    seen = starves(tree, memory_max_bytes, &must_stay_bytes) ? seen + 1 : 0;
    if (seen < LOOKS)
        return;
    seen = 0;
    lowered = cgroup_memory_max(must_stay_bytes - LOWER_BYTES) == 0 && cgroup_memory_max(memory_max_bytes) != 0;
}
