/* The options: argv only, each checked, nothing optional is guessed. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void add_bind(struct options *o, const char *source, const char *target) {
    if (o->bind_count == MAX_BINDS) refuse("too many binds");
    o->binds[o->bind_count++] = (struct bind){absolute(source), absolute(target)};
}

static bool is_word(const char *word, const char *yes, const char *no) {
    if (strcmp(word, yes) && strcmp(word, no)) refuse(word);
    return !strcmp(word, yes);
}

/* Ids above 2^32 - 2 are nobody's: -1 means "none" to the kernel. */
static struct id_line id_line(char *const *words) {
    const long long last = 0xfffffffeLL;
    struct id_line line = {(unsigned)number(words[0], last), (unsigned)number(words[1], last), (unsigned)number(words[2], last)};
    if (!line.count || line.inner + (long long)line.count - 1 > last || line.outer + (long long)line.count - 1 > last) refuse("an id map's line");
    return line;
}

static void add_id_line(struct id_map *map, char *const *words) {
    if (map->count == MAX_ID_LINES) refuse("too many lines in an id map");
    map->lines[map->count++] = id_line(words);
}

static struct mount_setting *new_mount(struct options *o, enum mount_kind kind, const char *source, const char *target) {
    if (o->mount_count == MAX_MOUNTS) refuse("too many mounts");
    struct mount_setting *mount = &o->mounts[o->mount_count++];
    *mount = (struct mount_setting){.kind = kind, .source = source, .target = absolute(target), .fd = -1};
    return mount;
}

static void add_tmpfs(struct options *o, char *const *words) {
    struct mount_setting *mount = new_mount(o, MOUNT_TMPFS, NULL, words[0]);
    mount->size_bytes = (unsigned long long)number(words[1], 1LL << 50);
    mount->inodes = (unsigned long long)number(words[2], 1LL << 40);
    mount->mode = (mode_t)number(words[3], 07777);
    mount->executable = is_word(words[4], "exec", "noexec");
    /* To a tmpfs, 0 means "no limit". */
    if (!mount->size_bytes || !mount->inodes) refuse("a tmpfs without limits");
}

static void add_overlay(struct options *o, char *const *words) {
    struct mount_setting *mount = new_mount(o, MOUNT_OVERLAY, NULL, words[0]);
    mount->lower = absolute(words[1]);
    mount->upper = absolute(words[2]);
    mount->work = absolute(words[3]);
    for (int i = 1; i < 4; i++)
        if (strpbrk(words[i], ",:\\")) refuse(words[i]);
}

static void add_shifted_tree(struct options *o, char *const *words) {
    struct mount_setting *mount = new_mount(o, MOUNT_TREE, absolute(words[0]), words[1]);
    mount->shifted = true;
    mount->shift = id_line(words + 2);
    if (!mount->shift.outer) refuse("a tree shown as the host's root's");
}

static void add_environment(struct options *o, char *word) {
    if (o->environment_count == MAX_ENVIRONMENT) refuse("too many variables");
    if (!strchr(word, '=') || *word == '=') refuse("a variable is NAME=VALUE");
    o->environment[o->environment_count++] = word;
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

/* Whether this is the option's name, and if so that its `count` words are there. */
static bool is_option(char *const *argv, const char *name, int count) {
    if (strcmp(argv[0], name)) return false;
    for (int i = 1; i <= count; i++)
        if (!argv[i]) refuse(name);
    return true;
}

/* As `take`, for mounts; 0 when it is none. */
static int take_mount(struct options *o, char *const *argv) {
    char *const *words = argv + 1;
    if (is_option(argv, "--mount-bind", 3)) {
        new_mount(o, MOUNT_BIND, absolute(words[0]), words[1])->writable = is_word(words[2], "writable", "read-only");
        return 4;
    }
    if (is_option(argv, "--mount-tree", 2)) return new_mount(o, MOUNT_TREE, absolute(words[0]), words[1]), 3;
    if (is_option(argv, "--mount-shifted-tree", 5)) return add_shifted_tree(o, words), 6;
    if (is_option(argv, "--mount-device", 2)) return new_mount(o, MOUNT_DEVICE, absolute(words[0]), words[1]), 3;
    if (is_option(argv, "--mount-tmpfs", 5)) return add_tmpfs(o, words), 6;
    if (is_option(argv, "--mount-proc", 1)) return new_mount(o, MOUNT_PROC, NULL, words[0]), 2;
    if (is_option(argv, "--mount-sysfs", 1)) return new_mount(o, MOUNT_SYSFS, NULL, words[0]), 2;
    if (is_option(argv, "--mount-cgroup", 1)) return new_mount(o, MOUNT_CGROUP, NULL, words[0]), 2;
    if (is_option(argv, "--mount-overlay", 4)) return add_overlay(o, words), 5;
    return 0;
}

/* As `take`, for what only a runtime's jail has; 0 when it is none. */
static int take_runtime(struct options *o, char *const *argv) {
    char *const *words = argv + 1;
    if (is_option(argv, "--uid-map", 3)) return add_id_line(&o->uid_map, words), 4;
    if (is_option(argv, "--gid-map", 3)) return add_id_line(&o->gid_map, words), 4;
    if (is_option(argv, "--newuidmap", 1)) return o->newuidmap = absolute(words[0]), 2;
    if (is_option(argv, "--newgidmap", 1)) return o->newgidmap = absolute(words[0]), 2;
    if (is_option(argv, "--stdin", 1)) return o->stdin_fd = descriptor(words[0]), 2;
    if (is_option(argv, "--env", 1)) return add_environment(o, words[0]), 2;
    if (is_option(argv, "--keep-capabilities", 0)) return o->keep_capabilities = true, 1;
    if (is_option(argv, "--user-namespace", 1)) return o->userns_fd = descriptor(words[0]), 2;
    if (is_option(argv, "--network", 2)) return o->network_fd = descriptor(words[0]), o->network_covered = is_word(words[1], "covered", "plain"), 3;
    if (is_option(argv, "--init", 0)) return o->init = true, 1;
    return take_mount(o, argv);
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
    if (!strcmp(name, "--bind")) return add_bind(o, first, second), 3;
    if (!strcmp(name, "--rlimit")) return add_rlimit(o, first, second), 3;
    if (!strcmp(name, "--cgroup")) {
        if (o->cgroup_count == MAX_CGROUPS) refuse("too many cgroups");
        return o->cgroups[o->cgroup_count++] = absolute(first), 2;
    }
    if (!strcmp(name, "--keep")) {
        if (o->kept_count == MAX_KEPT) refuse("too many descriptors");
        return o->kept[o->kept_count++] = descriptor(first), 2;
    }
    int taken = take_runtime(o, argv + i);
    if (!taken) refuse(name);
    return taken;
}

/* The program is 0 inside, and nothing inside is the host's root (whose 0 a user namespace that is entered may not have either, see ids.c). */
static void check_map(const struct id_map *map, bool is_hosts) {
    bool has_program = false;
    for (int i = 0; i < map->count; i++) {
        if (is_hosts && !map->lines[i].outer) refuse("the host's id 0 can't be mapped into a jail: give the directory to a mapped id instead");
        has_program |= !map->lines[i].inner;
    }
    if (!has_program) refuse("an id map without 0");
}

static void check_ids(const struct options *o) {
    if (o->userns_fd >= 0 && (o->privileged || o->newuidmap || !geteuid())) refuse("--user-namespace is an ordinary user's, and needs no helper");
    if (!o->newuidmap != !o->newgidmap) refuse("--newuidmap and --newgidmap belong together");
    if (has_id_maps(o) || o->gid_map.count) {
        check_map(&o->uid_map, o->userns_fd < 0);
        check_map(&o->gid_map, o->userns_fd < 0);
        return;
    }
    if (o->keep_capabilities || o->init || o->mount_count || o->newuidmap) refuse("mounts, capabilities and an init need --uid-map and --gid-map");
    if (o->host_uid == (uid_t)-1 || o->host_gid == (gid_t)-1 || !o->inner_uid || !o->inner_gid) refuse("--uid and --gid are needed, and are not root inside");
    /* The supervisor's word for it: a jailed program is never the host's root. */
    if (o->userns_fd < 0 && (!o->host_uid || !o->host_gid)) refuse("the host uid and gid must not be 0");
}

void parse_options(int argc, char **argv, struct options *o) {
    *o = (struct options){.lifeline_fd = -1, .status_fd = -1, .held_fd = -1, .stdin_fd = -1, .userns_fd = -1, .network_fd = -1, .host_uid = (uid_t)-1, .host_gid = (gid_t)-1, .hostname = "localhost"};
    int i = 1;
    while (i < argc && strcmp(argv[i], "--")) i += take(o, argv, i);
    if (i + 1 >= argc) refuse("no program is given after --");
    o->argv = argv + i + 1;
    if (!o->cell_id || !o->root || o->lifeline_fd < 0 || o->status_fd < 0 || !o->owner_pid) refuse("--cell, --root, --lifeline, --status and --owner are needed");
    check_ids(o);
    if (o->network_fd >= 0 && (!o->init || !o->keep_capabilities)) refuse("--network needs --init and --keep-capabilities");
    for (int i = 0; i < o->mount_count; i++)
        if (o->mounts[i].shifted && !o->privileged) refuse("only root can shift a tree's owners");
}
