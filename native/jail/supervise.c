/* The supervisor: gives the child its identity and its control groups, then watches until the child ends or must end.
 *
 * What it says on the status descriptor, one line each:
 *   child PID                    the child's pid on the host
 *   network                      the stage has a network namespace, and waits for its link
 *   running                      execve succeeded; with an init: the program ended well and left something running
 *   failed step N name errno E: reason   a step failed; nothing runs
 *   failed step 21 runtime exit|signal|empty N   so did the program of a jail with an init; empty: it ended well and left nothing
 *   ended exit|signal N cause C  the last line. C: itself, owner (the lifeline closed or the owner died), lifetime
 */
#define _GNU_SOURCE
#include "jail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Only the child: a limit must not end the process that would report it. */
void join_cgroups(const struct options *o, pid_t child) {
    char path[4096], line[32];
    snprintf(line, sizeof line, "%d\n", child);
    for (int i = 0; i < o->cgroup_count; i++) {
        snprintf(path, sizeof path, "%s/cgroup.procs", o->cgroups[i]);
        write_file(path, line);
    }
}

/* What remains is the right to kill the child, whose uid is not ours. */
void drop_supervisor_privileges(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    must((int)syscall(SYS_capget, &header, caps), "capget");
    for (int i = 0; i < 2; i++) {
        caps[i].permitted &= i ? 0 : 1U << CAP_KILL;
        caps[i].effective = caps[i].permitted;
        caps[i].inheritable = 0;
    }
    must((int)syscall(SYS_capset, &header, caps), "capset");
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no-new-privileges");
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t); /* suspension counts */
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void say(const struct options *o, const char *line) {
    /* A status reader that is gone can't be written to; the ending goes on without it. */
    if (write(o->status_fd, line, strlen(line)) < 0) return;
}

static void report_end(const struct options *o, pid_t child, const char *cause) {
    int status = 0;
    while (waitpid(child, &status, __WALL) < 0 && errno == EINTR) continue;
    char line[96];
    bool signalled = WIFSIGNALED(status);
    snprintf(line, sizeof line, "ended %s %d cause %s\n", signalled ? "signal" : "exit", signalled ? WTERMSIG(status) : WEXITSTATUS(status), cause);
    say(o, line);
    _exit(0);
}

/* Relays the child's lines; end of file means that execve succeeded and closed the pipe (an init says it itself). Returns true when the pipe is done. */
static bool relay_errors(const struct options *o, int error_fd) {
    char line[600];
    ssize_t n = read(error_fd, line, sizeof line - 1);
    if (n < 0) return errno != EINTR;
    if (n == 0) return o->init ? (void)0 : say(o, "running\n"), true;
    line[n] = 0;
    say(o, line);
    return strcmp(line, "network\n") != 0; /* the one line that another follows */
}

static bool lifeline_closed(const struct pollfd *lifeline) {
    char bytes[64];
    if (lifeline->revents & (POLLHUP | POLLERR | POLLNVAL)) return true;
    return lifeline->revents & POLLIN && read(lifeline->fd, bytes, sizeof bytes) == 0;
}

void supervise(const struct options *o, pid_t child, int child_pidfd, int owner_pidfd, int error_fd) {
    char line[32];
    snprintf(line, sizeof line, "child %d\n", child);
    say(o, line);
    int64_t deadline_ms = o->lifetime_ms ? now_ms() + o->lifetime_ms : INT64_MAX;
    struct pollfd watched[] = {{o->lifeline_fd, POLLIN, 0}, {owner_pidfd, POLLIN, 0}, {child_pidfd, POLLIN, 0}, {error_fd, POLLIN, 0}};
    const char *cause = NULL;
    while (!cause) {
        int64_t left_ms = deadline_ms - now_ms();
        if (left_ms <= 0) {
            cause = "lifetime";
            break;
        }
        if (poll(watched, 4, left_ms > 60000 ? 60000 : (int)left_ms) < 0) {
            if (errno != EINTR) cause = "owner";
            continue;
        }
        if (watched[3].revents && relay_errors(o, error_fd)) watched[3].fd = -1;
        if (watched[2].revents) cause = "itself";
        else if (watched[1].revents || lifeline_closed(&watched[0])) cause = "owner";
    }
    syscall(SYS_pidfd_send_signal, child_pidfd, SIGKILL, NULL, 0);
    report_end(o, child, cause);
    _exit(0);
}
