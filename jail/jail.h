/* The jail: what its parts share. One process is launched, supervised and ended; see main.c for the numbered steps. */
#ifndef JAIL_H
#define JAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

enum { MAX_BINDS = 16, MAX_CGROUPS = 16, MAX_KEPT = 32, MAX_RLIMITS = 16 };

struct bind {
    const char *source; /* on the host */
    const char *target; /* in the jail, starts with '/' */
    bool writable;
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
    struct bind binds[MAX_BINDS];
    int bind_count;
    const char *cgroups[MAX_CGROUPS]; /* directories */
    int cgroup_count;
    int kept[MAX_KEPT]; /* descriptors the jailed program gets, besides 0, 1 and 2 */
    int kept_count;
    int held_fd; /* a descriptor the supervisor holds until the end (the slot's lock), or -1 */
    struct rlimit_setting rlimits[MAX_RLIMITS];
    int rlimit_count;
    char **argv;
};

/* options.c */
void parse_options(int argc, char **argv, struct options *options);

/* A failed step ends the process that failed with one line on `fail_fd`: "step N name: reason". */
extern int fail_fd;
void step(int number, const char *name);
__attribute__((noreturn)) void fail(const char *detail);
void must(int result, const char *detail);

/* child.c: steps 5 to 18, in the new namespaces. Ends in execve. */
__attribute__((noreturn)) void enter_jail(const struct options *options, int go_fd);

/* clock.c: prints the counter's rate in kHz, 0 where there is none */
int measure_clock(void);

/* filter.c */
void install_filter(void);

/* supervise.c */
void write_file(const char *path, const char *text);
void map_ids(const struct options *options, pid_t child);
void join_cgroups(const struct options *options, pid_t child);
void keep_only(const int *kept, int count);
void drop_supervisor_privileges(void);
__attribute__((noreturn)) void supervise(const struct options *options, pid_t child, int child_pidfd, int owner_pidfd, int error_fd);

#endif
