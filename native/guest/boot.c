/* Process 1 of the guest, before it serves: modules, mounts, the channel's device. Nothing of the image runs here, or ever with this process's rights. */
#include "agent.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static const char PORT_NAME[] = "org.qemu.guest_agent.0"; /* the name every QEMU guest has: it tells the workload nothing */

static void must_mount(const char *source, const char *target, const char *type, unsigned long flags, const char *options)
{
    mkdir(target, 0755);
    if (mount(source, target, type, flags, options) != 0)
        fatal(target, errno);
}

static int is_module(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return n > 3 && strcmp(entry->d_name + n - 3, ".ko") == 0;
}

static void load_module(const char *name)
{
    char path[300];
    format(path, sizeof path, "/m/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST))
        fatal(path, errno);
    close(fd);
    unlink(path);
}

/* In the order of their names: NN-name.ko, the dependencies first. */
static void load_modules(void)
{
    struct dirent **list;
    int n = scandir("/m", &list, is_module, alphasort);
    for (int i = 0; i < n; i++) {
        load_module(list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    rmdir("/m");
}

/* Opened for execution only, and without a name from now on. */
static int take_program(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    return fd;
}

/* The initramfs's own root can't be pivoted away from; a tmpfs on top of it can. The container's first process pivots out of this one. */
static void leave_initramfs(void)
{
    must_mount("none", "/r", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755");
    if (chdir("/r") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
        fatal("root", errno);
    if (mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) != 0)
        fatal("private", errno);
}

static void close_kernel_doors(void)
{
    static const char *const doors[][2] = {
        {"/proc/sys/kernel/modules_disabled", "1"},
        {"/proc/sys/kernel/kexec_load_disabled", "1"},
        {"/proc/sys/kernel/modprobe", ""},
        {"/proc/sys/kernel/core_pattern", ""},
        {"/proc/sys/kernel/unprivileged_bpf_disabled", "1"},
        {"/proc/sys/kernel/perf_event_paranoid", "3"},
        {"/proc/sys/kernel/kptr_restrict", "2"},
        {"/proc/sys/kernel/dmesg_restrict", "1"},
        {"/proc/sys/kernel/sysrq", "0"},
        {"/proc/sys/kernel/printk", "3 4 1 3"},
        {"/proc/sys/vm/panic_on_oom", "0"},
        {"/proc/sys/fs/file-max", "9223372036854775807"}, /* open files count as memory of the process that opens them; a limit for the whole machine could shut out others */
        {"/proc/sys/vm/oom_kill_allocating_task", "0"},
        {"/proc/sys/vm/min_free_kbytes", "4096"}, /* huge pages would have it at a 20th of the machine: the workload would starve before it meets its limit */
    };
    for (size_t i = 0; i < sizeof doors / sizeof *doors; i++) {
        const char *text = doors[i][1][0] ? doors[i][1] : "\n";
        int error = write_at(AT_FDCWD, doors[i][0], text);
        if (i == 0 && error != 0)
            fatal(doors[i][0], -error); /* the others exist or not with the kernel's configuration; this one is a promise */
    }
}

static void wait_for(const char *path)
{
    for (int tries = 0; access(path, F_OK) != 0; tries++) {
        if (tries == 10000)
            fatal(path, ENOENT);
        usleep(1000);
    }
}

static int open_port(const char *device)
{
    char path[300];
    format(path, sizeof path, "/dev/%s", device);
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        fatal(path, errno);
    return fd;
}

static bool is_our_port(int ports, const char *device)
{
    char path[300], name[64];
    format(path, sizeof path, "%s/name", device);
    ssize_t n = read_at(ports, path, name, sizeof name);
    return n == (ssize_t)sizeof PORT_NAME && memcmp(name, PORT_NAME, sizeof PORT_NAME - 1) == 0; /* a newline ends it */
}

static int find_port(void)
{
    DIR *ports = opendir("/sys/class/virtio-ports");
    if (ports == NULL)
        return -1;
    struct dirent *entry;
    int fd = -1;
    while (fd < 0 && (entry = readdir(ports)) != NULL)
        if (entry->d_name[0] != '.' && is_our_port(dirfd(ports), entry->d_name))
            fd = open_port(entry->d_name);
    closedir(ports);
    return fd;
}

static bool has_data_disk(void)
{
    char line[4096];
    return read_at(AT_FDCWD, "/proc/cmdline", line, sizeof line) > 0 && strstr(line, " data_disk") != NULL; /* DATA_DISK_WORD of plan/qemu.py */
}

int boot(void)
{
    umask(022);
    load_modules();
    probe_fd = take_program("/p");
    leave_initramfs();
    must_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    must_mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    must_mount("dev", "/dev", "devtmpfs", MS_NOSUID, "mode=755");
    must_mount("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=256k,mode=700");
    close_kernel_doors();
    int port = -1;
    for (int tries = 0; (port = find_port()) < 0; tries++) {
        if (tries == 10000)
            fatal("no channel", ENODEV);
        usleep(1000);
    }
    channel_open(port);
    wait_for("/dev/vda");
    must_mount("/dev/vda", "/ro", "squashfs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
    if (has_data_disk()) {
        wait_for("/dev/vdb");
        must_mount("/dev/vdb", DATA_DISK, "squashfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    }
    int error = cgroups_mount();
    if (error != 0)
        fatal("cgroup", error);
    return port;
}
