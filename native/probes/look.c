/* Small ways of looking that several groups share. */
#include "probe.h"
#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

pid_t parent_pid;

/* Runtimes cover files with the null device. */
static bool is_covered(int fd, const char *path)
{
    struct stat s;
    return strcmp(path, "/dev/null") != 0 && fstat(fd, &s) == 0 && S_ISCHR(s.st_mode) && s.st_rdev == makedev(1, 3);
}

/* Root of a cell can put a file, a pipe or a directory there, as a script does that writes to a console which is not there. */
static bool is_no_device(int fd, const char *path)
{
    struct stat s;
    return strncmp(path, "/dev/", 5) == 0 && fstat(fd, &s) == 0 && !S_ISCHR(s.st_mode) && !S_ISBLK(s.st_mode);
}

bool opens(struct finding *f, const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        refused(f, path);
        return false;
    }
    bool covered = is_covered(fd, path), no_device = is_no_device(fd, path);
    close(fd);
    if (no_device) {
        absent(f, "%s is no device", path);
        return false;
    }
    if (covered) {
        denied(f, "%s: covered", path);
        return false;
    }
    reached(f, "opened %s%s", path, (flags & O_ACCMODE) == O_RDONLY ? "" : " for writing");
    return true;
}

bool has_content(struct finding *f, const char *path)
{
    char byte;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, &byte, 1);
    if (n > 0)
        reached(f, "read %s", path);
    else if (n == 0)
        absent(f, "%s: empty", path);
    else
        refused(f, path);
    if (fd >= 0)
        close(fd);
    return n > 0;
}

ssize_t read_text(const char *path, char *text, size_t size)
{
    size_t have = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    text[0] = 0;
    if (fd < 0)
        return -1;
    ssize_t n;
    while (have < size - 1 && (n = read(fd, text + have, size - 1 - have)) > 0)
        have += (size_t)n;
    close(fd);
    text[have] = 0;
    return (ssize_t)have;
}

bool path_of(char *path, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(path, size, format, arguments);
    va_end(arguments);
    return n >= 0 && (size_t)n < size;
}

long number_of(const char *text)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return -1;
    long number = strtol(text, &end, 10);
    return *end == 0 ? number : -1;
}

void each_process(struct finding *f, void (*visit)(struct finding *, long))
{
    enum { MOST = 2000 };
    DIR *list = opendir("/proc");
    if (list == NULL) {
        refused(f, "/proc");
        return;
    }
    struct dirent *entry;
    for (int seen = 0; seen < MOST && (entry = readdir(list)) != NULL;) {
        long pid = number_of(entry->d_name);
        if (pid > 0)
            visit(f, pid), seen++;
    }
    closedir(list);
}

bool same_directory(int a, int b)
{
    struct stat one, other;
    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

bool is_empty(int directory)
{
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), entries = 0;
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;)
        entries += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (list != NULL)
        closedir(list);
    return list != NULL && entries == 0;
}

/* Numbers of namespaces and users mean something only on the host's own kernel; another one hands out the same numbers. */
bool same_kernel(struct finding *f)
{
    static char text[256 << 10];
    long long host = needed_number(f, "btime");
    if (host < 0)
        return false;
    const char *line = read_text("/proc/stat", text, sizeof text) < 0 ? NULL : strstr(text, "\nbtime ");
    long long ours = line == NULL ? -1 : atoll(line + 7);
    if (ours >= host - 2 && ours <= host + 2)
        return true;
    absent(f, "another kernel than the host's");
    return false;
}

int scratch_directory(char path[64])
{
    static const char *const PLACES[] = {"/tmp", "/dev/shm", "/var/tmp", "/run"};
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        snprintf(path, 64, "%s/.cache-XXXXXX", PLACES[i]);
        if (mkdtemp(path) != NULL)
            return 0;
    }
    return -1;
}
