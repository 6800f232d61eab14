/* The wire: carries a virtual machine's frames between its VMM and the end of a link. See main.c. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    HEADER_BYTES = 14,
    TAG_BYTES = 4,
    MAX_MTU = 9000,
    MAX_FRAME_BYTES = MAX_MTU + HEADER_BYTES + TAG_BYTES,
    QUEUE_BYTES = 1 << 20, /* what either side may have waiting, where the host allows that much */
};

/* Exit statuses. 2: called wrongly; 3: a step failed, and standard error says which. */
enum { END_OWNER = 0, END_USAGE = 2, END_STEP = 3, END_VMM = 4, END_LINK = 5 };

/* One direction's counters: what went through, and what did not and why. */
struct counters {
    uint64_t frames, bytes, runts, oversized, refused;
};

struct ends {
    int vmm, link, control;
    uint32_t max_frame_bytes;
};

/* fail.c */
__attribute__((noreturn)) void fail(const char *what);
void must(int result, const char *what);

/* link.c: a packet socket on the only Ethernet link of this network namespace, which has no address from then on */
int open_link(void);

/* confine.c: no capability, and the calls of relay.c alone */
void confine(void);

/* relay.c: until an end is gone; the exit status */
int relay(const struct ends *ends);

#endif
