/* The jail: what its parts share. One process is launched, supervised and ended; see main.c for the numbered steps. */
#ifndef JAIL_H
#define JAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { MAX_BINDS = 16, MAX_CGROUPS = 16, MAX_KEPT = 32, MAX_RLIMITS = 16, MAX_MOUNTS = 48, MAX_ID_LINES = 8, MAX_ENVIRONMENT = 32 };

struct bind {
    const char *source; /* on the host */
    const char *target; /* in the jail, starts with '/' */
};

struct id_line {
    unsigned inner, outer, count;
};

struct id_map {
    struct id_line lines[MAX_ID_LINES];
    int count;
};

enum mount_kind { MOUNT_BIND, MOUNT_TREE, MOUNT_DEVICE, MOUNT_TMPFS, MOUNT_PROC, MOUNT_SYSFS, MOUNT_CGROUP, MOUNT_OVERLAY };

struct mount_setting {
    enum mount_kind kind;
    const char *source; /* on the host: bind, tree, device */
    const char *target; /* in the jail, starts with '/', as do lower, upper and work */
    bool writable;      /* bind */
    bool executable;    /* tmpfs */
    bool shifted;       /* tree: id-mapped by `shift` (inner: on disk, outer: as seen on the host) */
    struct id_line shift;
    unsigned long long size_bytes, inodes; /* tmpfs */
    mode_t mode;
    const char *lower, *upper, *work; /* overlay */
    int fd;                           /* the source as a detached mount, once it is opened */
};

struct rlimit_setting {
    int resource;
    rlim_t value;
};

struct options {
    const char *cell_id;
    const char *root; /* becomes '/', read-only */
    const char *hostname;
    int lifeline_fd; /* its other end closed: the owner is gone */
    int status_fd;   /* one line per fact, see supervise.c */
    pid_t owner_pid;
    long lifetime_ms; /* 0: no deadline */
    bool privileged;  /* started by root: a host uid of its own */
    uid_t host_uid, inner_uid;
    gid_t host_gid, inner_gid;
    struct id_map uid_map, gid_map; /* empty: one uid and one gid, as above. Else the program is 0 in them */
    const char *newuidmap, *newgidmap;
    struct bind binds[MAX_BINDS];
    int bind_count;
    struct mount_setting mounts[MAX_MOUNTS];
    int mount_count;
    const char *cgroups[MAX_CGROUPS]; /* directories */
    int cgroup_count;
    int kept[MAX_KEPT]; /* descriptors the jailed program gets, besides 0, 1 and 2 */
    int kept_count;
    int held_fd; /* a descriptor the supervisor holds until the end (the slot's lock), or -1 */
    int stdin_fd; /* becomes the program's descriptor 0, or -1 */
    int userns_fd; /* an ordinary user's: the namespaces are made below this user namespace, and the maps' outer ids are its; or -1 */
    int network_fd; /* with an init: a network namespace for a range's link, and a byte here when that is there, see network.c; or -1 */
    bool network_covered; /* hide /proc/sys/net: gVisor's runtime of 2024 takes a namespace that has it all for the host's */
    struct rlimit_setting rlimits[MAX_RLIMITS];
    int rlimit_count;
    char *environment[MAX_ENVIRONMENT + 1];
    int environment_count;
    bool keep_capabilities;
    bool init; /* pid 1 stays ours, see init.c */
    char **argv;
};

/* options.c */
void parse_options(int argc, char **argv, struct options *options);

/* step.c. A failed step ends the process that failed with one line on `fail_fd`: "failed step N name errno E: reason". */
extern int fail_fd;
void step(int number, const char *name);
__attribute__((noreturn)) void fail(const char *detail);
void must(int result, const char *detail);

/* drop.c */
void keep_only(const int *kept, int count);
void hold_no_capability(void);

static inline bool has_id_maps(const struct options *options) { return options->uid_map.count > 0; }

/* ids.c, by the supervisor */
void write_file(const char *path, const char *text);
void map_ids(const struct options *options, pid_t child);
int open_shifting_namespace(const struct id_line *shift);
void enter_user_namespace(const struct options *options);
void own_as_stage(const struct options *options); /* around the making of namespaces */
void own_as_root(const struct options *options);

/* mounts.c. Attributes as mount_setattr takes them */
enum { ATTR_RDONLY = 0x1, ATTR_NOSUID = 0x2, ATTR_NODEV = 0x4, ATTR_NOEXEC = 0x8, ATTR_IDMAP = 0x100000, ATTR_NOSYMFOLLOW = 0x200000 };
int clone_mount(const char *source, uint64_t attributes, int userns_fd);
void place_mount(int fd, const char *target);
void bind_with(const char *source, const char *target, uint64_t attributes);
void open_sources(struct options *options);
void make_mounts(const struct options *options);
void verify_mounts(const struct options *options);

/* trees.c, by the supervisor: puts the id-mapped trees in their places in a mount namespace of its own; the descriptor of the host's, or -1 */
int shift_trees(const struct options *options);

/* lock.c: `proc_fd` is the caller's own directory in /proc, opened while there was one */
int open_own_proc(void);
void lock_mounts(const struct options *options, int proc_fd);

/* child.c: steps 5 to 18 and 25, in the new namespaces. Ends in execve. */
__attribute__((noreturn)) void enter_jail(struct options *options, int go_fd);

/* clock.c: prints the counter's rate in kHz, 0 where there is none */
int measure_clock(void);

/* trial.c: 0 when this user may make a jail's namespaces; else it fails with the step */
int try_namespaces(void);

/* init.c: forks, and returns in the process that is to become the program; pid 1 never returns */
void become_init(const struct options *options);

/* network.c, by the stage: returns when the link is there */
void make_network(const struct options *options);

/* filter.c: for a program without capabilities; for one that keeps them; for our own pid 1, which waits and ends */
void install_filter(void);
void install_runtime_filter(void);
void install_init_filter(void);

/* supervise.c */
void join_cgroups(const struct options *options, pid_t child);
void drop_supervisor_privileges(void);
__attribute__((noreturn)) void supervise(const struct options *options, pid_t child, int child_pidfd, int owner_pidfd, int error_fd);

#endif
