/* Plays an OCI runtime, and what a runtime leaves behind, in a runtime's jail.
 *
 * runtime_probe exit N [WORDS]: says WORDS on standard error and ends with status N.
 * runtime_probe detach MODE: leaves a child behind that does MODE, and ends with status 0.
 * runtime_probe write: leaves files of several owners in /out, and says what else it could do there.
 * runtime_probe MODE: "look" says on descriptor 0 what it finds, one `name result` a line; "stay" says "ready" and waits; "leave" ends with status 7 when descriptor 0
 * says something; "orphans" as "leave", but what waits is a grandchild. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void say(const char *name, const char *result) { dprintf(0, "%s %s\n", name, result); }

static void tell(const char *name, long result) {
    char text[32];
    snprintf(text, sizeof text, "%d", result < 0 ? errno : 0);
    say(name, text);
}

static void tell_owner(const char *name, const char *path) {
    struct stat found;
    char text[96];
    if (lstat(path, &found)) return tell(name, -1);
    snprintf(text, sizeof text, "%u:%u:%o", found.st_uid, found.st_gid, found.st_mode);
    say(name, text);
}

static long write_text(const char *path, const char *text, int flags) {
    int fd = open(path, O_WRONLY | flags, 0644);
    if (fd < 0) return -1;
    long result = write(fd, text, strlen(text));
    close(fd);
    return result;
}

/* Bytes that fit until the file system refuses, in KiB. */
static void fill(const char *name, const char *path) {
    static char block[64 << 10];
    char text[64];
    long written = 0, n;
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    while ((n = write(fd, block, sizeof block)) > 0) written += n;
    snprintf(text, sizeof text, "%ld:%d", written >> 10, errno);
    close(fd);
    unlink(path);
    say(name, text);
}

static void fill_inodes(const char *name, const char *directory) {
    char path[256], text[64];
    int i = 0, fd;
    for (;; i++) {
        snprintf(path, sizeof path, "%s/%d", directory, i);
        if ((fd = open(path, O_CREAT | O_WRONLY, 0600)) < 0) break;
        close(fd);
    }
    snprintf(text, sizeof text, "%d:%d", i, errno);
    while (i--) {
        snprintf(path, sizeof path, "%s/%d", directory, i);
        unlink(path);
    }
    say(name, text);
}

static void remount(const char *name, const char *path) { tell(name, mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL)); }

static void look_at_trees(void) {
    tell_owner("tree_file", "/tree/file");
    tell_owner("tree_setuid", "/tree/setuid");
    tell("tree_write", write_text("/tree/file", "x", 0));
    tell("tree_create", write_text("/tree/new", "x", O_CREAT));
    remount("tree_remount", "/tree");
    tell("tree_remount_write", write_text("/tree/created", "x", O_CREAT));
    tell("tree_unmount", umount2("/tree", MNT_DETACH));
}

static void look_at_overlay(void) {
    struct stat found;
    tell_owner("new_root", "/new");
    tell_owner("new_file", "/new/file");
    tell("new_delete", unlink("/new/file"));
    tell("new_deleted", access("/new/file", F_OK));
    tell("new_recreate", write_text("/new/file", "again", O_CREAT | O_EXCL));
    tell("new_rename_directory", rename("/new/dir", "/new/moved"));
    tell("new_empty_directory", unlink("/new/dir/inner"));
    tell("new_delete_directory", rmdir("/new/dir"));
    tell("new_directory_again", mkdir("/new/dir", 0755));
    tell("new_directory_is_empty", access("/new/dir/inner", F_OK));
    tell("new_chown", chown("/new/setuid", 1001, 1001));
    tell_owner("new_chowned", "/new/setuid");
    tell("new_chmod", chmod("/new/setuid", 04755));
    tell_owner("new_setuid", "/new/setuid");
    tell("new_device", mknod("/new/null", S_IFCHR | 0666, makedev(1, 3)));
    tell_owner("upper_root", "/c/upper");
    tell("whiteout_in_upper", stat("/c/upper/dir", &found));
    fill("new_full", "/new/big");
    fill_inodes("new_inodes", "/new/dir");
}

static int write_files(void) {
    tell("write", write_text("/out/file", "x", O_CREAT));
    tell("chown", chown("/out/file", 1000, 1001));
    tell("chmod", chmod("/out/file", 04755));
    tell("chown_unmapped", chown("/out/file", 70000, 70000));
    tell("device", mknod("/out/device", S_IFCHR | 0666, makedev(1, 3)));
    tell("link", symlink("file", "/out/link"));
    tell("follow", access("/out/link", F_OK));
    tell("write_elsewhere", write_text("/new_file", "x", O_CREAT));
    return 0;
}

static void tell_highest_process(void) {
    char text[32];
    long highest = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));)
        if (atol(entry->d_name) > highest) highest = atol(entry->d_name);
    if (proc) closedir(proc);
    snprintf(text, sizeof text, "%ld", highest);
    say("highest_process", text);
}

static void look_at_mounts(void) {
    char line[4096], places[4096] = "";
    FILE *mounts = fopen("/proc/self/mountinfo", "r");
    while (mounts && fgets(line, sizeof line, mounts)) {
        char place[512] = "";
        if (sscanf(line, "%*d %*d %*s %*s %511s", place) == 1 && strlen(places) + strlen(place) + 2 < sizeof places) strcat(strcat(places, place), ",");
    }
    if (mounts) fclose(mounts);
    say("mounts", places);
    tell("dev_null_write", write_text("/dev/null", "x", 0));
    tell("dev_null_chmod", chmod("/dev/null", 0600));
    tell("sys_read_only", mkdir("/sys/x", 0700));
    tell("new_group", mkdir("/sys/fs/cgroup/x", 0700));
    remount("root_remount", "/");
    remount("bundle_remount", "/b");
    remount("sys_remount", "/sys");
    tell("root_write", write_text("/new_file", "x", O_CREAT));
    tell("bundle_write", write_text("/b/config.json", "x", 0));
    fill("dev_full", "/dev/big");
    tell("host_file", access("/etc/passwd", F_OK));
    tell("fresh_proc", mount("proc", "/c/proc", "proc", 0, NULL));
    tell_highest_process();
}

static int count_descriptors(void) {
    int count = 0;
    for (int fd = 3; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void look_at_self(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    char text[64];
    syscall(SYS_capget, &header, caps);
    snprintf(text, sizeof text, "%x", caps[0].effective);
    say("capabilities", text);
    snprintf(text, sizeof text, "%d", count_descriptors());
    say("descriptors", text);
    say("environment", environ[0] ? environ[0] : "none");
    snprintf(text, sizeof text, "%d:%d", getuid(), getgid());
    say("ids", text);
    snprintf(text, sizeof text, "%d", (int)getgroups(0, NULL));
    say("groups", text);
    tell("trace_init", ptrace(PTRACE_SEIZE, 1, NULL, NULL));
    tell("kill_init", kill(1, SIGKILL)); /* pid 1 of a pid namespace is deaf to what is in it */
    tell("module", syscall(SYS_init_module, "", 0, ""));
    tell("bpf", syscall(SYS_bpf, 0, NULL, 0));
    tell("perf", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    tell("io_uring", syscall(425, 2, NULL));
    tell("userfaultfd", syscall(SYS_userfaultfd, 0));
    tell("core_limit", syscall(SYS_setrlimit, RLIMIT_CORE, &(struct rlimit){0, 1}));
    tell("core_limit_newly", syscall(SYS_prlimit64, 0, RLIMIT_CORE, &(struct rlimit){0, 1}, NULL));
    tell("core_limit_read", syscall(SYS_prlimit64, 0, RLIMIT_CORE, NULL, &(struct rlimit){0, 0}));
    tell("other_limit", syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &(struct rlimit){512, 512}, NULL));
    tell("host_name", access("/proc/sys/kernel/hostname", F_OK));
    tell("core_pattern", write_text("/proc/sys/kernel/core_pattern", "core", 0));
    tell("session_key", syscall(SYS_keyctl, 10 /* KEYCTL_SEARCH */, -3, "user", "of-the-owner", 0));
}

static int act(const char *mode) {
    char byte;
    if (!strcmp(mode, "write")) return write_files();
    if (!strcmp(mode, "look")) {
        look_at_self();
        look_at_mounts();
        look_at_overlay();
        look_at_trees();
        return 0;
    }
    if (!strncmp(mode, "/", 1)) { /* in a container whose /proc/keys was masked by a link to this file */
        struct stat masked, wanted;
        bool both = stat("/proc/keys", &masked) == 0 && stat(mode, &wanted) == 0;
        say("redirected", both && masked.st_ino == wanted.st_ino && masked.st_dev == wanted.st_dev ? "1" : "0");
        tell("written", write_text("/proc/keys", "h", 0));
        tell("remounted", mount(NULL, "/proc/keys", NULL, MS_REMOUNT | MS_BIND, NULL));
        return 0;
    }
    if (!strcmp(mode, "orphans") && fork() > 0) return 3;
    dprintf(0, "ready\n");
    if (!strcmp(mode, "stay"))
        for (;;) pause();
    return read(0, &byte, 1) >= 0 ? 7 : 8;
}

int main(int argc, char **argv) {
    if (argc >= 3 && !strcmp(argv[1], "exit")) {
        if (argc > 3) dprintf(2, "%s\n", argv[3]);
        return atoi(argv[2]);
    }
    if (argc == 3 && !strcmp(argv[1], "detach")) return fork() ? 0 : act(argv[2]);
    return argc == 2 ? act(argv[1]) : 2;
}
