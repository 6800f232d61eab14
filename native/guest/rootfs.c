/* The container's file tree, built by its first process while that still has the machine's rights, then pivoted into. Every mount belongs to the machine's
 * user namespace, so nothing inside can remount, unmount or uncover one. */
#include "agent.h"
#include <fcntl.h>
#include <linux/mount.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

enum { NO = MS_NOSUID | MS_NODEV | MS_NOEXEC };

static int failed(const char **stage, const char *what)
{
    *stage = what;
    return errno ? errno : EIO;
}

/* The image's owners, shifted: id 0 in the squashfs is id 100000 outside, which is root inside. */
static int shift_image(int user_ns)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)user_ns};
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/ro", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0 || mkdir("/low", 0755) != 0)
        return -1;
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) != 0)
        return -1;
    int error = (int)syscall(SYS_move_mount, tree, "", AT_FDCWD, "/low", MOVE_MOUNT_F_EMPTY_PATH);
    close(tree);
    return error;
}

static int make_upper(const struct config *config)
{
    char options[128];
    struct stat lower;
    format(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=700", (unsigned long long)config->disk_bytes, (unsigned long long)config->disk_inodes);
    if (mkdir("/rw", 0700) != 0 || mount("rw", "/rw", "tmpfs", MS_NOSUID | MS_NODEV, options) != 0)
        return -1;
    if (mkdir("/rw/u", 0755) != 0 || mkdir("/rw/w", 0700) != 0 || stat("/low", &lower) != 0)
        return -1;
    return chown("/rw/u", lower.st_uid, lower.st_gid) != 0 || chmod("/rw/u", lower.st_mode & 07777) != 0 ? -1 : 0;
}

static int make_overlay(void)
{
    return mkdir("/new", 0755) != 0 ? -1 : mount("overlay", "/new", "overlay", MS_NODEV, "lowerdir=/low,upperdir=/rw/u,workdir=/rw/w");
}

/* A directory of the new root that is really a directory: an image may hold a link or a file of that name, and a link could lead a mount astray. */
static int own_dir(const char *path, mode_t mode)
{
    struct stat s;
    if (lstat(path, &s) != 0) {
        if (errno != ENOENT || mkdir(path, mode) != 0)
            return -1;
        return chown(path, ID_SHIFT, ID_SHIFT) != 0 || chmod(path, mode) != 0 ? -1 : 0;
    }
    errno = ENOTDIR;
    return S_ISDIR(s.st_mode) ? 0 : -1;
}

static int make_node(const char *path, unsigned minor_major[2])
{
    if (mknod(path, S_IFCHR | 0666, makedev(minor_major[0], minor_major[1])) != 0)
        return -1;
    return chmod(path, 0666) != 0 || chown(path, ID_SHIFT, ID_SHIFT) != 0 ? -1 : 0;
}

/* /dev: a small tmpfs with the six harmless devices and nothing else. The workload can't make more: mknod needs a capability of the machine's namespace. */
static int make_dev(const struct config *config)
{
    static struct { const char *path; unsigned device[2]; } nodes[] = {
        {"dev/null", {1, 3}}, {"dev/zero", {1, 5}}, {"dev/full", {1, 7}}, {"dev/random", {1, 8}}, {"dev/urandom", {1, 9}}, {"dev/tty", {5, 0}},
    };
    static const char *const links[][2] = {
        {"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"}, {"/proc/self/fd/1", "dev/stdout"},
        {"/proc/self/fd/2", "dev/stderr"}, {"pts/ptmx", "dev/ptmx"},
    };
    char shm[128];
    format(shm, sizeof shm, "size=%llu,nr_inodes=65536,mode=1777,uid=%d,gid=%d", (unsigned long long)config->memory_max_bytes / 2, ID_SHIFT, ID_SHIFT);
    if (own_dir("dev", 0755) != 0 || mount("dev", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=1m,nr_inodes=4096,mode=755") != 0)
        return -1;
    if (chown("dev", ID_SHIFT, ID_SHIFT) != 0)
        return -1;
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (make_node(nodes[i].path, nodes[i].device) != 0)
            return -1;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][0], links[i][1]) != 0 || lchown(links[i][1], ID_SHIFT, ID_SHIFT) != 0)
            return -1;
    if (own_dir("dev/pts", 0755) != 0 || own_dir("dev/shm", 01777) != 0 || own_dir("dev/mqueue", 01777) != 0)
        return -1;
    /* gid 5 inside is the tty group of every distribution */
    if (mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=100005,max=64") != 0)
        return -1;
    if (mount("shm", "dev/shm", "tmpfs", NO, shm) != 0 || mount("mqueue", "dev/mqueue", "mqueue", NO, NULL) != 0)
        return -1;
    return chown("dev/pts", ID_SHIFT, ID_SHIFT) != 0 || chown("dev/mqueue", ID_SHIFT, ID_SHIFT) != 0 ? -1 : 0;
}

static int read_only_again(const char *path)
{
    if (mount(path, path, NULL, MS_BIND | MS_REC, NULL) != 0)
        return errno == ENOENT ? 0 : -1;
    return mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | NO, NULL);
}

static int cover(const char *path)
{
    struct stat s;
    if (lstat(path, &s) != 0)
        return errno == ENOENT ? 0 : -1;
    if (S_ISDIR(s.st_mode))
        return mount("none", path, "tmpfs", MS_RDONLY | NO, "size=0,nr_inodes=2,mode=555");
    return mount("dev/null", path, NULL, MS_BIND, NULL);
}

static int make_proc(void)
{
    static const char *const frozen[] = {"proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"};
    static const char *const hidden[] = {
        "proc/acpi", "proc/asound", "proc/kcore", "proc/keys", "proc/key-users", "proc/kmsg", "proc/kallsyms", "proc/latency_stats", "proc/timer_list",
        "proc/timer_stats", "proc/sched_debug", "proc/scsi", "proc/kpagecount", "proc/kpageflags", "proc/kpagecgroup", "proc/vmallocinfo", "proc/slabinfo",
        "proc/interrupts", "proc/pagetypeinfo", "proc/driver", "proc/dynamic_debug", "proc/iomem", "proc/ioports",
    };
    if (own_dir("proc", 0555) != 0 || mount("proc", "proc", "proc", NO, NULL) != 0)
        return -1;
    for (size_t i = 0; i < sizeof frozen / sizeof *frozen; i++)
        if (read_only_again(frozen[i]) != 0)
            return -1;
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (cover(hidden[i]) != 0)
            return -1;
    return 0;
}

static int make_sys(void)
{
    static const char *const hidden[] = {
        "sys/firmware", "sys/devices/virtual/powercap", "sys/kernel/debug", "sys/kernel/tracing", "sys/kernel/security", "sys/fs/bpf", "sys/fs/pstore",
        "sys/kernel/slab", "sys/kernel/notes", "sys/kernel/vmcoreinfo", "sys/kernel/boot_params", "sys/class/virtio-ports", "sys/module",
        /* whose machine it is */
        "sys/class/dmi", "sys/devices/virtual/dmi", "sys/devices/LNXSYSTM:00", "sys/devices/platform/QEMU0002:00", "sys/bus/acpi", "sys/bus/platform",
    };
    if (own_dir("sys", 0555) != 0 || mount("sysfs", "sys", "sysfs", NO | MS_RDONLY, NULL) != 0)
        return -1;
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (cover(hidden[i]) != 0)
            return -1;
    return 0;
}

static int cover_with(const char *over, const char *file, const char *text)
{
    int fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0 || write_all(fd, text, strlen(text)) != 0 || fchmod(fd, 0444) != 0)
        return -1;
    close(fd);
    if (mount(file, over, NULL, MS_BIND, NULL) != 0)
        return -1;
    return mount(NULL, over, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | NO, NULL);
}

/* A boot id of our own over the kernel's, which a restored clone would share with its template. RENEW rewrites the file behind it. */
static int make_boot_id(void)
{
    return cover_with("proc/sys/kernel/random/boot_id", "/run/boot_id", "00000000-0000-0000-0000-000000000000\n");
}

static int make_tmp(void)
{
    struct stat s;
    if (lstat("tmp", &s) == 0)
        return S_ISDIR(s.st_mode) ? chmod("tmp", 01777) : 0;
    return own_dir("tmp", 01777);
}

/* The second disk, if there is one, at one fixed place. */
static int make_data(void)
{
    struct stat s;
    if (lstat(DATA_DISK, &s) != 0)
        return errno == ENOENT ? 0 : -1;
    if (own_dir("weights", 0755) != 0 || mount(DATA_DISK, "weights", NULL, MS_BIND, NULL) != 0)
        return -1;
    return mount(NULL, "weights", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | NO, NULL);
}

/* The old root, and with it the initramfs, the channel's device, the block device, /run and the cgroup tree, leaves this mount namespace for good. */
static int pivot(void)
{
    if (syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0)
        return -1;
    return chdir("/");
}

int rootfs_build(const struct config *config, int user_ns, const char **stage)
{
    umask(0);
    errno = 0;
    if (mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) != 0)
        return failed(stage, "private mounts");
    if (shift_image(user_ns) != 0)
        return failed(stage, "id-mapped image");
    if (make_upper(config) != 0)
        return failed(stage, "writable layer");
    if (make_overlay() != 0)
        return failed(stage, "overlay");
    if (chdir("/new") != 0 || make_dev(config) != 0)
        return failed(stage, "/dev");
    if (make_proc() != 0)
        return failed(stage, "/proc");
    if (make_sys() != 0)
        return failed(stage, "/sys");
    if (make_boot_id() != 0)
        return failed(stage, "boot id");
    if (cover_with("proc/cmdline", "/run/command_line", COMMAND_LINE) != 0)
        return failed(stage, "command line");
    if (make_tmp() != 0)
        return failed(stage, "/tmp");
    if (make_data() != 0)
        return failed(stage, "/weights");
    if (pivot() != 0)
        return failed(stage, "pivot");
    umask(022);
    return 0;
}
