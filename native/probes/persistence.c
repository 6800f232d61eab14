/* What an earlier cell left. Asked only at the start (`fresh=1`): later, what is found is this cell's own. */
#include "probe.h"
#include <dirent.h>
#include <stdlib.h>

static bool is_fresh(struct finding *f)
{
    const char *fresh = parameter("fresh");
    if (fresh != NULL && strcmp(fresh, "1") == 0)
        return true;
    absent(f, "not asked: the cell has been at work");
    return false;
}

static void look_for_entry(struct finding *f, const char *path)
{
    DIR *list = opendir(path);
    struct dirent *entry;
    if (list == NULL) {
        refused(f, path);
        return;
    }
    while ((entry = readdir(list)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            reached(f, "%s has %.64s", path, entry->d_name);
    absent(f, "%s is empty", path);
    closedir(list);
}

static void memory_files(struct finding *f)
{
    if (!is_fresh(f))
        return;
    look_for_entry(f, "/dev/shm");
    look_for_entry(f, "/dev/mqueue");
}

/* The first line is the heading. */
static void ipc_objects(struct finding *f)
{
    static const char *const PATHS[] = {"/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"};
    char text[2048];
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS && is_fresh(f); i++) {
        const char *line = read_text(PATHS[i], text, sizeof text) < 0 ? NULL : strchr(text, '\n');
        if (line != NULL && line[1] != 0)
            reached(f, "%s has an object", PATHS[i]);
        else
            absent(f, "%s has none", PATHS[i]);
    }
}

static void look_at_process(struct finding *f, long pid)
{
    char path[64], name[64];
    path_of(path, sizeof path, "/proc/%ld/comm", pid);
    if (pid == 1 || pid == getpid() || pid == parent_pid || read_text(path, name, sizeof name) <= 0)
        return;
    name[strcspn(name, "\n")] = 0;
    reached(f, "process %ld, %s", pid, name);
}

/* At the start there are the cell's first process, this one and what started it. */
static void processes(struct finding *f)
{
    if (!is_fresh(f))
        return;
    each_process(f, look_at_process);
    absent(f, "no other process");
}

static void scheduled(struct finding *f)
{
    static const char *const PATHS[] = {"/etc/ld.so.preload", "/var/spool/cron/crontabs/root", "/var/spool/cron/root"};
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS && is_fresh(f); i++)
        has_content(f, PATHS[i]);
}

const struct probe persistence_probes[] = {
    {"persistence.memory_files", memory_files, QUICK},
    {"persistence.ipc_objects", ipc_objects, QUICK},
    {"persistence.processes", processes, QUICK},
    {"persistence.scheduled", scheduled, QUICK},
    {NULL, NULL, 0},
};
