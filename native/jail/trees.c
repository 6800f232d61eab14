/* What the host's root makes for the jail before its namespaces, in a mount namespace that exists only until the child has its copy of it: directory trees
 * whose owners are shifted, and device nodes of the jail's own.
 *
 * A tree is mounted id-mapped on its own path. The child's copy belongs to a lesser user
 * namespace, so the kernel locks what the mount forbids: no process in the jail, whatever it may do there, makes the tree writable. */
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

static dev_t number_of(const char *path) {
    struct stat found;
    must(stat(path, &found), path);
    errno = ENODEV;
    if (!S_ISCHR(found.st_mode)) fail(path);
    return found.st_rdev;
}

/* Nodes with the same numbers, in a file system that is gone from every path but the devices' own. A lock or a watch on the host's nodes would be seen by
 * every process that has them: other cells, and the host. One unmount for all: it waits for every processor. */
static void make_devices(const struct options *o) {
    const char *paths[MAX_MOUNTS];
    dev_t numbers[MAX_MOUNTS];
    int nodes[MAX_MOUNTS], count = 0;
    step(26, "device nodes");
    for (int i = 0; i < o->mount_count; i++)
        if (o->mounts[i].kind == MOUNT_DEVICE) numbers[count] = number_of(o->mounts[i].source), paths[count++] = o->mounts[i].source;
    if (count == 0) return;
    must(mount("dev", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,nr_inodes=64,mode=755"), "/dev");
    for (int i = 0; i < count; i++) {
        must(mknod(paths[i], S_IFCHR | 0666, numbers[i]), paths[i]);
        must(chmod(paths[i], 0666), paths[i]);
        nodes[i] = clone_mount(paths[i], 0, -1);
    }
    must(umount2("/dev", MNT_DETACH), "/dev");
    for (int i = 0; i < count; i++) place_mount(nodes[i], paths[i]);
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
