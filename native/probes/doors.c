/* Side doors: roads that were found once, in runtimes or in the kernel, to a file or a program of the host. */
#include "probe.h"
#include <dirent.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <stdlib.h>
#include <sched.h>

static const char *canary_path;

static void try_link(struct finding *f, long pid, const char *link, const char *up)
{
    char path[VALUE_BYTES + 256];
    if (!path_of(path, sizeof path, "/proc/%ld/%s%s%s", pid, link, up, canary_path))
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* opened, so that the host sees it */
    if (fd >= 0)
        reached(f, "the host's file is at /proc/%ld/%s", pid, link);
    else if (errno != ENOENT)
        refused(f, link);
    if (fd >= 0)
        close(fd);
}

static void try_root(struct finding *f, long pid) { try_link(f, pid, "root", ""); }

static const char UP[] = "/../../../../../../../../../../../../../../../..";
static void try_cwd(struct finding *f, long pid) { try_link(f, pid, "cwd", UP); }

static void through(struct finding *f, void (*visit)(struct finding *, long))
{
    canary_path = needed(f, "canary");
    if (canary_path == NULL)
        return;
    each_process(f, visit);
    absent(f, "not there for any process");
}

static void roots(struct finding *f) { through(f, try_root); }
static void working_directories(struct finding *f) { through(f, try_cwd); }

static void try_descriptor(struct finding *f, int fd)
{
    char path[VALUE_BYTES + 64];
    if (!path_of(path, sizeof path, "..%s%s", UP + 3, canary_path))
        return;
    int host = openat(fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (host >= 0)
        reached(f, "the host's file is above descriptor %d", fd);
    if (host >= 0)
        close(host);
}

/* A directory of the host that a runtime forgot to close. */
static void open_directories(struct finding *f)
{
    enum { MOST = 1024 };
    struct stat s;
    canary_path = needed(f, "canary");
    for (int fd = 0; canary_path != NULL && fd < MOST; fd++)
        if (fstat(fd, &s) == 0 && S_ISDIR(s.st_mode))
            try_descriptor(f, fd);
    absent(f, "no open directory");
}

union handle { struct file_handle head; unsigned char room[sizeof(struct file_handle) + 128]; };

static void open_handle(struct finding *f, int mount_fd, union handle *handle, const char *what)
{
    int fd = (int)syscall(SYS_open_by_handle_at, mount_fd, handle, O_PATH | O_CLOEXEC);
    if (fd >= 0)
        reached(f, "opened %s by its number", what);
    else if (errno == ESTALE)
        reached(f, "%s: past the permission check, then ESTALE", what);
    else
        refused(f, what);
    if (fd >= 0)
        close(fd);
}

/* Inode 2 is the root of the whole file system, wherever in it a cell's tree begins. */
static void handles(struct finding *f)
{
    enum { INODE_AND_GENERATION = 1 };
    static const char *const PLACES[] = {"/", "/tmp", "/etc/hosts", "/dev/shm"};
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        union handle root = {.head = {.handle_bytes = 8, .handle_type = INODE_AND_GENERATION}}, own = {.head = {.handle_bytes = 128}};
        int mount_id, fd = open(PLACES[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            refused(f, PLACES[i]);
            continue;
        }
        memcpy(root.head.f_handle, &(uint32_t){2}, 4);
        open_handle(f, fd, &root, "the root of its file system");
        if (syscall(SYS_name_to_handle_at, AT_FDCWD, PLACES[i], &own, &mount_id, 0) == 0)
            open_handle(f, fd, &own, PLACES[i]);
        close(fd);
    }
}

/* ETXTBSY says that only its running protects it, and that ends. */
static void try_program(struct finding *f, long pid)
{
    char path[64];
    path_of(path, sizeof path, "/proc/%ld/exe", pid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 || errno == ETXTBSY)
        reached(f, "%s could be overwritten", path);
    else
        refused(f, path);
    if (fd >= 0)
        close(fd);
}

static void overwrite_program(struct finding *f)
{
    try_program(f, getpid());
    try_program(f, 1);
    if (parent_pid > 1)
        try_program(f, parent_pid);
}

static void mount_controller(struct finding *f, const char *place, const char *controller)
{
    char path[128];
    if (mount("none", place, "cgroup", 0, controller) != 0) {
        refused(f, controller);
        return;
    }
    path_of(path, sizeof path, "%s/release_agent", place);
    if (!opens(f, path, O_WRONLY))
        reached(f, "mounted the %s controller", controller);
    umount2(place, MNT_DETACH);
}

/* The program that a hierarchy starts as the host's root when a group is empty. */
static void release_agent(struct finding *f)
{
    static const char *const CONTROLLERS[] = {"memory", "rdma", "devices", "pids", "cpu", "freezer"};
    char place[64];
    unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP);
    if (scratch_directory(place) != 0) {
        failed(f, "no place to mount on: %s", errno_name(errno));
        return;
    }
    for (size_t i = 0; i < sizeof CONTROLLERS / sizeof *CONTROLLERS; i++)
        mount_controller(f, place, CONTROLLERS[i]);
    rmdir(place);
}

static void climb(struct finding *f, int above)
{
    int root = -1;
    struct stat s;
    if (fchdir(above) != 0 || fstat(above, &s) != 0)
        return;
    for (int i = 0; i < 64; i++)
        if (chdir("..") != 0)
            break;
    root = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root >= 0 && !same_directory(root, above) && !is_empty(root))
        reached(f, "above the root");
    else if (root >= 0 && !same_directory(root, above))
        denied(f, "above the root there is an empty directory");
    else
        denied(f, "the root is the highest");
    if (root >= 0)
        close(root);
}

/* Twice: a process above its own root can climb further. */
static void root_twice(struct finding *f)
{
    char place[64];
    int above = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (scratch_directory(place) != 0) {
        failed(f, "no place for a root: %s", errno_name(errno));
        return;
    }
    if (chroot(place) != 0)
        refused(f, "chroot");
    else
        climb(f, above);
    unlinkat(above, place + 1, AT_REMOVEDIR);
    close(above);
}

/* The physical frame of a page: 55 bits, all zero without the right to know it. */
static void page_frames(struct finding *f)
{
    uint64_t entry = 0;
    static volatile char page[4096];
    page[0] = 1;
    prctl(PR_SET_DUMPABLE, 1);
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    long size = sysconf(_SC_PAGESIZE);
    off_t where = (off_t)((uintptr_t)page / (uintptr_t)size * sizeof entry);
    if (fd < 0)
        refused(f, "/proc/self/pagemap");
    else if (pread(fd, &entry, sizeof entry, where) == (ssize_t)sizeof entry && (entry & ((UINT64_C(1) << 55) - 1)) != 0)
        reached(f, "physical addresses are known");
    else
        denied(f, "physical addresses are hidden");
    if (fd >= 0)
        close(fd);
}

const struct probe door_probes[] = {
    {"doors.roots", roots, QUICK},
    {"doors.working_directories", working_directories, QUICK},
    {"doors.open_directories", open_directories, QUICK},
    {"doors.handles", handles, QUICK},
    {"doors.overwrite_program", overwrite_program, QUICK},
    {"doors.release_agent", release_agent, APART},
    {"doors.root_twice", root_twice, APART},
    {"doors.page_frames", page_frames, APART},
    {NULL, NULL, 0},
};
