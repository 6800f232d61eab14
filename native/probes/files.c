/* The host's files, by every road that has led to them. */
#include "probe.h"
#include <sys/socket.h>
#include <sys/un.h>

static void read_host(struct finding *f)
{
    const char *path = needed(f, "canary");
    if (path != NULL)
        opens(f, path, O_RDONLY);
}

/* Opened without truncation. The host sees the token, or only that the file was written. */
static void write_host(struct finding *f)
{
    const char *path = needed(f, "canary"), *token = needed(f, "token");
    if (path == NULL || token == NULL)
        return;
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || write(fd, token, strlen(token)) < 0)
        refused(f, path);
    else
        reached(f, "wrote to %s", path);
    if (fd >= 0)
        close(fd);
}

static void walk(struct finding *f, const char *from, int root)
{
    enum { DEEPEST = 64 };
    int here = open(from, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; here >= 0 && i < DEEPEST; i++) {
        int up = openat(here, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        close(here);
        here = up;
    }
    if (here >= 0 && !same_directory(here, root) && !is_empty(here))
        reached(f, "above the root by way of %s", from);
    else
        absent(f, "nothing above the root");
    if (here >= 0)
        close(here);
}

/* A process outside its root can go on upwards. */
static void walk_up(struct finding *f)
{
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        refused(f, "/");
        return;
    }
    walk(f, ".", root);
    walk(f, "/", root);
    close(root);
}

static int connected(const char *path, size_t length)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (length > sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, length);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) == 0)
        return s;
    int error = errno;
    close(s);
    errno = error;
    return -1;
}

static void not_connected(struct finding *f, const char *shown)
{
    if (errno == ECONNREFUSED)
        absent(f, "%.100s: nobody listens", shown);
    else
        refused(f, shown);
}

/* The host's own listener: its identity needs no proof. */
static void knock(struct finding *f, const char *path, size_t length)
{
    const char *token = parameter("token"), *shown = path[0] == 0 ? path + 1 : path;
    int s = connected(path, length);
    if (s < 0) {
        not_connected(f, shown);
        return;
    }
    reached(f, "connected to %.100s", shown);
    if (token != NULL && write(s, token, strlen(token)) < 0)
        errno = 0; /* the connection is what counts */
    close(s);
}

static void host_socket(struct finding *f)
{
    const char *path = needed(f, "socket");
    if (path != NULL)
        knock(f, path, strlen(path) + 1);
}

static void host_abstract(struct finding *f)
{
    char name[110] = {0};
    const char *told = needed(f, "abstract");
    if (told == NULL || strlen(told) > sizeof name - 2)
        return;
    memcpy(name + 1, told, strlen(told));
    knock(f, name, strlen(told) + 1);
}

/* A workload may run a service of its own under a usual name. One of a process outside this pid namespace has the number 0. */
static void knock_outside(struct finding *f, const char *path, size_t length)
{
    const char *shown = path[0] == 0 ? path + 1 : path;
    struct ucred peer = {.pid = -1};
    socklen_t size = sizeof peer;
    int s = connected(path, length);
    if (s < 0) {
        not_connected(f, shown);
        return;
    }
    if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0)
        denied(f, "%.100s is of the cell's own process %d", shown, peer.pid);
    else
        reached(f, "connected to %.100s, outside", shown);
    close(s);
}

/* A process that reaches one of these is root of the host. */
static void runtime_sockets(struct finding *f)
{
    static const char *const PATHS[] = {
        "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock",
        "/run/systemd/private", "/run/dbus/system_bus_socket", "/run/udev/control", "/run/libvirt/libvirt-sock", "/run/snapd.socket",
    };
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        knock_outside(f, PATHS[i], strlen(PATHS[i]) + 1);
}

static bool is_of_a_runtime(const char *name)
{
    static const char *const MARKS[] = {"@/containerd-shim", "@/tmp/.X11-unix", "@/org/freedesktop", "@/tmp/dbus-"};
    for (size_t i = 0; i < sizeof MARKS / sizeof *MARKS; i++)
        if (strncmp(name, MARKS[i], strlen(MARKS[i])) == 0)
            return true;
    return false;
}

/* Those of runtimes and desktops: listed for every process in the network namespace, whatever its rights. */
static void shim_sockets(struct finding *f)
{
    static char text[64 << 10];
    char *rest = text;
    if (read_text("/proc/net/unix", text, sizeof text) < 0)
        refused(f, "/proc/net/unix");
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *name = strchr(line, '@');
        if (name == NULL || !is_of_a_runtime(name))
            continue;
        name[0] = 0;
        knock_outside(f, name, strlen(name + 1) + 1);
    }
    absent(f, "none of them is listed");
}

/* Of the machine. A key of the workload's own is none. */
static void credentials(struct finding *f)
{
    static const char *const PATHS[] = {
        "/var/run/secrets/kubernetes.io/serviceaccount/token", "/run/secrets/kubernetes.io/serviceaccount/token",
        "/var/run/secrets/eks.amazonaws.com/serviceaccount/token", "/var/run/secrets/azure/tokens/azure-identity-token", "/etc/kubernetes/admin.conf",
        "/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/config.yaml", "/var/lib/cloud/instance/user-data.txt", "/var/lib/waagent/Certificates.xml",
    };
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        has_content(f, PATHS[i]);
}

const struct probe file_probes[] = {
    {"files.read_host", read_host, QUICK},
    {"files.write_host", write_host, QUICK},
    {"files.walk_up", walk_up, QUICK},
    {"files.host_socket", host_socket, QUICK},
    {"files.runtime_sockets", runtime_sockets, QUICK},
    {"files.host_abstract", host_abstract, QUICK},
    {"files.shim_sockets", shim_sockets, QUICK},
    {"files.credentials", credentials, QUICK},
    {NULL, NULL, 0},
};
