/* Mounts: new ones, those that cover something, those that lead out of the cell or outlive it. */
#include "probe.h"
#include <linux/mount.h>
#include <sys/mount.h>

/* Mounts on a directory of its own, and takes it away again. */
static void mounts_there(struct finding *f, const char *source, const char *type, unsigned long flags, const char *data)
{
    char place[64];
    if (scratch_directory(place) != 0) {
        failed(f, "no place to mount on: %s", errno_name(errno));
        return;
    }
    int result = mount(source, place, type, flags, data);
    if (result == 0)
        reached(f, "mounted %s", type == NULL ? source : type);
    else if (errno == ENODEV)
        absent(f, "%s: this kernel has none", type == NULL ? source : type);
    else
        refused(f, type == NULL ? source : type);
    if (result == 0)
        umount2(place, MNT_DETACH);
    rmdir(place);
}

static void memory(struct finding *f) { mounts_there(f, "none", "tmpfs", MS_NOSUID | MS_NODEV, "size=4k"); }
static void processes(struct finding *f) { mounts_there(f, "none", "proc", 0, NULL); }
static void kernel(struct finding *f) { mounts_there(f, "none", "sysfs", 0, NULL); }
static void again(struct finding *f) { mounts_there(f, "/", NULL, MS_BIND, NULL); }

static void devices(struct finding *f)
{
    mounts_there(f, "none", "devtmpfs", 0, NULL);
    mounts_there(f, "none", "devpts", 0, "newinstance");
}

static void gives_descriptor(struct finding *f, const char *what, long fd)
{
    permitted(f, what, fd);
    if (fd >= 0)
        close((int)fd);
}

static void new_calls(struct finding *f)
{
    gives_descriptor(f, "fsopen", syscall(SYS_fsopen, "tmpfs", 1U));
    gives_descriptor(f, "open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
    gives_descriptor(f, "fspick", syscall(SYS_fspick, AT_FDCWD, "/proc", 1U));
}

/* Of something that is no mount, after the permission check. */
static void uncover(struct finding *f)
{
    permitted(f, "umount2", umount2("/proc/self/task", MNT_DETACH));
}

/* To a place that can't be, after the permission check. */
static void pivot(struct finding *f)
{
    permitted(f, "pivot_root", syscall(SYS_pivot_root, "/dev/null/no", "/dev/null/no"));
}

static bool has_field(const char *line, const char *tag)
{
    const char *end = strstr(line, " - "), *found = strstr(line, tag);
    return found != NULL && end != NULL && found < end;
}

static void each_mount(struct finding *f, void (*look)(struct finding *, const char *line))
{
    static char text[128 << 10];
    char *rest = text;
    if (read_text("/proc/self/mountinfo", text, sizeof text) < 0)
        failed(f, "/proc/self/mountinfo: %s", errno_name(errno));
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (line[0] != 0)
            look(f, line);
}

static void look_shared(struct finding *f, const char *line)
{
    char point[128] = "";
    sscanf(line, "%*d %*d %*s %*s %127s", point);
    if (has_field(line, " shared:"))
        reached(f, "mounts on %.60s appear elsewhere", point);
    else if (has_field(line, " master:"))
        denied(f, "%.60s only receives", point);
}

static void shared(struct finding *f)
{
    each_mount(f, look_shared);
    absent(f, "every mount is private");
}

static bool is_type(const char *line, const char *const *types, size_t count, char name[32])
{
    const char *dash = strstr(line, " - ");
    if (dash == NULL || sscanf(dash + 3, "%31s", name) != 1)
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, types[i]) == 0)
            return true;
    return false;
}

static bool is_writable(const char *line)
{
    char options[256] = "";
    sscanf(line, "%*d %*d %*s %*s %*s %255s", options);
    return strncmp(options, "rw", 2) == 0;
}

static void look_lasting(struct finding *f, const char *line)
{
    static const char *const DISKS[] = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "ntfs3", "bcachefs"};
    char type[32], point[128] = "";
    if (!is_type(line, DISKS, sizeof DISKS / sizeof *DISKS, type))
        return;
    sscanf(line, "%*d %*d %*s %*s %127s", point);
    if (is_writable(line))
        reached(f, "%s on %.60s can be written", type, point);
    else
        denied(f, "%s on %.60s is read-only", type, point);
}

/* What is written there is there for the next. */
static void lasting(struct finding *f)
{
    each_mount(f, look_lasting);
    absent(f, "no disk is mounted");
}

static bool has_weights(void)
{
    const char *told = parameter("weights");
    return told != NULL && told[0] == '1';
}

/* Weights, which only a model cell's plan has: nothing in them can be changed, run or opened as a device. gVisor lists neither nosuid nor nodev of any mount. */
static bool is_sealed(const char *line, bool in_gvisor)
{
    char options[256] = "";
    sscanf(line, "%*d %*d %*s %*s %*s %254s", options);
    strcat(options, ",");
    bool is_read_only = strncmp(options, "ro,", 3) == 0 && strstr(options, ",noexec,") != NULL;
    return is_read_only && (in_gvisor || (strstr(options, ",nosuid,") != NULL && strstr(options, ",nodev,") != NULL));
}

/* gVisor's: the image, the image's /tmp in the same bounded layer, and weights; all from the jailed process of this very cell. */
static bool is_gvisors_own(const char *type, const char *line, const char *point)
{
    if (strcmp(type, "9p") != 0 || strstr(line, "trans=fd") == NULL)
        return false;
    return strcmp(point, "/") == 0 || strcmp(point, "/tmp") == 0 || (strcmp(point, "/weights") == 0 && has_weights());
}

static void look_served(struct finding *f, const char *line)
{
    static const char *const SHARES[] = {"virtiofs", "nfs", "nfs4", "cifs", "smb3", "ceph", "fuse", "fuse.sshfs", "vboxsf", "fuse.vmhgfs-fuse", "9p"};
    char type[32] = "", point[128] = "";
    bool is_share = is_type(line, SHARES, sizeof SHARES / sizeof *SHARES, type);
    sscanf(line, "%*d %*d %*s %*s %127s", point);
    if (has_weights() && strcmp(point, "/weights") == 0 && !is_sealed(line, strcmp(type, "9p") == 0))
        reached(f, "%s on /weights is not sealed", type);
    if (!is_share)
        return;
    if (is_gvisors_own(type, line, point))
        denied(f, "%s comes from a file server of the cell's own", point);
    else
        reached(f, "%s on %.60s", type, point);
}

static void served(struct finding *f)
{
    each_mount(f, look_served);
    absent(f, "no file server");
}

const struct probe mount_probes[] = {
    {"mounts.memory", memory, QUICK},
    {"mounts.processes", processes, 0},
    {"mounts.kernel", kernel, 0},
    {"mounts.devices", devices, 0},
    {"mounts.again", again, QUICK},
    {"mounts.new_calls", new_calls, QUICK},
    {"mounts.uncover", uncover, QUICK},
    {"mounts.pivot", pivot, QUICK},
    {"mounts.shared", shared, QUICK},
    {"mounts.lasting", lasting, QUICK},
    {"mounts.served", served, QUICK},
    {NULL, NULL, 0},
};
