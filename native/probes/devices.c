/* Devices: those that are there, and those that could be made. */
#include "probe.h"
#include <dirent.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#ifndef TIOCSTI
#define TIOCSTI 0x5412
#endif

typedef void visit(struct finding *f, const char *path, const struct stat *s);

static void walk(struct finding *f, const char *directory, int depth, visit *look)
{
    DIR *list = opendir(directory);
    struct dirent *entry;
    if (list == NULL)
        refused(f, directory);
    for (int seen = 0; list != NULL && seen < 2000 && (entry = readdir(list)) != NULL; seen++) {
        char path[512];
        struct stat s;
        if (entry->d_name[0] == '.' || !path_of(path, sizeof path, "%s/%s", directory, entry->d_name) || lstat(path, &s) != 0)
            continue;
        look(f, path, &s);
        if (S_ISDIR(s.st_mode) && depth > 0)
            walk(f, path, depth - 1, look);
    }
    if (list != NULL)
        closedir(list);
}

static void try_block(struct finding *f, const char *path, const struct stat *s)
{
    if (S_ISBLK(s->st_mode))
        opens(f, path, O_RDONLY);
}

static void block_present(struct finding *f)
{
    walk(f, "/dev", 2, try_block);
    absent(f, "no block device in /dev");
}

/* The ends of a directory's name are those of a device that was made; nothing is read from it. */
static void make_and_open(struct finding *f, mode_t kind, unsigned major, unsigned minor)
{
    char directory[64], path[80];
    if (scratch_directory(directory) != 0) {
        failed(f, "no place to make a device in: %s", errno_name(errno));
        return;
    }
    path_of(path, sizeof path, "%s/d", directory);
    if (mknod(path, kind | 0600, makedev(major, minor)) != 0)
        refused(f, "mknod");
    else if (opens(f, path, O_RDONLY))
        reached(f, "device %u:%u", major, minor);
    unlink(path);
    rmdir(directory);
}

static void make_each_partition(struct finding *f, char *text)
{
    unsigned major, minor;
    int made = 0;
    for (char *line; made < 8 && (line = strsep(&text, "\n")) != NULL;)
        if (sscanf(line, " %u %u", &major, &minor) == 2)
            make_and_open(f, S_IFBLK, major, minor), made++;
}

static void block_made(struct finding *f)
{
    static char text[16 << 10];
    static const unsigned MAJORS[] = {254, 8, 7}; /* virtio, SCSI, loop */
    for (size_t i = 0; i < sizeof MAJORS / sizeof *MAJORS; i++)
        make_and_open(f, S_IFBLK, MAJORS[i], 0);
    if (read_text("/proc/partitions", text, sizeof text) > 0)
        make_each_partition(f, text);
}

static void memory_present(struct finding *f)
{
    static const char *const PATHS[] = {"/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore", "/dev/nvram", "/dev/cpu/0/msr"};
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        opens(f, PATHS[i], O_RDONLY);
}

/* Memory, I/O ports, the kernel's log, FUSE, KVM, tun. */
static void character_made(struct finding *f)
{
    static const unsigned DEVICES[][2] = {{1, 1}, {1, 4}, {1, 11}, {10, 200}, {10, 229}, {10, 232}};
    for (size_t i = 0; i < sizeof DEVICES / sizeof *DEVICES; i++)
        make_and_open(f, S_IFCHR, DEVICES[i][0], DEVICES[i][1]);
}

/* A GPU of the plan: `devices` has them, with a space between. */
static bool is_planned(const char *path)
{
    const char *told = parameter("devices"), *found = told;
    size_t length = strlen(path);
    while (found != NULL && (found = strstr(found, path)) != NULL) {
        if ((found == told || found[-1] == ' ') && (found[length] == ' ' || found[length] == 0))
            return true;
        found += length;
    }
    return false;
}

static bool is_usual(const char *path, const struct stat *s)
{
    static const char *const USUAL[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts/ptmx"};
    enum { FIRST_PTS = 136, LAST_PTS = 143 };
    for (size_t i = 0; i < sizeof USUAL / sizeof *USUAL; i++)
        if (strcmp(path, USUAL[i]) == 0)
            return true;
    return strncmp(path, "/dev/pts/", 9) == 0 && major(s->st_rdev) >= FIRST_PTS && major(s->st_rdev) <= LAST_PTS;
}

/* Not opened: there are devices, as a watchdog, for which that is an order. */
static void try_character(struct finding *f, const char *path, const struct stat *s)
{
    if (!S_ISCHR(s->st_mode) || is_usual(path, s) || is_planned(path))
        return;
    if (access(path, R_OK) == 0 || access(path, W_OK) == 0)
        reached(f, "%.40s", path);
    else
        denied(f, "%.40s is there", path);
}

static void unusual(struct finding *f)
{
    walk(f, "/dev", 2, try_character);
    absent(f, "only the usual ones");
}

static void tunnel(struct finding *f)
{
    opens(f, "/dev/net/tun", O_RDWR);
}

static bool types_into(int slave)
{
    return setsid() >= 0 && ioctl(slave, TIOCSCTTY, 0) == 0 && ioctl(slave, TIOCSTI, "x") == 0;
}

/* Only the first process of a session has a terminal. */
static int type_in_session(int slave)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(types_into(slave) ? 0 : errno);
    if (pid > 0)
        waitpid(pid, &status, 0);
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

/* Into a terminal of its own, whose other end nobody reads: whether it can be done, not to whom. */
static void terminal_input(struct finding *f)
{
    int unlock = 0, master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave = -1;
    char name[64];
    if (master >= 0 && ioctl(master, TIOCSPTLCK, &unlock) == 0 && ptsname_r(master, name, sizeof name) == 0)
        slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        refused(f, "terminal");
    else if ((errno = type_in_session(slave)) == 0)
        reached(f, "typed into a terminal");
    else
        refused(f, "TIOCSTI");
}

static void consoles(struct finding *f)
{
    static const char *const PATHS[] = {"/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ttyS0", "/dev/ttyAMA0", "/dev/hvc0", "/dev/vcs", "/dev/fb0"};
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        opens(f, PATHS[i], O_WRONLY);
}

const struct probe device_probes[] = {
    {"devices.block_present", block_present, QUICK},
    {"devices.block_made", block_made, 0},
    {"devices.memory_present", memory_present, QUICK},
    {"devices.character_made", character_made, 0},
    {"devices.unusual", unusual, QUICK},
    {"devices.tunnel", tunnel, QUICK},
    {"devices.terminal_input", terminal_input, APART},
    {"devices.consoles", consoles, QUICK},
    {NULL, NULL, 0},
};
