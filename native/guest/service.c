/* A service's program is process 1 of a PID namespace of its own, as a container's entrypoint is. While it runs, what starts beside it is born in that namespace
 * and sees its /proc; after its end, in the container's own again. No process of the workload can make or enter a namespace: the calls are the agent's. */
#include "agent.h"
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MAX_MOUNTS_BYTES = 1 << 20, MAX_COVERS = 256, ROOM_MS = 5000, OVER_MS = 1000, PAUSE_MS = 50 };

static pid_t service_pid = -1, waiting_pid = -1; /* the program; in its place, where children can't be born in the container's own namespace again */
static int own_pids = -1, mounts = -1;
static bool serving, stale, given_up;
uint32_t service_era;
static uint32_t first_era; /* of what starts in the namespace that there is now */

void service_prepare(void) { own_pids = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC); }

bool service_runs(void) { return serving; }

bool service_keeps(pid_t pid) { return !given_up && (pid == service_pid || pid == waiting_pid); }

static void forget_mounts(void)
{
    if (mounts >= 0)
        close(mounts);
    mounts = -1, service_era++;
    leaders_dismiss_old();
}

/* gVisor lets nobody back into the namespace that he came from. */
static void go_back(void)
{
    serving = given_up = false;
    forget_mounts();
    stale = setns(in_machine() ? container.init_pidfd : own_pids, CLONE_NEWPID) != 0;
}

static int new_namespace(void)
{
    if (setns(own_pids, CLONE_NEWPID) != 0 && !in_sentry)
        return errno;
    return unshare(CLONE_NEWPID) != 0 ? errno : 0;
}

int service_begin(void)
{
    if (serving)
        return EBUSY;
    if (waiting_pid > 0)
        kill(waiting_pid, SIGKILL);
    int error = new_namespace();
    forget_mounts();
    serving = error == 0, stale = given_up = false, first_era = service_era;
    return error;
}

void service_forked(pid_t pid)
{
    service_pid = pid;
    if (pid < 0)
        go_back();
}

void service_reaped(pid_t pid)
{
    if (pid == service_pid)
        service_pid = -1, go_back();
    if (pid != waiting_pid)
        return;
    waiting_pid = -1;
    if (!serving)
        go_back();
}

void service_look(void)
{
    siginfo_t info = {0};
    if (serving && service_pid > 0 && waitid(P_PID, (id_t)service_pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == service_pid)
        ops_reap();
}

bool service_is_over(void)
{
    if (!serving && waiting_pid < 0)
        return false;
    for (int ms = 0; ms < OVER_MS; ms++) {
        ops_reap();
        if (!serving && waiting_pid < 0)
            return true;
        usleep(1000);
    }
    return false;
}

/* What was below a leader in the namespace comes to its process 1, and can't be told apart from what that started itself: all of it is ended. */
bool service_give_up(uint32_t era)
{
    given_up |= (serving || waiting_pid > 0) && era >= first_era;
    return given_up && serving;
}

/* ---- in the namespace's process 1 ---- */

static char *all_of(const char *path)
{
    char *text = must_alloc(NULL, MAX_MOUNTS_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t got = fd < 0 ? -1 : 1;
    while (got > 0 && n < MAX_MOUNTS_BYTES - 1 && (got = read(fd, text + n, MAX_MOUNTS_BYTES - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    if (fd >= 0)
        close(fd);
    if (got == 0)
        return text;
    free(text);
    errno = errno ? errno : EFBIG;
    return NULL;
}

/* A mount of a file that has no name any more can neither be moved nor bound: another such file of the same contents. */
static int cover_again(const char *from, const char *over)
{
    char *text = all_of(from);
    int error = text == NULL ? EIO : cover_with_text(over, text) ? 0 : EIO;
    free(text);
    return error;
}

static bool is_at_or_below(const char *path, const char *top)
{
    size_t n = strlen(top);
    return strncmp(path, top, n) == 0 && (path[n] == 0 || path[n] == '/');
}

/* What the container's /proc covers or has read-only is so in the new one: the same mounts, at the same places. They are moved, with those on
 * them; gVisor, which can't move, binds. */
static int cover_as(int old)
{
    const char *moved[MAX_COVERS];
    int count = 0;
    char from[512], *lines = all_of("/proc/self/mountinfo"), *saved, *line;
    int error = lines == NULL ? errno : 0;
    for (line = error ? NULL : strtok_r(lines, "\n", &saved); line != NULL && error == 0; line = strtok_r(NULL, "\n", &saved)) {
        for (int words = 0; words < 4 && line != NULL; words++)
            line = strchr(line, ' ') == NULL ? NULL : strchr(line, ' ') + 1;
        if (line == NULL || strncmp(line, "/proc/", 6) != 0)
            continue;
        line[strcspn(line, " ")] = 0;
        bool came = false;
        for (int i = 0; i < count && !in_sentry; i++)
            came |= is_at_or_below(line, moved[i]);
        if (came)
            continue;
        if (count == MAX_COVERS || !format(from, sizeof from, "/proc/self/fd/%d%s", old, line + 5))
            error = E2BIG;
        else if (mount(from, line, NULL, in_sentry ? MS_BIND : MS_MOVE, NULL) != 0)
            error = errno == ENOENT ? cover_again(from, line) : errno;
        if (error == 0)
            moved[count++] = line;
    }
    free(lines);
    static const char boot_id[] = "/proc/sys/kernel/random/boot_id";
    if (error == 0 && in_sentry && format(from, sizeof from, "/proc/self/fd/%d%s", old, boot_id + 5) && mount(from, boot_id, NULL, MS_BIND, NULL) != 0)
        error = errno; /* gVisor makes up another for each /proc */
    return error;
}

/* A mount namespace of its own with a /proc of its PID namespace: a descriptor of it, or -1 and errno. */
static int own_proc(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) != 0)
        return -1;
    int old = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (old < 0 || mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        return -1;
    int error = cover_as(old);
    close(old);
    errno = error;
    return error != 0 ? -1 : open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
}

int service_enter(int status_fd)
{
    if (in_machine() && setns(container.init_pidfd, CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP) != 0)
        return errno;
    int own = own_proc();
    struct status status = {.type = S_NAMESPACE};
    if (own < 0)
        return errno ? errno : EIO;
    if (!send_with(status_fd, &status, sizeof status, own, 0))
        return errno;
    if (in_machine())
        return setns(container.user_ns, CLONE_NEWUSER) != 0 ? errno : 0;
    return leader_confine();
}

/* ---- what starts beside it ---- */

void service_entered(int mount_ns)
{
    forget_mounts();
    mounts = mount_ns;
}

int service_join(void) { return mounts >= 0 && setns(mounts, CLONE_NEWNS) != 0 ? errno : 0; }

/* Where there is no way back, a process that only waits takes the program's place. */
int service_make_room(void)
{
    int pair[2], own = -1;
    char byte;
    if (!stale)
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return errno;
    int error = new_namespace();
    if (error != 0) {
        close(pair[0]), close(pair[1]);
        return error;
    }
    waiting_pid = fork();
    if (waiting_pid == 0) {
        channel_drop();
        own = own_proc();
        if (own < 0 || !send_with(pair[1], "", 1, own, 0))
            _exit(77);
        reap_forever();
    }
    error = waiting_pid < 0 ? errno : ETIMEDOUT;
    close(pair[1]);
    struct pollfd made = {.fd = pair[0], .events = POLLIN};
    for (int ms = 0; waiting_pid > 0 && error == ETIMEDOUT && ms < ROOM_MS; ms += PAUSE_MS) {
        kill(waiting_pid, SIGCONT); /* root of the container can stop it */
        if (poll(&made, 1, PAUSE_MS) == 1)
            error = receive_with(pair[0], &byte, 1, &own, 0) == 1 && own >= 0 ? 0 : EIO;
    }
    close(pair[0]);
    if (error == 0)
        service_entered(own), first_era = service_era;
    else if (waiting_pid > 0)
        kill(waiting_pid, SIGKILL);
    stale = error != 0;
    return error;
}
