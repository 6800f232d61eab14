/* The guest agent: carries out what the host asks over the channel (design/0002-channel.md), inside the workload's container (design/0003-guest.md).
 *
 * One thread, one event loop. Two kinds of neighbour: the host, which is trusted but may die at any moment, and the workload, which is hostile. The
 * workload never shares memory, descriptors or a pid namespace with this process; it can only make system calls, so every rule here is about what
 * the kernel lets it see. Nothing in this directory is printed inside the container or names the project. */
#ifndef AGENT_H
#define AGENT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    PROTOCOL_VERSION = 1,
    HEADER_BYTES = 12,
    MAX_PAYLOAD_BYTES = 65536,
    MAX_REQUEST_BYTES = 4 << 20,
    MAX_OPS = 256,
    MAX_DRAINS = 64,
    STDIN_WINDOW_BYTES = 256 << 10,
    OUTPUT_WINDOW_BYTES = 1 << 20,
    DRAIN_MS = 250,
    MAX_FILES = 524288,
    ID_SHIFT = 100000, /* inside 0…65535 is outside 100000…165535 */
    ID_COUNT = 65536,
};

enum frame_type {
    F_READY = 0x01, F_HELLO, F_WELCOME, F_CONFIG, F_CONFIGURED, F_RENEW, F_RENEWED, F_PING, F_PONG, F_FATAL,
    F_PART = 0x10, F_START, F_DATA, F_EOF, F_CREDIT, F_SIGNAL, F_RESIZE, F_STARTED, F_RESULT,
};

enum { KIND_EXEC = 1, KIND_READ, KIND_WRITE };
enum { OUT_EXITED, OUT_SIGNALLED, OUT_NOT_STARTED, OUT_IO };
enum { FLAG_TIMED_OUT = 1, FLAG_TREE_KILLED = 2, FLAG_OOM = 4, FLAG_CAPPED = 8 };
enum { ST_NONE, ST_USER, ST_CWD, ST_EXEC, ST_FORK, ST_OPEN, ST_READ, ST_WRITE, ST_RENAME, ST_REQUEST, ST_CREDENTIALS };

/* ---- util.c ---- */
extern bool native_mode; /* --serve: no VM, no container */
int64_t now_ns(void);
__attribute__((format(printf, 3, 4))) bool format(char *out, size_t n, const char *pattern, ...);
void put_le(uint8_t *at, uint64_t value, int bytes);
uint64_t get_le(const uint8_t *at, int bytes);
int write_all(int fd, const void *data, size_t n);
int write_at(int dir, const char *path, const char *text);      /* existing small control file; -errno or 0 */
ssize_t read_at(int dir, const char *path, char *out, size_t n); /* NUL-terminated; -errno or length */
void close_from(int first);
void console_line(const char *text);
_Noreturn void fatal(const char *what, int error); /* FATAL to the host, one line to the console, then the machine ends */
void *must_alloc(void *old, size_t n);

/* A bounded reader over a request. Strings are made NUL-terminated in place: moved back over their own length prefix. */
struct reader { uint8_t *p, *end; bool bad; };
uint64_t take_int(struct reader *r, int bytes);
char *take_str(struct reader *r, uint32_t *length); /* length may be NULL: then an embedded NUL is bad */

/* ---- frames.c ---- */
typedef void frame_handler(uint8_t type, uint32_t op, uint8_t *payload, uint32_t n);
void channel_open(int fd);
bool channel_read(frame_handler *handle); /* false: the other end is gone */
void channel_flush(void);
bool channel_has_output(void);
bool channel_has_room(void);
uint8_t *frame_begin(uint8_t type, uint32_t op, uint32_t n); /* n payload bytes to fill in, then frame_end */
void frame_end(uint32_t n);                                  /* n may be less than begun with; 0xFFFFFFFF: abandon */
void send_frame(uint8_t type, uint32_t op, const void *payload, uint32_t n);
void send_text(uint8_t type, uint32_t op, const void *head, uint32_t head_n, const char *text);
void channel_drop(void);

/* ---- loop (main.c) ---- */
enum watch_kind { W_CHANNEL, W_SIGNAL, W_OUTPUTS, W_STATUS, W_STDIN, W_STDOUT, W_STDERR, W_DRAIN };
int watch_add(enum watch_kind kind, uint32_t id, int fd, uint32_t events);
void watch_del(enum watch_kind kind, int fd);

/* ---- boot.c, rootfs.c, container.c ---- */
int boot(void); /* everything a machine needs before its agent can serve; returns the channel */
struct config { uint64_t memory_max_bytes, disk_bytes, disk_inodes; uint32_t processes; char *hostname; };
struct container {
    bool built;
    pid_t init_pid;
    int init_pidfd, user_ns, root, boot_id, pts; /* descriptors, -1 when absent */
};
extern struct container container;
int container_build(const struct config *config, const char **stage); /* 0 or errno, *stage says where */
int container_enter(void);                                           /* in a child: 0 or errno */
void container_warm(struct reader *paths, uint32_t count);
int rootfs_build(const struct config *config, int user_ns, const char **stage); /* in the container's first process */
void renew(struct reader *r);
void renew_prepare(const char *hostname);

/* ---- cgroups.c ---- */
struct slot { int fd; uint32_t name; uint64_t oom_base; uint8_t state; bool killed; };
int cgroups_mount(void);
int cgroups_limit(const struct config *config);
int cgroups_divide(pid_t init);
struct slot *slot_take(void);
void slot_release(struct slot *slot);
bool slots_sweep(void); /* true: some are still populated */
bool slot_oom_seen(struct slot *slot);
bool slot_populated(const struct slot *slot);
void slot_signal(struct slot *slot, int signo);
int cgroup_tree(void);

/* ---- users.c ---- */
enum { MAX_GROUPS = 64 };
struct user { uid_t uid; gid_t gid; char name[64], home[256], shell[256]; gid_t groups[MAX_GROUPS]; int group_count; };
int user_find(const char *spec, struct user *user); /* 0 or errno */

/* ---- confine.c, seccomp.c ---- */
int confine(const struct user *user); /* groups, ids, capabilities, no-new-privileges, seccomp: 0 or errno */
int become_nobody(uid_t id);
int seccomp_install(void);

/* ---- requests.c ---- */
struct request {
    uint32_t flags, mode;
    uint64_t timeout_ms, cap[2], max_bytes;
    uint16_t rows, cols;
    char *user, *cwd, *path, *owner;
    char **argv, **env; /* env has ENV_SPARE empty places at its end */
    uint32_t envc;
};
enum { ENV_SPARE = 8, EXEC_STDIN = 1, EXEC_PTY = 2, WRITE_APPEND = 1, WRITE_NO_PARENTS = 2, MODE_KEEP = 0xFFFFFFFF };
bool request_parse(uint8_t kind, uint8_t *body, uint32_t n, struct request *out);
void request_free(struct request *request);

/* ---- child.c, readfile.c, writefile.c: run in the forked child, never return ---- */
struct status { uint8_t type; uint16_t stage; int32_t error; uint64_t info; char detail[200]; };
enum { S_FAILED = 1, S_STARTED, S_TERMINAL };
enum { CHILD_STATUS_FD = 3, CHILD_PTS_FD = 4, FIRST_FREE_FD = 5 };
struct plumbing { int in, out, err, status, pts; };
_Noreturn void child_main(uint8_t kind, struct request *request, const struct plumbing *pipes);
_Noreturn void child_fail(int stage, int error, const char *detail);
void child_started(uint64_t info);
_Noreturn void child_read_file(const struct request *request);
_Noreturn void child_write_file(const struct request *request, const struct user *user);

/* ---- ops.c, streams.c ---- */
enum op_state { OP_GATHERING, OP_STARTING, OP_RUNNING };
struct op {
    uint32_t id;
    uint8_t kind, state, flags;
    uint8_t *body;
    uint32_t body_n, body_cap;
    pid_t pid;
    bool reaped, pty, output_on[2], stdin_watched, stdin_finished, host_eof, killed;
    int wait_status, status_fd, in_fd, out_fd[2];
    uint8_t *in_ring;
    uint32_t in_start, in_n, in_unacked;
    uint64_t credit, cap[2], sent[2], dropped[2], owed[2]; /* owed: bytes that were in the pipe when the main process ended */
    int64_t start_ns, deadline_ns, drain_ns;
    uint16_t rows, cols;
    struct status failure;
    struct slot *slot;
};
struct op *op_find(uint32_t id);
void op_frame(uint8_t type, uint32_t id, uint8_t *payload, uint32_t n);
void ops_reap(void);
void op_status_ready(struct op *op);
void op_settle(struct op *op); /* send RESULT if everything it waits for has come */
int ops_tick(void);            /* timeouts; returns milliseconds to the next, -1 none */
void stdin_data(struct op *op, const uint8_t *data, uint32_t n);
void stdin_eof(struct op *op);
void stdin_ready(struct op *op);
void stdin_close(struct op *op);
void output_ready(struct op *op, int stream);
void outputs_enable(struct op *op);
void output_close(struct op *op, int stream, bool keep_draining);
void drain_ready(int fd);
#endif
