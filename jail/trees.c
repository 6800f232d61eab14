/* What the host's root makes for the jail before its namespaces, in a mount namespace that exists only until the child has its copy of it: directory trees
 * whose owners are shifted, and device nodes of the jail's own.
 *
 * A tree is mounted id-mapped on its own path. The child's copy belongs to a lesser user
 * namespace, so the kernel locks what the mount forbids: nobody in the jail, whatever it may do there, makes the tree writable. */
#define _GNU_SOURCE
#include "jail.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has_shifted_trees(const struct options *o) {
    for (int i = 0; i < o->mount_count; i++)
        if (o->mounts[i].shifted) return true;
    return false;
}

static void shift_tree(const struct mount_setting *tree) {
    step(3, "namespaces");
    int userns = open_shifting_namespace(&tree->shift);
    step(24, "id-mapped trees");
    int fd = clone_mount(tree->source, ATTR_IDMAP | ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, userns);
    place_mount(fd, tree->source);
    close(userns);
}

/* A node with the same number in a file system that is gone from every path but the device's own, where it is put. */
static void make_device(const char *path) {
    struct stat found;
    must(stat(path, &found), path);
    errno = ENODEV;
    if (!S_ISCHR(found.st_mode)) fail(path);
    must(mount("dev", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=16k,nr_inodes=8,mode=755"), "/dev");
    must(mknod(path, S_IFCHR | 0666, found.st_rdev), path);
    must(chmod(path, 0666), path);
    int fd = clone_mount(path, 0, -1);
    must(umount2("/dev", MNT_DETACH), "/dev");
    place_mount(fd, path);
}

/* A lock or a watch on the host's own node would be seen by everyone who has it: other cells, and the host. */
static void make_devices(const struct options *o) {
    step(26, "device nodes");
    for (int i = 0; i < o->mount_count; i++)
        if (o->mounts[i].kind == MOUNT_DEVICE) make_device(o->mounts[i].source);
}

int shift_trees(const struct options *o) {
    if (!has_shifted_trees(o)) return -1;
    int hosts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    must(hosts, "/proc/self/ns/mnt");
    must(unshare(CLONE_NEWNS), "unshare");
    /* What we mount stays here; what the host unmounts is unmounted here too. */
    must(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), "/");
    for (int i = 0; i < o->mount_count; i++)
        if (o->mounts[i].shifted) shift_tree(&o->mounts[i]);
    make_devices(o);
    return hosts;
}
