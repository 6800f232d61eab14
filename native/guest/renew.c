/* RENEW: what makes a restored clone a machine of its own. Each part that was done is a bit of the answer; the host decides what it can't do without.
 * The files are the image's, so nothing here follows a link or opens anything but a regular file, and it runs before the first operation. */
#include "agent.h"
#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/random.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

enum { DID_RNG = 1, DID_CLOCK = 2, DID_MACHINE_ID = 4, DID_BOOT_ID = 8, DID_HOSTNAME = 16, DID_NETWORK = 32, MAX_SEED_BYTES = 512 };

bool renewed;

static bool credit_random(const char *seed, uint32_t n)
{
    static struct { int bits, bytes; char seed[MAX_SEED_BYTES]; } pool;
    if (n < 32 || n > MAX_SEED_BYTES)
        return false;
    int fd = open("/dev/random", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    pool.bits = (int)n * 8, pool.bytes = (int)n;
    memcpy(pool.seed, seed, n);
    bool done = ioctl(fd, RNDADDENTROPY, &pool) == 0 && ioctl(fd, RNDRESEEDCRNG) == 0;
    memset(&pool, 0, sizeof pool);
    __asm__ volatile("" : : "r"(&pool) : "memory"); /* the seed is not left in memory that children copy */
    close(fd);
    return done;
}

bool set_clock(uint64_t realtime_ns)
{
    struct timespec t = {.tv_sec = (time_t)(realtime_ns / 1000000000), .tv_nsec = (long)(realtime_ns % 1000000000)};
    return clock_settime(CLOCK_REALTIME, &t) == 0;
}

/* gVisor has no openat2. All paths here are a directory of the root and a name in it. */
static int open_step_by_step(const char *path, int how)
{
    char dir[16];
    const char *name = strchr(path, '/') + 1;
    format(dir, sizeof dir, "%.*s", (int)(name - path - 1), path);
    int at = openat(container.root, dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = at < 0 ? -1 : openat(at, name, how | O_NOFOLLOW, 0644);
    if (at >= 0)
        close(at);
    return fd;
}

/* A regular file below the container's root, no link on the way; created when `create` says so and its directory is there. */
static int open_plain(const char *path, bool create)
{
    struct stat s;
    struct open_how how = {
        .flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (uint64_t)(create ? O_CREAT : 0),
        .mode = create ? 0644 : 0,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
    };
    int fd = (int)syscall(SYS_openat2, container.root, path, &how, sizeof how);
    if (fd < 0 && no_such_call() && contained_mode)
        fd = open_step_by_step(path, (int)how.flags);
    if (fd < 0)
        return -1;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && ftruncate(fd, 0) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Those that RENEW writes. In the machine they are open from before the snapshot until RENEW is over: a clone writes into pages that it has. */
enum { MACHINE_ID, HOSTNAME, HOSTS, RESOLVER, PLAIN_FILES };
static struct plain { const char *path; bool create; int fd; size_t size; } plains[PLAIN_FILES] = {
    {"etc/machine-id", false, -1, 0}, {"etc/hostname", true, -1, 0}, {"etc/hosts", true, -1, 0}, {"etc/resolv.conf", true, -1, 0}};

static bool open_one(struct plain *file)
{
    if (file->fd >= 0)
        return true;
    file->size = 0;
    file->fd = open_plain(file->path, file->create);
    return file->fd >= 0 && (!file->create || !in_machine() || fchown(file->fd, ID_SHIFT, ID_SHIFT) == 0);
}

static void close_plains(void)
{
    for (int i = 0; i < PLAIN_FILES; i++) {
        if (plains[i].fd >= 0)
            close(plains[i].fd);
        plains[i].fd = -1;
    }
}

static bool write_plain(struct plain *file, const char *text)
{
    size_t n = strlen(text);
    bool done = open_one(file) && pwrite(file->fd, text, n, 0) == (ssize_t)n && (n >= file->size || ftruncate(file->fd, (off_t)n) == 0);
    file->size = n;
    return done;
}

static bool set_boot_id(const char *id)
{
    char line[64];
    return format(line, sizeof line, "%s\n", id) && strlen(line) == 37 && pwrite(container.boot_id, line, 37, 0) == 37;
}

/* No runtime binds anything into /proc, so this process does, while it may. The file is mounted by its descriptor: its name is root's of the cell, who may
 * put another thing there meanwhile, such as a link into a /proc whose covers have been moved off. */
bool cover_with_text(const char *over, const char *text)
{
    static const char file[] = "/dev/.b";
    char by_fd[64];
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0)
        return false;
    bool done = format(by_fd, sizeof by_fd, "/proc/self/fd/%d", fd) && write_all(fd, text, strlen(text)) == 0 && mount(by_fd, over, NULL, MS_BIND, NULL) == 0 &&
        mount(NULL, over, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0;
    close(fd);
    return unlink(file) == 0 && done;
}

/* The kernel's would be the same in every cell of this host. */
static bool cover_boot_id(const char *id)
{
    char line[64];
    return format(line, sizeof line, "%s\n", id) && strlen(line) == 37 && cover_with_text("/proc/sys/kernel/random/boot_id", line);
}

/* The kernel's own is the host's business, and gVisor's says what it is. */
static bool cover_command_line(void) { return cover_with_text("/proc/cmdline", COMMAND_LINE); }

enum { MAX_STILL = 160 };

static void still_processors(char *to, const char *name, const char *value)
{
    if (strncmp(name, "cpu", 3) == 0)
        format(to, MAX_STILL, "%s%s 0 0 0 0 0 0 0 0 0 0\n", name, name[3] == 0 ? " " : "");
    else if (strcmp(name, "btime") == 0)
        format(to, MAX_STILL, "intr 0\nctxt 0\nbtime %s\nprocesses 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n", value);
}

static void still_counter(char *to, const char *name, const char *value)
{
    if (*value != 0)
        format(to, MAX_STILL, "%s 0\n", name);
}

/* The same lines at rest: the kernel's numbers are of the whole host, so that one cell could tell another something by them. Programs want the processors, the
 * time of the start and the names (psutil, ps, vmstat, Node), and end without. */
static bool cover_still(const char *path, void (*still)(char *to, const char *name, const char *value))
{
    enum { ROOM = 1 << 20 };
    char *now = malloc(ROOM), *text = malloc(ROOM), *rest = now, *line;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t have = 0, used = 0;
    if (fd < 0 || now == NULL || text == NULL)
        return false;
    for (ssize_t n; have < ROOM - 1 && (n = read(fd, now + have, ROOM - 1 - have)) > 0;)
        have += (size_t)n;
    now[have] = 0;
    while (used + MAX_STILL < ROOM && (line = strsep(&rest, "\n")) != NULL) {
        char *name = strsep(&line, " ");
        text[used] = 0;
        still(text + used, name, line == NULL ? "" : line);
        used += strlen(text + used);
    }
    bool done = used != 0 && cover_with_text(path, text);
    close(fd);
    free(now), free(text);
    return done;
}

/* Copies of what is bound from the host: a lock or a watch on the host's own file would be seen in other cells. */
static bool cover_processor_files(void)
{
    static const char *const PATHS[] = {"/sys/devices/system/cpu/online", "/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/present"};
    char text[256];
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        int fd = open(PATHS[i], O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        text[n < 0 ? 0 : n] = 0;
        if (n < 0 ? errno != ENOENT : !cover_with_text(PATHS[i], text))
            return false;
    }
    return true;
}

static bool set_machine_id(const char *id)
{
    char line[64];
    struct stat s;
    if (fstatat(container.root, plains[MACHINE_ID].path, &s, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
        return true; /* the image has none, and so none that others share */
    return format(line, sizeof line, "%s\n", id) && strlen(line) == 33 && write_plain(&plains[MACHINE_ID], line);
}

static bool set_hostname(const char *name)
{
    char hosts[512], line[80];
    size_t n = strlen(name);
    if (n == 0 || n > 64 || sethostname(name, n) != 0)
        return false;
    if (mkdirat(container.root, "etc", 0755) == 0 && in_machine() && fchownat(container.root, "etc", ID_SHIFT, ID_SHIFT, AT_SYMLINK_NOFOLLOW) != 0)
        return false; /* an image of one program has none */
    format(line, sizeof line, "%s\n", name);
    format(hosts, sizeof hosts, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t%s\n", name);
    bool file = write_plain(&plains[HOSTNAME], line);
    return write_plain(&plains[HOSTS], hosts) && file;
}

/* Images like to have a link there, into a directory that nobody fills here. */
static void remove_link(const char *dir, const char *name)
{
    struct stat s;
    int at = openat(container.root, dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0)
        return;
    if (fstatat(at, name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode))
        unlinkat(at, name, 0);
    close(at);
}

static bool set_resolver(const char *text)
{
    remove_link("etc", "resolv.conf");
    return write_plain(&plains[RESOLVER], text);
}

/* Before the snapshot: the files that RENEW writes are already in the writable layer then, so that a clone need not copy them up first. What they say
 * until RENEW nobody reads: no operation starts before it. */
void renew_prepare(const char *hostname)
{
    set_hostname(hostname);
    set_machine_id("00000000000000000000000000000000");
    if (container.has_device)
        set_resolver("nameserver 255.255.255.255\n");
}

void renew(struct reader *r)
{
    uint8_t done = 0, head[4];
    uint32_t seed_n = 0;
    char resolver[40];
    uint64_t realtime_ns = take_int(r, 8);
    char *seed = take_str(r, &seed_n), *machine_id = take_str(r, NULL), *boot_id = take_str(r, NULL), *hostname = take_str(r, NULL);
    if (r->bad)
        fatal("the host sent a malformed RENEW", 0);
    bool network = r->p != r->end && network_renew(r, resolver, sizeof resolver);
    if (in_machine() && container.built) { /* in native mode this machine is the host's own, and stays as it is */
        done |= set_clock(realtime_ns) ? DID_CLOCK : 0; /* first: the time grows old */
        done |= credit_random(seed, seed_n) ? DID_RNG : 0;
        done |= set_machine_id(machine_id) ? DID_MACHINE_ID : 0;
        done |= set_boot_id(boot_id) ? DID_BOOT_ID : 0;
        done |= set_hostname(hostname) ? DID_HOSTNAME : 0;
        done |= network && set_resolver(resolver) ? DID_NETWORK : 0;
    }
    if (contained_mode && !renewed) { /* the kernel, and with it randomness and clock, is the host's; gVisor's has a boot id of its own */
        done |= !in_sentry && cover_boot_id(boot_id) ? DID_BOOT_ID : 0;
        if (!cover_command_line())
            fatal("/proc/cmdline", errno);
        if (!in_sentry && !(cover_still("/proc/stat", still_processors) && cover_still("/proc/vmstat", still_counter) && cover_processor_files()))
            fatal("the host's counters", errno);
        if (in_sentry && !close_devices())
            fatal("/dev", errno);
        done |= set_machine_id(machine_id) ? DID_MACHINE_ID : 0;
        done |= set_hostname(hostname) ? DID_HOSTNAME : 0;
        done |= network && set_resolver(resolver) ? DID_NETWORK : 0;
        users_remember(-1);
        leaders_prepare();
    }
    memset(seed, 0, seed_n);
    close_plains();
    limits_prepare();
    if (cgroups_frozen()) /* a fork of a used machine: what ran there draws no random number before this */
        cgroups_freeze(false);
    renewed = !in_machine() || container.built;
    put_le(head, done, 4);
    send_text(F_RENEWED, 0, head, 4, native_mode ? "native: nothing to renew" : renewed ? "" : "no container");
}
