/* Frames from one end to the other, one at a time in each direction: an end that takes no more holds up the other, and nothing but the kernel's bounded queues
 * fills meanwhile. A frame that can't be one is dropped and counted. */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BURST = 64 /* frames of one direction before the other has its turn */ };

struct way {
    int from, to;
    int from_ends, to_ends; /* the exit status when that end is gone */
    uint32_t max_frame_bytes;
    uint32_t held_bytes; /* of a frame that could not be sent yet */
    struct counters counters;
    uint8_t frame[MAX_FRAME_BYTES + 1];
};

static struct way out, in; /* from the VMM, to the VMM */

static bool is_full(void) { return errno == EAGAIN || errno == EINTR; }

static bool is_short(void) { return errno == ENOMEM || errno == ENOBUFS; }

/* The other end of a datagram socket's pair was closed; a link is down or was taken away. */
static bool is_gone(void) { return errno == ECONNREFUSED || errno == ECONNRESET || errno == EPIPE || errno == ENOTCONN || errno == ENETDOWN || errno == ENXIO || errno == ENODEV; }

static void count_sent(struct way *way)
{
    way->counters.frames++;
    way->counters.bytes += way->held_bytes;
    way->held_bytes = 0;
}

/* 0: go on; 1: it is full; else `-status`. What the kernel refuses (longer than the link takes, no memory) is dropped. */
static int put(struct way *way)
{
    ssize_t n = send(way->to, way->frame, way->held_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == (ssize_t)way->held_bytes)
        return count_sent(way), 0;
    if (n < 0 && is_full())
        return 1;
    if (n < 0 && is_gone())
        return -way->to_ends;
    way->counters.refused++;
    way->held_bytes = 0;
    return 0;
}

/* As `put`. An unknown error counts as the end of that side: it might come for ever. */
static int take(struct way *way)
{
    ssize_t n = recv(way->from, way->frame, sizeof way->frame, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0)
        return is_full() || is_short() ? 1 : -way->from_ends;
    if (n < HEADER_BYTES)
        way->counters.runts++;
    else if (n > (ssize_t)way->max_frame_bytes)
        way->counters.oversized++;
    else
        way->held_bytes = (uint32_t)n;
    return 0;
}

/* 0, or `-status`. */
static int carry(struct way *way)
{
    for (int i = 0; i < BURST; i++) {
        int result = way->held_bytes ? put(way) : take(way);
        if (result != 0)
            return result < 0 ? result : 0;
    }
    return 0;
}

static void put_number(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void put_counters(uint8_t *at, const struct counters *c)
{
    const uint64_t values[] = {c->frames, c->bytes, c->runts, c->oversized, c->refused};
    for (int i = 0; i < 5; i++)
        put_number(at + 8 * i, values[i]);
}

/* Ten numbers of eight bytes, little-endian: out, then in. False: the owner is gone. */
static bool answer_owner(int control)
{
    uint8_t asked[16], answer[80];
    ssize_t n = recv(control, asked, sizeof asked, MSG_DONTWAIT);
    if (n < 0)
        return is_full();
    put_counters(answer, &out.counters);
    put_counters(answer + 40, &in.counters);
    return n > 0 && send(control, answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof answer;
}

static void prepare(struct way *way, int from, int from_ends, int to, int to_ends, uint32_t max_frame_bytes)
{
    *way = (struct way){.from = from, .to = to, .from_ends = from_ends, .to_ends = to_ends, .max_frame_bytes = max_frame_bytes};
}

/* A direction that holds a frame waits for room, else for a frame. */
static short wanted(const struct way *reads, const struct way *writes) { return (short)((reads->held_bytes ? 0 : POLLIN) | (writes->held_bytes ? POLLOUT : 0)); }

int relay(const struct ends *ends)
{
    prepare(&out, ends->vmm, END_VMM, ends->link, END_LINK, ends->max_frame_bytes);
    prepare(&in, ends->link, END_LINK, ends->vmm, END_VMM, ends->max_frame_bytes);
    for (;;) {
        struct pollfd watched[] = {{ends->vmm, wanted(&out, &in), 0}, {ends->link, wanted(&in, &out), 0}, {ends->control, POLLIN, 0}};
        if (poll(watched, 3, -1) < 0 && errno != EINTR)
            return END_STEP;
        int from_vmm = carry(&out), to_vmm = carry(&in);
        if (from_vmm != 0 || to_vmm != 0)
            return -(from_vmm != 0 ? from_vmm : to_vmm);
        if (watched[2].revents && !answer_owner(ends->control))
            return END_OWNER;
    }
}
