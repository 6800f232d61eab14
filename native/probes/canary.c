/* `PROGRAM plant TOKEN PORT DIR…` leaves a trace of every kind in the cell until its standard input ends, and then none; `PROGRAM search` looks in another cell
 * for them (parameters on standard input). No probes: a revert of the cell in between is verified by them (design/isolation.md). A line each; `end` is the last. */
#include "probe.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { COPIES = 1024 };

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static bool trace(char *path, size_t n, const char *directory, const char *token)
{
    return snprintf(path, n, "%s/%s", directory, token) < (int)n;
}

static void listen_on(const char *port)
{
    struct sockaddr_in address = loopback((uint16_t)atoi(port));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 8) == 0)
        printf("port %s\n", port);
}

/* Arguments and environment are its host's doing. Readable to its own user, as those of a workload's programs are. */
int plant(const char *token, const char *port, int count, char **directories)
{
    static char memory[COPIES][64];
    char path[4096], scratch[256];
    prctl(PR_SET_DUMPABLE, 1);
    for (int i = 0; i < COPIES; i++)
        snprintf(memory[i], sizeof memory[i], "%s", token);
    for (int i = 0; i < count; i++) {
        int fd = trace(path, sizeof path, directories[i], token) ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
        if (fd >= 0 && write(fd, token, strlen(token)) > 0)
            printf("file %s\n", directories[i]);
    }
    listen_on(port);
    printf("process\nenvironment\nmemory\nend\n");
    fflush(stdout);
    while (read(0, scratch, sizeof scratch) > 0)
        ;
    for (int i = 0; i < count; i++)
        if (trace(path, sizeof path, directories[i], token))
            unlink(path);
    return memory[0][0] == 0; /* so that the compiler keeps it */
}

static void look_into(const char *kind, const char *pid, const char *name, const char *token)
{
    static char text[256 << 10];
    snprintf(text, sizeof text, "/proc/%.32s/%s", pid, name);
    int fd = open(text, O_RDONLY | O_CLOEXEC);
    ssize_t have = 0, n;
    while (fd >= 0 && have < (ssize_t)sizeof text && (n = read(fd, text + have, sizeof text - (size_t)have)) > 0)
        have += n;
    if (have > 0 && memmem(text, (size_t)have, token, strlen(token)) != NULL)
        printf("%s %s\n", kind, pid);
    if (fd >= 0)
        close(fd);
}

static void search_processes(const char *token)
{
    DIR *list = opendir("/proc");
    struct dirent *entry;
    while (list != NULL && (entry = readdir(list)) != NULL)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') {
            look_into("process", entry->d_name, "cmdline", token);
            look_into("environment", entry->d_name, "environ", token);
        }
    if (list != NULL)
        closedir(list);
    else
        printf("unseen process\n");
}

static void search_port(const char *port)
{
    struct sockaddr_in address = loopback((uint16_t)atoi(port));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        printf("port %s\n", port);
    if (fd >= 0)
        close(fd);
}

int search(void)
{
    static const char *const DIRECTORIES[] = {"dir0", "dir1", "dir2"};
    const char *token, *port;
    char path[4096];
    prctl(PR_SET_DUMPABLE, 0); /* no other process reads the token in its memory */
    if (!parameters_read() || (token = parameter("token")) == NULL)
        return 64;
    for (size_t i = 0; i < sizeof DIRECTORIES / sizeof *DIRECTORIES; i++) {
        const char *directory = parameter(DIRECTORIES[i]);
        if (directory != NULL && trace(path, sizeof path, directory, token) && access(path, F_OK) == 0)
            printf("file %s\n", directory);
    }
    search_processes(token);
    if ((port = parameter("port")) != NULL)
        search_port(port);
    printf("end\n");
    return fflush(stdout) != 0;
}
