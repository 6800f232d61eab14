/* The options: argv only, each checked, nothing optional is guessed. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void refuse(const char *what) {
    errno = EINVAL;
    fail(what);
}

static long long number(const char *text, long long max) {
    char *end = NULL;
    errno = 0;
    long long value = text && *text >= '0' && *text <= '9' ? strtoll(text, &end, 10) : -1;
    if (errno || !end || *end || value < 0 || value > max) refuse(text ? text : "a number is missing");
    return value;
}

static int descriptor(const char *text) { return (int)number(text, 1 << 20); }

static const char *absolute(const char *text) {
    if (!text || text[0] != '/') refuse(text ? text : "a path is missing");
    return text;
}

static void add_bind(struct options *o, const char *source, const char *target, bool writable) {
    if (o->bind_count == MAX_BINDS) refuse("too many binds");
    o->binds[o->bind_count++] = (struct bind){absolute(source), absolute(target), writable};
}

static void add_rlimit(struct options *o, const char *name, const char *value) {
    static const struct { const char *name; int resource; } known[] = {
        {"as", RLIMIT_AS}, {"core", RLIMIT_CORE}, {"fsize", RLIMIT_FSIZE}, {"memlock", RLIMIT_MEMLOCK}, {"nofile", RLIMIT_NOFILE}, {"nproc", RLIMIT_NPROC},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (name && !strcmp(name, known[i].name) && o->rlimit_count < MAX_RLIMITS) {
            o->rlimits[o->rlimit_count++] = (struct rlimit_setting){known[i].resource, (rlim_t)number(value, 1LL << 62)};
            return;
        }
    }
    refuse(name ? name : "a limit is missing");
}

/* Takes the option at argv[i] and returns how many words it took. */
static int take(struct options *o, char **argv, int i) {
    const char *name = argv[i], *first = argv[i + 1], *second = first ? argv[i + 2] : NULL;
    if (!strcmp(name, "--cell")) return o->cell_id = first, 2;
    if (!strcmp(name, "--root")) return o->root = absolute(first), 2;
    if (!strcmp(name, "--hostname")) return o->hostname = first, 2;
    if (!strcmp(name, "--lifeline")) return o->lifeline_fd = descriptor(first), 2;
    if (!strcmp(name, "--status")) return o->status_fd = descriptor(first), 2;
    if (!strcmp(name, "--hold")) return o->held_fd = descriptor(first), 2;
    if (!strcmp(name, "--owner")) return o->owner_pid = (pid_t)number(first, 1 << 30), 2;
    if (!strcmp(name, "--lifetime-ms")) return o->lifetime_ms = (long)number(first, 1LL << 40), 2;
    if (!strcmp(name, "--privileged")) return o->privileged = true, 1;
    if (!strcmp(name, "--uid")) return o->host_uid = (uid_t)number(first, 0x7fffffff), o->inner_uid = (uid_t)number(second, 0x7fffffff), 3;
    if (!strcmp(name, "--gid")) return o->host_gid = (gid_t)number(first, 0x7fffffff), o->inner_gid = (gid_t)number(second, 0x7fffffff), 3;
    if (!strcmp(name, "--bind")) return add_bind(o, first, second, false), 3;
    if (!strcmp(name, "--bind-writable")) return add_bind(o, first, second, true), 3;
    if (!strcmp(name, "--rlimit")) return add_rlimit(o, first, second), 3;
    if (!strcmp(name, "--cgroup")) {
        if (o->cgroup_count == MAX_CGROUPS) refuse("too many cgroups");
        return o->cgroups[o->cgroup_count++] = absolute(first), 2;
    }
    if (!strcmp(name, "--keep")) {
        if (o->kept_count == MAX_KEPT) refuse("too many descriptors");
        return o->kept[o->kept_count++] = descriptor(first), 2;
    }
    refuse(name);
    return 0;
}

void parse_options(int argc, char **argv, struct options *o) {
    *o = (struct options){.lifeline_fd = -1, .status_fd = -1, .held_fd = -1, .host_uid = (uid_t)-1, .host_gid = (gid_t)-1, .hostname = "localhost"};
    int i = 1;
    while (i < argc && strcmp(argv[i], "--")) i += take(o, argv, i);
    if (i + 1 >= argc) refuse("no program is given after --");
    o->argv = argv + i + 1;
    if (!o->cell_id || !o->root || o->lifeline_fd < 0 || o->status_fd < 0 || !o->owner_pid) refuse("--cell, --root, --lifeline, --status and --owner are needed");
    if (o->host_uid == (uid_t)-1 || o->host_gid == (gid_t)-1 || !o->inner_uid || !o->inner_gid) refuse("--uid and --gid are needed, and are not root inside");
    /* The supervisor's word for it: a jailed program is never the host's root. */
    if (!o->host_uid || !o->host_gid) refuse("the host uid and gid must not be 0");
}
