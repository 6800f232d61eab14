/* What the loop waits for. The outputs of operations are watched apart: nothing is read from them while the send queue is full. */
#include "agent.h"
#include <sys/epoll.h>

int epoll_main = -1, epoll_outputs = -1;

void watches_open(void)
{
    epoll_main = epoll_create1(EPOLL_CLOEXEC);
    epoll_outputs = epoll_create1(EPOLL_CLOEXEC);
}

static int epoll_of(enum watch_kind kind) { return kind == W_STDOUT || kind == W_STDERR ? epoll_outputs : epoll_main; }

int watch_add(enum watch_kind kind, uint32_t id, int fd, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.u64 = (uint64_t)kind << 32 | id};
    return epoll_ctl(epoll_of(kind), EPOLL_CTL_ADD, fd, &e);
}

void watch_del(enum watch_kind kind, int fd) { epoll_ctl(epoll_of(kind), EPOLL_CTL_DEL, fd, NULL); }
