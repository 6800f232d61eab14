/* Directory trees whose owners are shifted, by the supervisor, which is the host's root here.
 *
 * A tree is mounted id-mapped on its own path in a mount namespace that exists only until the child has its copy of it. The copy belongs to a lesser user
 * namespace, so the kernel locks what the mount forbids: nobody in the jail, whatever it may do there, makes the tree writable. */
#define _GNU_SOURCE
#include "jail.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
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

int shift_trees(const struct options *o) {
    if (!has_shifted_trees(o)) return -1;
    int hosts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    must(hosts, "/proc/self/ns/mnt");
    must(unshare(CLONE_NEWNS), "unshare");
    /* What we mount stays here; what the host unmounts is unmounted here too. */
    must(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), "/");
    for (int i = 0; i < o->mount_count; i++)
        if (o->mounts[i].shifted) shift_tree(&o->mounts[i]);
    return hosts;
}
