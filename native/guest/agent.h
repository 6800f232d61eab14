/* The guest agent: carries out what the host asks over the channel (design/channel.md), inside the workload's container (native/guest/README.md).
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
    ID_COUNT = 65536, /* contained; in the machine nearly all that there are */
};
static const uint32_t MACHINE_IDS = UINT32_MAX - 1 - ID_SHIFT;

enum frame_type {
    F_READY = 0x01, F_HELLO, F_WELCOME, F_CONFIG, F_CONFIGURED, F_RENEW, F_RENEWED, F_PING, F_PONG, F_FATAL, F_WATCH, F_WATCHED, F_TOUCHED, F_FREEZE, F_FROZEN,
    F_PART = 0x10, F_START, F_DATA, F_EOF, F_CREDIT, F_SIGNAL, F_RESIZE, F_STARTED, F_RESULT,
};

enum { NEVER_STARTED = 127 << 8 }; /* as wait would say it */
enum { KIND_EXEC = 1, KIND_READ = 2, KIND_WRITE = 3, KIND_WALK = 5, KIND_PUT = 6, KIND_REMOVE = 7 };
static inline bool takes_input(uint8_t kind) { return kind == KIND_WRITE || kind == KIND_PUT; } /* and has no output */
/* A record of a tree: u8 kind, u16 mode, u64 size, i64 and u32 when it was changed, u16 and u16 the bytes of its name and link, which follow; then a file's contents. */
enum { RECORD_BYTES = 27, R_FILE = 1, R_DIRECTORY, R_LINK, R_OTHER, R_ENTER, R_LEAVE };
enum { OUT_EXITED, OUT_SIGNALLED, OUT_NOT_STARTED, OUT_IO };
enum { FLAG_TIMED_OUT = 1, FLAG_TREE_KILLED = 2, FLAG_OOM = 4, FLAG_CAPPED = 8, FLAG_PROCESSES = 16, FLAG_DISK = 32, FLAG_RUNS_ON = 64, FLAG_PROGRAM_ENDED = 128 };
enum { ST_NONE, ST_USER, ST_CWD, ST_EXEC, ST_FORK, ST_OPEN, ST_READ, ST_WRITE, ST_RENAME, ST_REQUEST, ST_CREDENTIALS };

/* ---- util.c ---- */
extern bool native_mode;    /* --serve: no VM, no container */
extern bool contained_mode; /* --contained: process 1 of a container that a runtime made */
static inline bool in_machine(void) { return !native_mode && !contained_mode; } /* /init: the machine is ours */
int64_t now_ns(void);
__attribute__((format(printf, 3, 4))) bool format(char *out, size_t n, const char *pattern, ...);
void put_le(uint8_t *at, uint64_t value, int bytes);
uint64_t get_le(const uint8_t *at, int bytes);
int write_all(int fd, const void *data, size_t n);
int write_at(int dir, const char *path, const char *text);      /* existing small control file; -errno or 0 */
ssize_t read_at(int dir, const char *path, char *out, size_t n); /* NUL-terminated; -errno or length */
uint64_t number_after(const char *text, const char *key);          /* 0 when the key isn't there */
void close_between(int first, int last); /* both included; or the process ends */
void close_from(int first);
bool send_with(int to, const void *data, size_t n, int fd, int how);
ssize_t receive_with(int from, void *data, size_t n, int *fd, int how);
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

/* ---- watch.c ---- */
extern int epoll_main, epoll_outputs; /* -1: it couldn't be made */
void watches_open(void);
enum watch_kind { W_CHANNEL, W_SIGNAL, W_OUTPUTS, W_STATUS, W_STDIN, W_STDOUT, W_STDERR, W_DRAIN, W_LEADER, W_TOUCH };
int watch_add(enum watch_kind kind, uint32_t id, int fd, uint32_t events);
void watch_del(enum watch_kind kind, int fd);

/* ---- hide.c ---- */
#define DATA_DISK "/data" /* of the machine's own tree: where the second disk is mounted */
#define COMMAND_LINE "BOOT_IMAGE=/boot/vmlinuz root=/dev/vda1 ro quiet\n" /* an ordinary machine's, in place of the kernel's own */
extern bool in_sentry;            /* the kernel is gVisor's */
/* After a call that gVisor lacks: runsc skips names it does not know in its profile, so that the profile's EPERM comes first. */
static inline bool no_such_call(void) { return errno == ENOSYS || (in_sentry && errno == EPERM); }
int borrow_probe(void);           /* contained mode: the probe program, to be closed again; -1: there is none */
void hide(int argc, char **argv); /* --contained: opens the probe program, unmounts and unlinks the files it came by, and forgets its own arguments */
bool close_devices(void);          /* hide.c: gVisor makes /dev without a bound, whatever it is asked for, and files there would be its memory: read-only */

/* ---- boot.c, rootfs.c, container.c ---- */
extern int null_fd;
extern int probe_fd; /* the probe program, close-on-exec; -1: there is none */
int boot(void); /* everything a machine needs before its agent can serve; returns the channel */
struct config { uint64_t memory_max_bytes, disk_bytes, disk_inodes; uint32_t processes; char *hostname; };
struct container {
    bool built, has_device, owns_network; /* owns_network: rights over it hold, a device in it or not */
    pid_t init_pid;
    int init_pidfd, user_ns, root, boot_id, pts, proc; /* descriptors, -1 when absent */
    uint32_t processes, own_processes;                 /* contained mode: the most that an operation's user may have, 0: unknown; how many of root's are ours */
};
extern struct container container;
int container_build(const struct config *config, const char **stage); /* 0 or errno, *stage says where */
_Noreturn void reap_forever(void);
int container_enter(void);                                           /* in a child: 0 or errno */
void container_warm(struct reader *paths, uint32_t count);
int rootfs_build(const struct config *config, int user_ns, const char **stage); /* in the container's first process */
void renew(struct reader *r);
extern bool renewed;
bool set_clock(uint64_t realtime_ns);
bool cover_with_text(const char *over, const char *text); /* a mount of a read-only file of these contents */
void renew_prepare(const char *hostname);

/* ---- network.c ---- */
bool network_present(void);         /* the machine has a device */
int network_build(int *net_ns);     /* the container's network namespace (made, if it is -1), with the device in it, down: 0 or errno */
bool network_renew(struct reader *r, char *resolver, size_t n); /* the rest of a RENEW; `resolver` gets what is to be in resolv.conf */

/* ---- cgroups.c ---- */
struct slot { int fd; uint32_t name; uint64_t oom_base, refused_base; uint8_t state; bool killed; };
int cgroups_mount(void);
bool cgroups_have_room(uint64_t bytes); /* for that much of the workload's, beside the kernel */
int cgroups_limit(const struct config *config);
int cgroups_divide(pid_t init);
struct slot *slot_take(void);
void slot_release(struct slot *slot);
bool slots_sweep(void); /* true: some are still populated */
bool slot_oom_seen(struct slot *slot);
bool slot_refused(const struct slot *slot); /* a process, since it was taken */
bool slot_populated(const struct slot *slot);
void slots_kill(void);
bool slots_populated(void);
void slot_signal(struct slot *slot, int signo);
int cgroup_tree(void);
int cgroups_freeze(bool on); /* all of the workload: 0 or errno */
bool cgroups_frozen(void);
int cgroup_memory_max(uint64_t bytes); /* 0 or errno */
uint64_t cgroup_memory_limit(void);     /* what the workload may have; 0 before CONFIG */
void starve_look(void);                  /* while an operation runs: ends the largest process of a workload that starves */

/* ---- limits.c ---- */
void limits_prepare(void); /* before the first operation */
uint8_t limits_now(void);  /* FLAG_DISK, FLAG_PROCESSES: what there is no more of */
int limits_wait(void);     /* milliseconds until the next look */

/* ---- touch.c ---- */
void touches_end(void);
void touches_watch(struct reader *r); /* a WATCH */
void touches_ready(void);
void touches_drain(void); /* before a child is waited for: its name goes with it */
void touches_flush(void); /* all that is queued, though the channel is full: it waits for the host */
int touches_wait(void);   /* milliseconds until something is to be sent, -1: there is nothing */
int touches_tick(void);   /* the same, after it was */

/* ---- tree.c, leader.c: contained mode ---- */
typedef bool tree_filter(pid_t pid);
int tree_signal(int proc_dir, pid_t top, int signo, tree_filter *leave_out); /* all below `top`, it not; how many there were */
uint32_t tree_tasks(int proc_dir); /* processes and threads but process 1's; what has ended and was not waited for counts, as it does for the limit */
extern char temporary_name[]; /* writefile.c: what a child that is killed would leave; empty: nothing */
struct leader { pid_t pid; int fd; uint32_t id, op_id, era; bool busy, killing; int64_t since_ns; };
struct plumbing;
uint32_t leaders_count(void);
void leaders_prepare(void); /* one waits before the first operation needs it */
struct leader *leader_take(void); /* NULL and errno */
int leader_run(struct leader *leader, uint32_t op_id, uint8_t kind, const uint8_t *body, uint32_t n, const struct plumbing *pipes);
void leader_release(struct leader *leader);
void leader_signal_main(struct leader *leader, int signo);
void leader_signal_tree(struct leader *leader, int signo);
void leader_kill(struct leader *leader); /* its tree, now and until none is left */
void leader_ready(uint32_t id);
bool leader_ended(pid_t pid); /* false: it was no leader */
bool leader_strays(void);     /* some whose leader is gone may still be there */
void leader_no_strays(void);  /* another check has shown that none is left */
int leaders_tick(void);       /* as ops_tick */
int leader_confine(void);
void leaders_dismiss_old(void);

/* ---- service.c ---- */
extern uint32_t service_era; /* another one: things start in another namespace */
void service_prepare(void);
bool service_runs(void);
bool service_keeps(pid_t pid); /* process 1 of the namespace in which things start, unless it is to end */
int service_begin(void); /* 0 or errno: the next child is a service's program */
void service_forked(pid_t pid);
void service_reaped(pid_t pid); /* of any child */
void service_look(void);        /* has it just ended? */
bool service_is_over(void);     /* after a start in its namespace failed: it has ended within a moment */
bool service_give_up(uint32_t era); /* of a leader that is lost: true: a program ends with it */
int service_enter(int status_fd); /* in the program's process: as container_enter */
void service_entered(int mount_ns);
int service_join(void);      /* in another: 0 or errno */
int service_make_room(void); /* contained, before a fork: 0 or errno */

/* ---- users.c ---- */
enum { MAX_GROUPS = 64 };
struct user { uid_t uid; gid_t gid; char name[64], home[256], shell[256]; gid_t groups[MAX_GROUPS]; int group_count; bool found; };
void users_remember(int root);
int user_find(const char *spec, struct user *user, bool as_it_was); /* 0 or errno */
const char *user_missing(const char *spec, const struct user *user); /* after ENOENT, what there is not: the user, or `:group` */

/* ---- confine.c, seccomp.c ---- */
int confine(const struct user *user); /* groups, ids, capabilities, no-new-privileges, seccomp: 0 or errno */
int confine_to_root(void); /* before it: to what the container's root is and may do; 0 or errno */
void confine_grant(uint64_t capabilities); /* CONFIG: what root has beside a container's usual ones */
void confine_setuid(bool works); /* CONFIG: whether set-user-ID programs gain their owner's rights */
void seccomp_for_debuggers(bool open);      /* CONFIG: whether the calls by which debuggers work are open */
int become_nobody(uid_t id);
void confine_prepare(void);   /* contained mode, at the start: what no process below will ever have is given up at once */
int confine_without_mounts(void);
int confine_leader(void);     /* no-new-privileges and the filter, for all below */
int confine_early(void);      /* the same, of this process: `confine` will not do it again */
int seccomp_install(void);

/* ---- requests.c ---- */
struct request {
    uint32_t flags, mode;
    uint64_t timeout_ms, cap[2], max_bytes, max_entries;
    uint32_t depth;
    uint16_t rows, cols;
    char *user, *cwd, *path, *owner, *staging;
    char **argv, **env; /* env has ENV_SPARE empty places at its end */
    uint32_t envc;
};
enum { ENV_SPARE = 8, EXEC_STDIN = 1, EXEC_PTY = 2, EXEC_PROBE = 4, EXEC_ALONE = 8, EXEC_SERVICE = 16, WRITE_DIRECTORY = 4, WALK_FOLLOW = 1, WALK_CONTENTS = 2, PUT_REPLACE = 1, PUT_TIMES = 2, REMOVE_TREE = 1, MAX_PUT_DEPTH = 64, MODE_KEEP = 0xFFFFFFFF };
bool request_parse(uint8_t kind, uint8_t *body, uint32_t n, struct request *out);
void request_free(struct request *request);

/* ---- report.c ---- */
_Noreturn void child_fail(int stage, int error, const char *detail);
void child_report(int status_fd, int stage, int error);
void child_started(uint64_t info);

/* ---- child.c, readfile.c, writefile.c, walk.c, put.c, remove.c: run in the forked child, never return ---- */
struct status { uint8_t type; uint16_t stage; int32_t error; uint64_t info; char detail[200]; };
enum { S_FAILED = 1, S_STARTED, S_TERMINAL, S_NAMESPACE };
enum { CHILD_STATUS_FD = 3, CHILD_PTS_FD = 4, CHILD_PROBE_FD = 5, CHILD_INPUT_FD = 6, FIRST_FREE_FD = 7 };
struct plumbing { int in, out, err, status, pts, probe, input; }; /* input: only of a child that waits, which can't know yet whether it has one; else -1 */
_Noreturn void child_main(uint8_t kind, struct request *request, const struct plumbing *pipes);
_Noreturn void child_wait(const struct plumbing *pipes); /* as child_main, of what comes as one message on its status socket: the kind, then the request */
_Noreturn void child_read_file(const struct request *request);
_Noreturn void child_write_file(const struct request *request, const struct user *user);
_Noreturn void child_walk(const struct request *request);
_Noreturn void child_put(const struct request *request);
_Noreturn void child_remove(const struct request *request);
int open_without_magic(const char *path, int more);
void make_parents(const char *path);
int remove_below(int dir, uint32_t depth, uint64_t *removed); /* 0 or errno */

/* ---- first.c: in the machine, the first operation's process is in the snapshot ---- */
enum { FIRST_REQUEST_BYTES = 32 << 10 };
struct op;
struct pairs { int in[2], out[2], err[2], status[2]; }; /* pipes: [0] is read from; status: [1] is the child's */
void first_prepare(void);
bool first_waits(void);
bool first_take(struct op *op, uint32_t flags, const uint8_t *body, struct pairs *left); /* false: there is none, or it can't; left: the ends that stay here */
void first_dismiss(void);
bool first_ended(pid_t pid); /* false: it was another */
int first_tick(bool idle);   /* milliseconds until it has something to do, -1: nothing */

/* ---- alone.c ---- */
bool end_workload(void); /* all of it; false: some of it may still run */

/* ---- ops.c, start.c, streams.c ---- */
enum op_state { OP_GATHERING, OP_STARTING, OP_RUNNING };
struct op {
    uint32_t id;
    uint8_t kind, state, flags, full_before, held; /* full_before: of limits_now, nothing that this operation did; held: looks at which a tracer held it */
    uint8_t *body;
    uint32_t body_n, body_cap;
    pid_t pid;
    bool reaped, pty, output_on[2], stdin_watched, stdin_finished, host_eof, killed, alone, service, left;
    int wait_status, status_fd, in_fd, out_fd[2];
    uint8_t *in_ring;
    uint32_t in_start, in_n, in_unacked;
    uint64_t credit, cap[2], sent[2], dropped[2], owed[2]; /* owed: bytes that were in the pipe when the main process ended */
    int64_t start_ns, deadline_ns, drain_ns, gone_ns;
    uint16_t rows, cols;
    struct status failure;
    struct slot *slot;
    struct leader *leader;
};
struct op *op_find(uint32_t id);
void op_frame(uint8_t type, uint32_t id, uint8_t *payload, uint32_t n);
bool ops_reads(pid_t pid); /* it is the child of an operation on files: the host's own */
bool ops_reap(void); /* true: this process has no child left, so in a container of its own there is no other process */
void op_status_ready(struct op *op);
bool open_pairs(struct pairs *p, const struct op *op, bool in);
void close_pair(int pair[2]);
void close_pairs(struct pairs *p);
pid_t fork_into(struct slot *slot);
void tree_end_tracer(struct op *op); /* a process outside of a program's namespace, or of another operation, can trace it, and never let it go on or end */
void op_start(struct op *op); /* its request is whole */
void op_refuse(struct op *op, int stage, int error, const char *detail);
void op_main_ended(uint32_t id, int wait_status);
void op_leader_lost(uint32_t id, bool program_ended);
void ops_see_limits(void);
void op_settle(struct op *op); /* send RESULT if everything it waits for has come */
bool ops_idle(void);           /* there are none */
bool ops_one_is_alone(void);
void ops_begin_again(void); /* HELLO: the ids of a new host begin at 1 */
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
