/* The kernel's files: what steers it, what tells of it. */
#include "probe.h"
#include <dirent.h>
#include <stdlib.h>

#define EACH(list, i) (size_t i = 0; i < sizeof(list) / sizeof *(list); i++)

static void write_back(struct finding *f, const char *path)
{
    char value[VALUE_BYTES];
    ssize_t n = read_text(path, value, sizeof value);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        refused(f, path);
    else if (n > 0 && write(fd, value, (size_t)n) == n)
        reached(f, "wrote %s (the value that was there)", path);
    else
        denied(f, "%s: opened, not written: %s", path, errno_name(errno));
    if (fd >= 0)
        close(fd);
}

/* Programs that the kernel starts as root of the host. */
static void helper_programs(struct finding *f)
{
    static const char *const PATHS[] = {
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/poweroff_cmd", "/sys/kernel/uevent_helper",
    };
    for EACH(PATHS, i)
        write_back(f, PATHS[i]);
}

static void settings(struct finding *f)
{
    static const char *const PATHS[] = {
        "/proc/sys/kernel/sysrq", "/proc/sys/kernel/panic", "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/kptr_restrict", "/proc/sys/kernel/pid_max",
        "/proc/sys/kernel/printk", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/swappiness", "/proc/sys/fs/file-max", "/proc/sys/fs/suid_dumpable",
    };
    for EACH(PATHS, i)
        write_back(f, PATHS[i]);
}

/* Each byte is an order; no byte is none. */
static void orders(struct finding *f, const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "", 0) < 0)
        refused(f, path);
    else
        reached(f, "%s takes orders", path);
    if (fd >= 0)
        close(fd);
}

static void control_files(struct finding *f)
{
    static const char *const PATHS[] = {
        "/proc/mtrr", "/proc/irq/default_smp_affinity", "/proc/bus/pci/00/00.0", "/proc/scsi/scsi", "/proc/fs/xfs/stat", "/proc/acpi/wakeup",
        "/proc/driver/rtc",
    };
    orders(f, "/proc/sysrq-trigger");
    for EACH(PATHS, i)
        opens(f, PATHS[i], O_WRONLY);
}

static void sysfs(struct finding *f)
{
    static const char *const PATHS[] = {
        "/sys/kernel/profiling", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/mm/ksm/run", "/sys/kernel/reboot/mode", "/sys/power/state",
        "/sys/module/printk/parameters/time", "/sys/bus/pci/rescan", "/sys/block/vda/queue/read_ahead_kb", "/sys/devices/system/cpu/cpu1/online",
    };
    for EACH(PATHS, i)
        opens(f, PATHS[i], O_WRONLY);
}

/* What runtimes cover, each because something was learnt from it. */
static void masked_files(struct finding *f)
{
    static const char *const PATHS[] = {
        "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/keys",
        "/proc/kpagecount", "/proc/acpi/wakeup", "/proc/asound/version", "/proc/interrupts", "/sys/class/powercap/intel-rapl:0/energy_uj",
        "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj", "/sys/firmware/memmap/0/start", "/sys/firmware/acpi/tables/DSDT",
        "/sys/kernel/notes", "/sys/kernel/vmcoreinfo", "/sys/kernel/boot_params/data",
    };
    for EACH(PATHS, i)
        has_content(f, PATHS[i]);
}

static void counters_at_rest(struct finding *f, const char *path)
{
    static char before[64 << 10], after[64 << 10];
    if (read_text(path, before, sizeof before) < 0) {
        refused(f, path);
        return;
    }
    for (int i = 0; i < 20 && getppid() > 0; i++)
        usleep(1000);
    read_text(path, after, sizeof after);
    if (strcmp(before, after) != 0)
        reached(f, "%s counts", path);
    else
        denied(f, "%s stands still", path);
}

/* Numbers of the whole machine, each as good as a wire between two cells: one moves it, the other reads it. */
static void counters(struct finding *f)
{
    static const char *const PATHS[] = {
        "/proc/sys/kernel/pty/nr", "/proc/sys/fs/file-nr", "/proc/sys/fs/inode-nr", "/proc/sys/fs/dentry-state", "/proc/sys/fs/aio-nr",
        "/proc/cgroups", "/proc/devices", "/proc/misc",
    };
    if (!same_kernel(f))
        return;
    for EACH(PATHS, i)
        has_content(f, PATHS[i]);
    counters_at_rest(f, "/proc/stat");
    counters_at_rest(f, "/proc/vmstat");
}

static void addresses(struct finding *f)
{
    char text[256];
    if (read_text("/proc/kallsyms", text, sizeof text) < 0)
        refused(f, "/proc/kallsyms");
    else if (strtoull(text, NULL, 16) != 0)
        reached(f, "/proc/kallsyms gives the kernel's addresses");
    else
        absent(f, "/proc/kallsyms gives no address");
}

static void debug_file(struct finding *f, const char *path)
{
    DIR *list = opendir(path);
    struct dirent *entry;
    if (list == NULL) {
        refused(f, path);
        return;
    }
    while ((entry = readdir(list)) != NULL && entry->d_name[0] == '.')
        ;
    if (entry != NULL)
        reached(f, "%s has %.64s", path, entry->d_name);
    else
        absent(f, "%s is empty", path);
    closedir(list);
}

static void debug_files(struct finding *f)
{
    static const char *const PATHS[] = {
        "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/fs/bpf", "/sys/fs/pstore", "/sys/firmware/efi/efivars", "/sys/fs/fuse/connections",
    };
    for EACH(PATHS, i)
        debug_file(f, PATHS[i]);
}

static void binary_formats(struct finding *f)
{
    opens(f, "/proc/sys/fs/binfmt_misc/register", O_WRONLY);
}

static void log_read(struct finding *f)
{
    enum { READ_ALL = 3 };
    static char text[4096];
    long n = syscall(SYS_syslog, READ_ALL, text, sizeof text);
    if (n > 0)
        reached(f, "the kernel's log: %.60s", text);
    else if (n < 0)
        refused(f, "syslog");
    opens(f, "/dev/kmsg", O_RDONLY);
    opens(f, "/proc/kmsg", O_RDONLY);
}

static void log_write(struct finding *f)
{
    opens(f, "/dev/kmsg", O_WRONLY);
}

static bool is_control_mount(const char *line, char *point, size_t size)
{
    const char *kind = strstr(line, " - cgroup");
    if (kind == NULL || sscanf(line, "%*d %*d %*s %*s %255s", point) != 1)
        return false;
    return strlen(point) < size;
}

static void control_group(struct finding *f, const char *point)
{
    static const char *const FILES[] = {"cgroup.procs", "release_agent", "notify_on_release", "memory.max", "memory.limit_in_bytes", "pids.max", "cgroup.subtree_control"};
    char path[320];
    for EACH(FILES, i)
        if (path_of(path, sizeof path, "%s/%s", point, FILES[i]))
            opens(f, path, O_WRONLY);
}

/* A tree of control groups that can be written lets the workload lift its own limits. */
static void control_groups(struct finding *f)
{
    static char text[64 << 10];
    char point[256], *rest = text;
    if (read_text("/proc/self/mountinfo", text, sizeof text) < 0)
        refused(f, "/proc/self/mountinfo");
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (is_control_mount(line, point, sizeof point))
            control_group(f, point);
    absent(f, "no control group is mounted");
}

const struct probe kernel_probes[] = {
    {"kernel.helper_programs", helper_programs, QUICK},
    {"kernel.settings", settings, QUICK},
    {"kernel.control_files", control_files, QUICK},
    {"kernel.sysfs", sysfs, QUICK},
    {"kernel.masked_files", masked_files, QUICK},
    {"kernel.counters", counters, QUICK},
    {"kernel.addresses", addresses, QUICK},
    {"kernel.debug_files", debug_files, QUICK},
    {"kernel.binary_formats", binary_formats, QUICK},
    {"kernel.log_read", log_read, QUICK},
    {"kernel.log_write", log_write, QUICK},
    {"kernel.control_groups", control_groups, QUICK},
    {NULL, NULL, 0},
};
