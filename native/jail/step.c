/* The steps and how one fails: every part of the jail names the step it takes, and ends the process with one line when it can't be taken. */
#include "jail.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int fail_fd = 2;
static int step_number;
static const char *step_name = "start";

void step(int number, const char *name) {
    step_number = number;
    step_name = name;
}

void fail(const char *detail) {
    char line[512];
    int n = snprintf(line, sizeof line, "failed step %d %s errno %d: %s%s%s\n", step_number, step_name, errno, strerror(errno),
                     *detail ? ": " : "", detail);
    if (n > (int)sizeof line - 1) n = sizeof line - 1;
    if (write(fail_fd, line, (size_t)n) < 0) _exit(126);
    _exit(125);
}

void must(int result, const char *detail) {
    if (result < 0) fail(detail);
}
