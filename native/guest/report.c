/* What an operation's process says of itself to the agent, on its status socket. */
#include "agent.h"
#include <sys/socket.h>

static void send_status(const struct status *status)
{
    while (send(CHILD_STATUS_FD, status, sizeof *status, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

void child_report(int status_fd, int stage, int error)
{
    struct status status = {.type = S_FAILED, .stage = (uint16_t)stage, .error = error};
    send(status_fd, &status, sizeof status, MSG_NOSIGNAL);
}

_Noreturn void child_fail(int stage, int error, const char *detail)
{
    struct status status = {.type = S_FAILED, .stage = (uint16_t)stage, .error = error};
    format(status.detail, sizeof status.detail, "%s", detail);
    send_status(&status);
    _exit(127);
}

void child_started(uint64_t info)
{
    struct status status = {.type = S_STARTED, .info = info};
    send_status(&status);
}
