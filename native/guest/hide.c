/* Contained mode's start: this process was started from files that the runtime bound into the container, with arguments that every process there can read. */
#include "agent.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

static const char NAME[] = "init";
static int stash[2] = {-1, -1};

/* A descriptor on its way through a socket is in no process's table: gVisor lets every process open every other's descriptors through /proc. */
static bool stash_send(int fd) { return send_with(stash[1], "", 1, fd, MSG_DONTWAIT); }

static int stash_receive(void)
{
    char byte;
    int fd;
    receive_with(stash[0], &byte, 1, &fd, MSG_DONTWAIT);
    return fd;
}

static void stash_probe(int fd)
{
    if (fd < 0)
        return;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, stash) != 0 || !stash_send(fd))
        fatal("probe program", errno);
    close(fd);
}

int borrow_probe(void)
{
    int fd = stash[0] < 0 ? -1 : stash_receive();
    if (fd >= 0 && !stash_send(fd))
        fatal("probe program", errno);
    return fd;
}

bool in_sentry;

/* A place holder is an empty file, under gVisor an empty directory; what can't be unmounted stays and can't be removed either. */
static void take_away(const char *path)
{
    if (umount2(path, MNT_DETACH) == 0 && unlink(path) != 0)
        rmdir(path);
}

/* Every process can read /proc/PID/cmdline: the kernel shows what is in this memory, up to the first NUL when the last byte isn't one. */
static void forget_arguments(int argc, char **argv)
{
    char *begin = argv[0], *end = argv[argc - 1] + strlen(argv[argc - 1]);
    memset(begin, 0, (size_t)(end - begin));
    if ((size_t)(end - begin) > sizeof NAME) {
        memcpy(begin, NAME, sizeof NAME);
        *end = 1;
    }
    for (char **variable = environ; *variable != NULL; variable++)
        memset(*variable, 0, strlen(*variable));
    *environ = NULL;
}

/* Some runtimes put more than the usual devices there. */
static void remove_other_devices(void)
{
    static const char *const usual[] = {"null", "zero", "full", "random", "urandom", "tty", "console"};
    struct stat s;
    int dev = open("/dev", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = dev < 0 ? NULL : fdopendir(dev);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        bool keep = fstatat(dev, entry->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !(S_ISCHR(s.st_mode) || S_ISBLK(s.st_mode));
        for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
            keep |= strcmp(entry->d_name, usual[i]) == 0;
        if (!keep)
            unlinkat(dev, entry->d_name, 0);
    }
    if (list != NULL && unlinkat(dev, "net/tun", 0) == 0)
        unlinkat(dev, "net", AT_REMOVEDIR);
    if (list != NULL)
        closedir(list);
}

/* gVisor's /dev/tty can't be opened, not even by a process with a terminal. The input of such a process is nearly always its terminal. */
static void mend_terminal(void)
{
    int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    if (fd >= 0 || errno != EIO)
        return;
    in_sentry = true;
    if (unlink("/dev/tty") == 0 && symlink("/proc/self/fd/0", "/dev/tty") != 0)
        fatal("/dev/tty", errno);
}

/* The same entry in the new directory: what it leads to is bound, since gVisor allows no write to a device on a read-only mount. */
static bool carry_over(const char *from, const char *to)
{
    struct stat s;
    char target[256];
    ssize_t n = readlink(from, target, sizeof target - 1);
    if (n >= 0) {
        target[n] = 0;
        return symlink(target, to) == 0;
    }
    if (lstat(from, &s) != 0 || (S_ISDIR(s.st_mode) ? mkdir(to, 0755) : mknod(to, S_IFREG | 0644, 0)) != 0)
        return false;
    return mount(from, to, NULL, MS_BIND, NULL) == 0;
}

bool close_devices(void)
{
    static const char new[] = "/dev/.d";
    char from[300], to[300];
    if (mkdir(new, 0755) != 0 || mount("none", new, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k") != 0)
        return false;
    DIR *list = opendir("/dev");
    bool done = list != NULL;
    for (struct dirent *entry; done && (entry = readdir(list)) != NULL;)
        if (entry->d_name[0] != '.')
            done = format(from, sizeof from, "/dev/%s", entry->d_name) && format(to, sizeof to, "%s/%s", new, entry->d_name) && carry_over(from, to);
    if (list != NULL)
        closedir(list);
    return done && mount(new, "/dev", NULL, MS_BIND | MS_REC, NULL) == 0 &&
        mount(NULL, "/dev", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL) == 0;
}

void hide(int argc, char **argv)
{
    mend_terminal();
    if (argc > 4)
        stash_probe(open(argv[4], O_PATH | O_CLOEXEC)); /* it may be run, not read */
    for (int i = 3; i < argc; i++)
        take_away(argv[i]);
    remove_other_devices();
    forget_arguments(argc, argv);
    prctl(PR_SET_NAME, NAME);
}
