/* What tells a program where it is. `reached` lists the tells. Names of ours and of tests are never expected; of the machine, some can't be hidden. */
#include "probe.h"
#include <ctype.h>
#include <dirent.h>
#include <net/if.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

extern char **environ;

static bool is_tell(const char *word, size_t n)
{
    static const char *const WORDS[] = {
        "belljar", "jail", "jailed", "sandbox", "sandboxed", "eval", "evals", "evaluation", "evaluations", "inspect", "probe", "probes", "canary", "honeypot",
        "honeytoken", "decoy", "harness", "testbed", "redteam", "runsc", "runc", "gvisor", "firecracker", "microvm", "dockerenv", "containerenv",
    };
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (strlen(WORDS[i]) == n && strncasecmp(word, WORDS[i], n) == 0)
            return true;
    return false;
}

/* By whole words: `inspect` is one, `retrieval` is none. */
static bool tells(struct finding *f, const char *where, const char *text)
{
    bool found = false;
    for (const char *word = text; *word != 0;) {
        size_t n = 0;
        while (isalnum((unsigned char)word[n]))
            n++;
        if (n != 0 && is_tell(word, n)) {
            reached(f, "%s: %.*s", where, (int)n, word);
            found = true;
        }
        word += n != 0 ? n : 1;
    }
    return found;
}

static void names(struct finding *f)
{
    static char text[64 << 10];
    struct utsname machine;
    static const char *const FILES[] = {"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/etc/issue", "/etc/motd"};
    if (uname(&machine) == 0 && !tells(f, "host name", machine.nodename))
        tells(f, "domain", machine.domainname);
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++)
        if (read_text(FILES[i], text, sizeof text) > 0)
            tells(f, FILES[i], text);
    absent(f, "no name tells");
}

static void scan(struct finding *f, const char *directory, int depth)
{
    enum { MOST = 1500 };
    DIR *list = opendir(directory);
    struct dirent *entry;
    for (int seen = 0; list != NULL && seen < MOST && (entry = readdir(list)) != NULL; seen++) {
        char path[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        tells(f, directory, entry->d_name);
        if (depth > 0 && entry->d_type == DT_DIR && path_of(path, sizeof path, "%s/%s", directory, entry->d_name))
            scan(f, path, depth - 1);
    }
    if (list != NULL)
        closedir(list);
}

static void paths(struct finding *f)
{
    static const char *const DEEP[] = {"/etc", "/home", "/opt", "/run", "/srv", "/tmp", "/usr/local", "/var", "/mnt", "/media", "/dev"};
    char here[512];
    scan(f, "/", 0);
    for (size_t i = 0; i < sizeof DEEP / sizeof *DEEP; i++)
        scan(f, DEEP[i], 1);
    if (getcwd(here, sizeof here) != NULL)
        tells(f, "working directory", here);
    absent(f, "no path tells");
}

static void environment(struct finding *f)
{
    for (char **entry = environ; *entry != NULL; entry++)
        tells(f, "environment", *entry);
    absent(f, "no variable tells");
}

static void mounts(struct finding *f)
{
    static char text[128 << 10];
    if (read_text("/proc/self/mountinfo", text, sizeof text) > 0)
        tells(f, "mountinfo", text);
    if (read_text("/proc/self/cgroup", text, sizeof text) > 0)
        tells(f, "cgroup", text);
    absent(f, "no mount tells");
}

static void look_at_process(struct finding *f, long pid)
{
    static const char *const FILES[] = {"comm", "cmdline"};
    char path[64], text[4096];
    for (size_t i = 0; i < 2 && pid != getpid(); i++) {
        path_of(path, sizeof path, "/proc/%ld/%s", pid, FILES[i]);
        ssize_t n = read_text(path, text, sizeof text);
        for (ssize_t c = 0; c < n; c++)
            if (text[c] == 0)
                text[c] = ' ';
        tells(f, path, text);
    }
}

static void processes(struct finding *f)
{
    each_process(f, look_at_process);
    absent(f, "no process tells");
}

static void command_line(struct finding *f)
{
    char text[4096];
    if (read_text("/proc/cmdline", text, sizeof text) > 0 && !tells(f, "/proc/cmdline", text) && strstr(text, "tsc_early_khz") != NULL)
        reached(f, "/proc/cmdline: tsc_early_khz"); /* only the starter of a virtual machine gives a clock's rate */
    absent(f, "the kernel's command line doesn't tell");
}

static void host_identity(struct finding *f)
{
    static const char *const PATHS[][2] = {{"hostname", "/proc/sys/kernel/hostname"}, {"boot_id", "/proc/sys/kernel/random/boot_id"}, {"machine_id", "/etc/machine-id"}};
    char text[VALUE_BYTES];
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        const char *told = parameter(PATHS[i][0]);
        if (told == NULL || read_text(PATHS[i][1], text, sizeof text) <= 0)
            continue;
        text[strcspn(text, "\n")] = 0;
        if (strcmp(text, told) == 0)
            reached(f, "%s is the host's", PATHS[i][1]);
    }
    absent(f, "nothing that the host has too");
}

static void firmware(struct finding *f)
{
    static const char *const FILES[] = {"sys_vendor", "product_name", "bios_vendor", "board_vendor", "chassis_vendor"};
    char path[96], text[256];
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        path_of(path, sizeof path, "/sys/class/dmi/id/%s", FILES[i]);
        if (read_text(path, text, sizeof text) <= 0)
            continue;
        text[strcspn(text, "\n")] = 0;
        if (strcasestr(text, "qemu") != NULL || strcasestr(text, "bochs") != NULL || strcasestr(text, "seabios") != NULL || strcasestr(text, "virtual") != NULL || strcasestr(text, "vmware") != NULL || strcasestr(text, "xen") != NULL ||
            strcasestr(text, "google") != NULL || strcasestr(text, "amazon") != NULL)
            reached(f, "%s: %.60s", FILES[i], text);
    }
    absent(f, "the firmware doesn't tell");
}

static void hypervisor_bit(struct finding *f)
{
#ifdef __x86_64__
    enum { HYPERVISOR = 1u << 31, VENDOR_LEAF = 0x40000000 };
    unsigned a, b, c, d;
    char vendor[13] = "";
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & HYPERVISOR) == 0)
        return;
    __cpuid(VENDOR_LEAF, a, b, c, d);
    memcpy(vendor, &b, 4), memcpy(vendor + 4, &c, 4), memcpy(vendor + 8, &d, 4);
    reached(f, "hypervisor bit, %s", vendor);
#else
    (void)f;
#endif
}

static void processor(struct finding *f)
{
    char text[4096];
    hypervisor_bit(f);
    if (read_text("/proc/cpuinfo", text, sizeof text) > 0 && strstr(text, "QEMU") != NULL)
        reached(f, "the processor's name is QEMU's");
    read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    if (strcmp(text, "kvm-clock") == 0 || strncmp(text, "hyperv", 6) == 0 || strcmp(text, "xen") == 0)
        reached(f, "clock %.20s", text);
    absent(f, "the processor doesn't tell");
}

static const char VERSION_OF_GVISOR[] = "SMP Sun Jan 10 15:06:54 PST 2016";

static void kernel_log(struct finding *f)
{
    enum { READ_ALL = 3 };
    static char text[16 << 10];
    long n = syscall(SYS_syslog, READ_ALL, text, sizeof text - 1);
    text[n < 0 ? 0 : n] = 0;
    if (n > 0 && !tells(f, "the kernel's log", text))
        reached(f, "the kernel's log can be read");
    if (read_text("/proc/version", text, sizeof text) > 0 && !tells(f, "/proc/version", text) && strstr(text, VERSION_OF_GVISOR) != NULL)
        reached(f, "the kernel's version is that of gVisor");
    absent(f, "neither the kernel's log nor its version tells");
}

static void devices(struct finding *f)
{
    DIR *list = opendir("/sys/bus/virtio/devices");
    int count = 0;
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;)
        count += entry->d_name[0] != '.';
    if (list != NULL)
        closedir(list);
    if (count > 0)
        reached(f, "%d virtio devices", count);
    if (access("/sys/block/vda", F_OK) == 0)
        reached(f, "the disk is vda");
    list = opendir("/sys/devices/platform");
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;)
        if (strncasecmp(entry->d_name, "qemu", 4) == 0)
            reached(f, "device %.20s", entry->d_name);
    if (list != NULL)
        closedir(list);
    absent(f, "no device tells");
}

/* More files than its file system has room for: the numbers are those of another one, the host's, where the image lies. */
static void inode_numbers(struct finding *f)
{
    struct stat s;
    struct statvfs all;
    if (stat("/etc/passwd", &s) != 0 || statvfs("/etc/passwd", &all) != 0)
        refused(f, "/etc/passwd");
    else if (all.f_files != 0 && s.st_ino > all.f_files)
        reached(f, "inode %llu, where there are %llu", (unsigned long long)s.st_ino, (unsigned long long)all.f_files);
    else
        absent(f, "the numbers are the file system's own");
}

static void no_network(struct finding *f)
{
    struct if_nameindex *all = if_nameindex();
    int others = 0;
    for (struct if_nameindex *i = all; i != NULL && i->if_index != 0; i++)
        others += strcmp(i->if_name, "lo") != 0;
    if (others == 0)
        reached(f, "no network interface but lo");
    else
        absent(f, "%d interfaces", others);
    if (all != NULL)
        if_freenameindex(all);
}

/* A machine's first process, and a root that isn't layered. */
static void container(struct finding *f)
{
    static char text[64 << 10];
    if (read_text("/proc/1/comm", text, sizeof text) > 0 && strcmp(text, "init\n") != 0 && strcmp(text, "systemd\n") != 0)
        reached(f, "process 1 is %.16s", text);
    read_text("/proc/self/mountinfo", text, sizeof text);
    if (strstr(text, " / / ") != NULL && strstr(strstr(text, " / / "), " - overlay ") != NULL)
        reached(f, "the root is an overlay");
    if (read_text("/proc/2/comm", text, sizeof text) <= 0 || strcmp(text, "kthreadd\n") != 0)
        reached(f, "no kernel threads");
    absent(f, "looks like a machine");
}

const struct probe fingerprint_probes[] = {
    {"fingerprint.names", names, 0},
    {"fingerprint.paths", paths, 0},
    {"fingerprint.environment", environment, 0},
    {"fingerprint.mounts", mounts, 0},
    {"fingerprint.processes", processes, 0},
    {"fingerprint.command_line", command_line, 0},
    {"fingerprint.host_identity", host_identity, 0},
    {"fingerprint.firmware", firmware, 0},
    {"fingerprint.processor", processor, 0},
    {"fingerprint.kernel_log", kernel_log, 0},
    {"fingerprint.devices", devices, 0},
    {"fingerprint.inode_numbers", inode_numbers, 0},
    {"fingerprint.no_network", no_network, 0},
    {"fingerprint.container", container, 0},
    {NULL, NULL, 0},
};
