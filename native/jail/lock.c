/* Locks the mounts of a jail whose program keeps capabilities: that program gets a second user namespace, with the same ids and a copy of the mounts. Flags and
 * mounts that a copy has from a greater namespace are locked: a compromised program can neither make a read-only mount writable nor look beneath one. What
 * is mounted is protected from the program's powers as it is from a program without any. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int open_own_proc(void) {
    int fd = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
    must(fd, "/proc/self");
    return fd;
}

static void write_same_ids(int proc_fd, const char *file, const struct id_map *map) {
    char text[MAX_ID_LINES * 36];
    size_t length = 0;
    for (int i = 0; i < map->count; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%u %u %u\n", map->lines[i].inner, map->lines[i].inner, map->lines[i].count);
    int fd = openat(proc_fd, file, O_WRONLY | O_CLOEXEC);
    must(fd, file);
    must((int)write(fd, text, length), file);
    close(fd);
}

/* Only a process of the namespace above may write the maps: a child that stayed there. */
static __attribute__((noreturn)) void map_when_told(const struct options *o, int proc_fd, int told) {
    char byte;
    if (read(told, &byte, 1) != 1) _exit(126);
    write_same_ids(proc_fd, "gid_map", &o->gid_map);
    write_same_ids(proc_fd, "uid_map", &o->uid_map);
    _exit(0);
}

void lock_mounts(const struct options *o, int proc_fd) {
    int tell[2], status = 0;
    must(pipe2(tell, O_CLOEXEC), "pipe");
    /* Else our files in /proc are the host's root's, and the mapper, which is not, could not write them. No other process has our ids yet. */
    must(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable");
    pid_t mapper = fork();
    must(mapper, "fork");
    if (mapper == 0) {
        close(tell[1]);
        map_when_told(o, proc_fd, tell[0]);
    }
    must(unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
    must((int)write(tell[1], "g", 1), "tell");
    while (waitpid(mapper, &status, 0) < 0 && errno == EINTR) continue;
    if (status) _exit(125); /* it has said why */
    close(tell[0]);
    close(tell[1]);
    close(proc_fd);
}
