/* Limits for the workload as a whole, and a leaf for each operation so that its tree can be ended at once and its out-of-memory be told apart.
 * Leaves are used again when they are empty: a removed one would linger in the kernel for as long as a file written from it does. One that was killed is
 * removed, though: Linux 6.12 kills whatever is cloned into it later. */
#include "agent.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* One operation may have as many processes as the policy says; the spare ones keep a fork bomb from shutting out the next operation. */
enum { MAX_SLOTS = 4096, FIRST_SLOTS = 4, SPARE_PROCESSES = 32, KERNELS_MARGIN = 16 << 20, FREEZE_MS = 1000, FREE = 0, BUSY = 1, LINGERING = 2 };

static int tree = -1; /* the workload's cgroup; this process stays in the root one, out of reach of its limits */
static struct slot *slots[MAX_SLOTS];
static uint32_t slot_count, last_name, leaf_processes;
static uint64_t memory_max_bytes;
static bool frozen;

int cgroups_mount(void)
{
    mkdir("/cg", 0700);
    if (mount("none", "/cg", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        return errno;
    write_at(AT_FDCWD, "/cg/cgroup.subtree_control", "+cpu"); /* optional: then the agent's share is half, whatever the workload starts */
    int error = -write_at(AT_FDCWD, "/cg/cgroup.subtree_control", "+memory +pids");
    if (error != 0)
        return error;
    if (mkdir("/cg/w", 0755) != 0 || mkdir("/cg/w/0", 0755) != 0 || (tree = open("/cg/w", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return errno;
    return 0;
}

int cgroup_tree(void) { return tree; }

uint64_t cgroup_memory_limit(void) { return memory_max_bytes; }

bool cgroups_frozen(void) { return frozen; }

/* A process that waits for a device can't be stopped: then all go on. */
int cgroups_freeze(bool on)
{
    char text[128];
    int error = -write_at(tree, "cgroup.freeze", on ? "1" : "0");
    frozen = on && error == 0;
    for (int ms = 0; frozen && (read_at(tree, "cgroup.events", text, sizeof text) < 0 || strstr(text, "frozen 1") == NULL); ms++) {
        if (ms == FREEZE_MS)
            return cgroups_freeze(false), EBUSY;
        usleep(1000);
    }
    return error;
}

static int set_limit(int dir, const char *file, uint64_t value)
{
    char text[24];
    format(text, sizeof text, "%llu", (unsigned long long)value);
    return -write_at(dir, file, text);
}

static uint64_t oom_kills(const struct slot *slot)
{
    char text[512];
    if (read_at(slot->fd, "memory.events", text, sizeof text) < 0)
        return 0;
    return number_after(text, "oom_kill ");
}

static uint64_t refusals(int dir, const char *file)
{
    char text[128];
    return read_at(dir, file, text, sizeof text) < 0 || strncmp(text, "max ", 4) != 0 ? 0 : strtoull(text + 4, NULL, 10);
}

/* By its own limit, or by that of all together. */
static uint64_t refused_so_far(const struct slot *slot) { return refusals(slot->fd, "pids.events") + refusals(tree, "pids.events.local"); }

static struct slot *slot_make(void)
{
    char name[12];
    if (slot_count == MAX_SLOTS)
        return NULL;
    format(name, sizeof name, "%u", ++last_name);
    if (mkdirat(tree, name, 0755) != 0)
        return NULL;
    int fd = openat(tree, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (set_limit(fd, "pids.max", leaf_processes) != 0) {
        close(fd);
        return NULL;
    }
    struct slot *slot = must_alloc(NULL, sizeof *slot);
    *slot = (struct slot){.fd = fd, .name = last_name};
    slots[slot_count++] = slot;
    return slot;
}

/* What the kernel and this process need besides must not come out of what the workload may have: in a machine that is too small the workload would starve
 * the kernel, slowly and without end, before it met its limit. */
bool cgroups_have_room(uint64_t bytes)
{
    char text[256];
    return read_at(AT_FDCWD, "/proc/meminfo", text, sizeof text) > 0 && number_after(text, "MemAvailable:") << 10 >= bytes + KERNELS_MARGIN;
}

int cgroup_memory_max(uint64_t bytes) { return set_limit(tree, "memory.max", bytes); }

int cgroups_limit(const struct config *config)
{
    leaf_processes = config->processes;
    memory_max_bytes = config->memory_max_bytes;
    int error = cgroup_memory_max(memory_max_bytes);
    return error != 0 ? error : set_limit(tree, "pids.max", (uint64_t)config->processes + SPARE_PROCESSES);
}

/* The container's process 1 is born in the tree's root, so that this is where its cgroup namespace begins; then it goes to a leaf, as all must. */
int cgroups_divide(pid_t init)
{
    char text[16];
    format(text, sizeof text, "%d", (int)init);
    int error = -write_at(tree, "0/cgroup.procs", text);
    if (error == 0)
        error = -write_at(tree, "cgroup.subtree_control", "+memory +pids");
    write_at(tree, "cgroup.subtree_control", "+cpu"); /* optional: then what one operation left busy takes no more than its share from the next */
    for (int i = 0; error == 0 && i < FIRST_SLOTS; i++)
        error = slot_make() == NULL ? errno : 0;
    return error;
}

struct slot *slot_take(void)
{
    struct slot *slot = NULL;
    for (uint32_t i = 0; i < slot_count && slot == NULL; i++)
        if (slots[i]->state == FREE)
            slot = slots[i];
    if (slot == NULL)
        slot = slot_make();
    if (slot != NULL)
        slot->state = BUSY, slot->refused_base = refused_so_far(slot);
    return slot;
}

bool slot_populated(const struct slot *slot)
{
    char text[128];
    return read_at(slot->fd, "cgroup.events", text, sizeof text) < 0 || strstr(text, "populated 0") == NULL;
}

/* Every leaf but the one of the container's process 1. */
void slots_kill(void)
{
    for (uint32_t i = 0; i < slot_count; i++)
        if (slot_populated(slots[i]))
            slot_signal(slots[i], SIGKILL);
}

bool slots_populated(void)
{
    bool some = false;
    for (uint32_t i = 0; i < slot_count; i++)
        some |= slot_populated(slots[i]);
    return some;
}

static void slot_remove(struct slot *slot)
{
    char name[12];
    uint32_t i = 0;
    format(name, sizeof name, "%u", slot->name);
    close(slot->fd);
    unlinkat(tree, name, AT_REMOVEDIR);
    while (slots[i] != slot)
        i++;
    slots[i] = slots[--slot_count];
    free(slot);
}

void slot_release(struct slot *slot)
{
    if (slot == NULL)
        return;
    slot->state = slot_populated(slot) ? LINGERING : FREE;
    if (slot->state == FREE && slot->killed)
        slot_remove(slot);
}

bool slots_sweep(void)
{
    bool some = false;
    for (uint32_t i = slot_count; i-- > 0;) {
        bool lingers = slots[i]->state == LINGERING && slot_populated(slots[i]);
        if (slots[i]->state == LINGERING && !lingers) {
            slot_oom_seen(slots[i]); /* what happened to processes left behind belongs to no result */
            slot_release(slots[i]);
        }
        some |= lingers;
    }
    return some;
}

/* Since it was last asked. */
bool slot_oom_seen(struct slot *slot)
{
    uint64_t kills = slot == NULL ? 0 : oom_kills(slot), base = slot == NULL ? 0 : slot->oom_base;
    if (slot != NULL)
        slot->oom_base = kills;
    return kills > base;
}

bool slot_refused(const struct slot *slot) { return slot != NULL && refused_so_far(slot) > slot->refused_base; }

/* SIGKILL reaches every process at once, those being forked too. Another signal goes to those there are; a tree that forks faster isn't promised more. */
void slot_signal(struct slot *slot, int signo)
{
    if (signo == SIGKILL) {
        slot->killed = true;
        write_at(slot->fd, "cgroup.kill", "1");
        return;
    }
    char text[4096];
    ssize_t n = read_at(slot->fd, "cgroup.procs", text, sizeof text);
    for (char *at = text; n > 0 && *at != 0;) {
        long pid = strtol(at, &at, 10);
        if (pid <= 1 || *at++ != '\n')
            return; /* the last number may be cut off */
        kill((pid_t)pid, signo);
    }
}
