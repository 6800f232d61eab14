/* The supervisor's side of ids: which ids of the host the jail's ids are. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_MAP_TEXT = MAX_ID_LINES * 36 };

void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd, path);
    must((int)write(fd, text, strlen(text)), path);
    close(fd);
}

/* The kernel takes a map once and whole. */
static void write_map(pid_t process, const char *file, const struct id_map *map) {
    char path[64], text[MAX_MAP_TEXT];
    size_t length = 0;
    for (int i = 0; i < map->count; i++) {
        const struct id_line *line = &map->lines[i];
        length += (size_t)snprintf(text + length, sizeof text - length, "%u %u %u\n", line->inner, line->outer, line->count);
    }
    snprintf(path, sizeof path, "/proc/%d/%s", process, file);
    write_file(path, text);
}

static void write_maps(pid_t process, const struct id_map *uids, const struct id_map *gids, bool may_set_groups) {
    char path[64];
    /* Groups are taken away where the kernel lets us (root), and frozen where it does not. */
    if (!may_set_groups) {
        snprintf(path, sizeof path, "/proc/%d/setgroups", process);
        write_file(path, "deny");
    }
    write_map(process, "gid_map", gids);
    write_map(process, "uid_map", uids);
}

static __attribute__((noreturn)) void run_helper(const char *helper, pid_t process, const struct id_map *map) {
    char text[1 + 3 * MAX_ID_LINES][16];
    char *argv[2 + 3 * MAX_ID_LINES + 1], *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    int n = 0;
    argv[n++] = (char *)helper;
    snprintf(text[0], sizeof text[0], "%d", process);
    argv[n++] = text[0];
    for (int i = 0; i < map->count; i++) {
        const unsigned numbers[] = {map->lines[i].inner, map->lines[i].outer, map->lines[i].count};
        for (int j = 0; j < 3; j++, n++) {
            snprintf(text[n - 1], sizeof text[0], "%u", numbers[j]);
            argv[n] = text[n - 1];
        }
    }
    argv[n] = NULL;
    keep_only(&fail_fd, 1);
    must(fcntl(fail_fd, F_SETFD, FD_CLOEXEC), helper);
    execve(helper, argv, environment);
    fail(helper);
}

/* newuidmap and newgidmap are root's: they map what /etc/subuid and /etc/subgid give the user, and nothing else. */
static void map_by_helper(const char *helper, pid_t process, const struct id_map *map) {
    char detail[256];
    int status = 0;
    pid_t pid = fork();
    must(pid, "fork");
    if (pid == 0) run_helper(helper, process, map);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 125) _exit(125); /* it has said why */
    if (status == 0) return;
    snprintf(detail, sizeof detail, "%s refused (status 0x%x)", helper, status);
    errno = EPERM;
    fail(detail);
}

/* Without maps, one uid and one gid exist in the jail, and neither is root. */
void map_ids(const struct options *o, pid_t child) {
    const bool may_set_groups = o->privileged || o->userns_fd >= 0;
    if (o->newuidmap) {
        step(27, "subordinate ids");
        map_by_helper(o->newgidmap, child, &o->gid_map);
        map_by_helper(o->newuidmap, child, &o->uid_map);
        step(4, "identity and control groups");
    } else if (has_id_maps(o)) {
        write_maps(child, &o->uid_map, &o->gid_map, may_set_groups);
    } else {
        const struct id_map uids = {{{o->inner_uid, o->host_uid, 1}}, 1}, gids = {{{o->inner_gid, o->host_gid, 1}}, 1};
        write_maps(child, &uids, &gids, may_set_groups);
    }
}

static uid_t stage_id(const struct options *o) {
    for (int i = 0; i < o->uid_map.count; i++)
        if (o->uid_map.lines[i].inner == 0) return o->uid_map.lines[i].outer;
    return o->host_uid;
}

static void regain_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    must((int)syscall(SYS_capget, &header, caps), "capget");
    for (int i = 0; i < 2; i++) caps[i].effective = caps[i].permitted;
    must((int)syscall(SYS_capset, &header, caps), "capset");
}

/* What a namespace's processes use of what the kernel counts by user (inotify instances, timers, pending signals, locked memory, message queues) is charged to
 * the namespace's owner, its maker, as well: were that the host's root, one cell could use up root's share, and every other cell's. Files are still opened as root. */
void own_as_stage(const struct options *o) {
    if (!o->privileged) return;
    must((int)syscall(SYS_setresuid, -1, stage_id(o), -1), "setresuid");
    regain_capabilities();
    syscall(SYS_setfsuid, 0);
}

void own_as_root(const struct options *o) {
    if (o->privileged) must((int)syscall(SYS_setresuid, -1, 0, -1), "setresuid");
}

/* The map of a namespace that we are in, which another process made: like ours, it doesn't have the host's root. */
static void check_outer_ids(const char *path) {
    unsigned inner, outer, count;
    FILE *map = fopen(path, "re");
    if (!map) fail(path);
    while (fscanf(map, "%u %u %u", &inner, &outer, &count) == 3) {
        errno = EPERM;
        if (!outer) fail("the host's id 0 is mapped in the user namespace given");
    }
    fclose(map);
}

/* An ordinary user's, which has the user's subordinate ids: being its owner, this process has every capability in it, and needs no helper to map them further down.
 * What is made from here on lies below it. */
void enter_user_namespace(const struct options *o) {
    if (o->userns_fd < 0) return;
    must(setns(o->userns_fd, CLONE_NEWUSER), "setns");
    close(o->userns_fd);
    check_outer_ids("/proc/self/uid_map");
    check_outer_ids("/proc/self/gid_map");
}

/* A user namespace that only carries a map: a process makes it, and ends once it is held. */
int open_shifting_namespace(const struct id_line *shift) {
    const struct id_map map = {{*shift}, 1};
    char path[64];
    pid_t maker = getpid();
    pid_t holder = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    must(holder, "clone");
    if (holder == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        while (getppid() == maker) pause(); /* it may have died before the signal was armed */
        _exit(0);
    }
    write_maps(holder, &map, &map, true);
    snprintf(path, sizeof path, "/proc/%d/ns/user", holder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    must(fd, path);
    kill(holder, SIGKILL);
    while (waitpid(holder, NULL, 0) < 0 && errno == EINTR) continue;
    return fd;
}
