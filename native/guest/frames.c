/* The channel: frames in, frames out. The output buffer is the send queue; producers of bulk data ask channel_has_room first, control frames don't. */
#include "agent.h"
#include <poll.h>

enum { IN_BYTES = 2 * (MAX_PAYLOAD_BYTES + HEADER_BYTES), OUT_BYTES = 2 << 20, HIGH_WATER = 256 << 10 };

static int channel = -1;
static uint8_t in_buffer[IN_BYTES];
static uint32_t in_start, in_n;
static uint8_t out_buffer[OUT_BYTES];
static uint32_t out_start, out_end;

void channel_open(int fd) { channel = fd; }

/* In a forked child: the parent's unsent frames are not ours to send. */
void channel_drop(void) { out_start = out_end = 0, channel = -1; }

bool channel_has_output(void) { return out_end > out_start; }

bool channel_has_room(void) { return out_end - out_start < HIGH_WATER; }

static void one_frame(frame_handler *handle, uint8_t *frame, uint32_t n)
{
    if (frame[5] != 0 || get_le(frame + 6, 2) != 0)
        fatal("the host sent a frame with reserved bits", 0);
    handle(frame[4], (uint32_t)get_le(frame + 8, 4), frame + HEADER_BYTES, n);
}

static void all_frames(frame_handler *handle)
{
    while (in_n >= HEADER_BYTES) {
        uint32_t n = (uint32_t)get_le(in_buffer + in_start, 4);
        if (n > MAX_PAYLOAD_BYTES)
            fatal("the host sent a frame that is too long", 0);
        if (in_n < HEADER_BYTES + n)
            break;
        uint8_t *frame = in_buffer + in_start;
        in_start += HEADER_BYTES + n;
        in_n -= HEADER_BYTES + n;
        one_frame(handle, frame, n);
    }
    if (in_n == 0)
        in_start = 0;
}

bool channel_read(frame_handler *handle)
{
    for (;;) {
        if (in_start + in_n == IN_BYTES || in_start > IN_BYTES / 2) {
            memmove(in_buffer, in_buffer + in_start, in_n);
            in_start = 0;
        }
        ssize_t got = read(channel, in_buffer + in_start + in_n, IN_BYTES - in_start - in_n);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR;
        if (got == 0)
            return false;
        in_n += (uint32_t)got;
        all_frames(handle);
        if (in_n == 0 && got < 4096)
            return true; /* most likely nothing more: let the others run */
    }
}

static void wait_writable(void)
{
    struct pollfd p = {.fd = channel, .events = POLLOUT};
    poll(&p, 1, 1000);
}

static bool push(void)
{
    ssize_t k = channel < 0 ? -1 : write(channel, out_buffer + out_start, out_end - out_start);
    if (k <= 0)
        return false;
    out_start += (uint32_t)k;
    if (out_start == out_end)
        out_start = out_end = 0;
    return true;
}

void channel_flush(void)
{
    while (channel_has_output() && push())
        ;
}

/* Room for one frame. Bulk data waits for channel_has_room, so only a host that doesn't read makes this wait: it has promised to. */
static void make_room(uint32_t n)
{
    for (int tries = 0; OUT_BYTES - out_end < n; tries++) {
        if (out_start > 0) {
            memmove(out_buffer, out_buffer + out_start, out_end - out_start);
            out_end -= out_start, out_start = 0;
        } else if (!push()) {
            if (tries > 60)
                _exit(71);
            wait_writable();
        }
    }
}

static uint32_t begun;

uint8_t *frame_begin(uint8_t type, uint32_t op, uint32_t n)
{
    make_room(HEADER_BYTES + n);
    begun = out_end;
    uint8_t *h = out_buffer + out_end;
    put_le(h, n, 4);
    put_le(h + 4, type, 4); /* type, flags 0, reserved 0 */
    put_le(h + 8, op, 4);
    return h + HEADER_BYTES;
}

void frame_end(uint32_t n)
{
    if (n == 0xFFFFFFFF)
        return;
    put_le(out_buffer + begun, n, 4);
    out_end = begun + HEADER_BYTES + n;
}

void send_frame(uint8_t type, uint32_t op, const void *payload, uint32_t n)
{
    uint8_t *p = frame_begin(type, op, n);
    if (n > 0)
        memcpy(p, payload, n);
    frame_end(n);
}

/* A frame of `head` and one str. */
void send_text(uint8_t type, uint32_t op, const void *head, uint32_t head_n, const char *text)
{
    uint32_t n = (uint32_t)strnlen(text, 4096);
    uint8_t *p = frame_begin(type, op, head_n + 4 + n);
    if (head_n > 0)
        memcpy(p, head, head_n);
    put_le(p + head_n, n, 4);
    memcpy(p + head_n + 4, text, n);
    frame_end(head_n + 4 + n);
}
