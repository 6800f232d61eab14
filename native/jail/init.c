/* Pid 1 of a jail whose program only starts others (an OCI runtime that detaches): it waits, reports how that went, and then only reaps.
 *
 * While the program runs, pid 1 has its capabilities but is not it; what the program leaves behind finds a pid 1 that holds no capability, no descriptor and
 * almost no system call, and whose end is the end of everything here. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static __attribute__((noreturn)) void refuse_runtime(const char *format, int number) {
    char line[96];
    int n = snprintf(line, sizeof line, format, number);
    if (write(fail_fd, line, (size_t)n) < 0) _exit(126);
    _exit(125);
}

static int wait_for_runtime(pid_t runtime) {
    for (;;) {
        int status;
        pid_t ended = waitpid(-1, &status, __WALL);
        if (ended == runtime) return status;
        if (ended < 0 && errno != EINTR) fail("wait");
    }
}

static void check_runtime(int status) {
    if (WIFSIGNALED(status)) refuse_runtime("failed step 21 runtime signal %d\n", WTERMSIG(status));
    if (WEXITSTATUS(status)) refuse_runtime("failed step 21 runtime exit %d\n", WEXITSTATUS(status));
    siginfo_t info = {0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0) refuse_runtime("failed step 21 runtime empty %d\n", 0);
}

/* Its parent-death signal stays armed: less capabilities don't take it away. No-new-privileges holds since before the program. */
static void become_nobody(bool has_capabilities) {
    if (has_capabilities) hold_no_capability();
    install_init_filter();
    must((int)write(fail_fd, "running\n", 8), "status");
    close(fail_fd);
}

static __attribute__((noreturn)) void reap(void) {
    int last = 0, status;
    for (;;) {
        if (waitpid(-1, &status, __WALL) > 0)
            last = status;
        else if (errno != EINTR)
            _exit(WIFSIGNALED(last) ? 128 + WTERMSIG(last) : WEXITSTATUS(last));
    }
}

void become_init(const struct options *o) {
    if (o->network_fd >= 0) make_network(o);
    pid_t runtime = fork();
    must(runtime, "fork");
    if (runtime == 0) return;
    /* The channel and whatever else was given end with the process that uses them. */
    keep_only(&fail_fd, 1);
    must((int)syscall(SYS_close_range, 0, 2, 0), "close_range");
    step(21, "runtime");
    check_runtime(wait_for_runtime(runtime));
    become_nobody(o->keep_capabilities);
    reap();
}
