/* An operation's process, between fork and the image's program. It holds a copy of the agent's memory, so until execve it is not dumpable (the kernel then
 * refuses ptrace and /proc/PID/mem to every process in the container), and it drops every descriptor but its own before it looks at anything of the image. */
#include "agent.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

static void place(int from, int to)
{
    if (from < 0)
        close(to);
    else if (dup3(from, to, O_CLOEXEC) < 0)
        _exit(127);
}

/* Its own four to seven descriptors to the places it knows, everything else closed: the channel, other operations' pipes, the namespaces' handles. */
static void arrange(const struct plumbing *p)
{
    if (dup2(p->in, 0) < 0 || dup2(p->out, 1) < 0 || dup2(p->err, 2) < 0 || dup3(p->status, CHILD_STATUS_FD, O_CLOEXEC) < 0)
        _exit(127);
    place(p->pts, CHILD_PTS_FD);
    place(p->probe, CHILD_PROBE_FD);
    place(p->input, CHILD_INPUT_FD);
    close_from(FIRST_FREE_FD);
}

/* /dev/stdout and its kind open the pipe anew, for which it must be the user's. In two steps: each takes a right that the other's place doesn't give. */
static void give_pipe(int fd, uid_t uid, gid_t gid)
{
    struct stat s;
    if (fstat(fd, &s) == 0 && S_ISFIFO(s.st_mode) && fchown(fd, uid, gid) != 0)
        errno = 0; /* then only that way of opening it is closed */
}

static void give_pipes_to_container(const struct plumbing *p)
{
    if (!in_machine())
        return;
    give_pipe(p->in, ID_SHIFT, ID_SHIFT);
    give_pipe(p->out, ID_SHIFT, ID_SHIFT);
    give_pipe(p->err, ID_SHIFT, ID_SHIFT);
    give_pipe(p->input, ID_SHIFT, ID_SHIFT);
}

static void give_pipes_to_user(const struct user *user)
{
    for (int fd = 0; fd <= 2; fd++)
        give_pipe(fd, user->uid, user->gid);
}

static void fresh_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void fresh_limits(void)
{
    struct rlimit none = {1, 1} /* at 0 a piped core_pattern still gets its dump, at 1 nobody does */, files = {1024, MAX_FILES};
    setrlimit(RLIMIT_CORE, &none);
    if (contained_mode && getrlimit(RLIMIT_NOFILE, &files) == 0) /* the runtime's bound is the workload's */
        files.rlim_cur = files.rlim_max < 1024 ? files.rlim_max : 1024;
    if (!native_mode)
        setrlimit(RLIMIT_NOFILE, &files);
    umask(022);
}

static bool has_env(const struct request *r, const char *name)
{
    size_t n = strlen(name);
    for (uint32_t i = 0; i < r->envc; i++)
        if (strncmp(r->env[i], name, n) == 0 && r->env[i][n] == '=')
            return true;
    return false;
}

static void default_env(struct request *r, const char *name, const char *value)
{
    if (has_env(r, name) || value[0] == 0)
        return;
    size_t n = strlen(name) + strlen(value) + 2;
    char *entry = must_alloc(NULL, n);
    format(entry, n, "%s=%s", name, value);
    r->env[r->envc++] = entry;
    r->env[r->envc] = NULL;
}

static const char DEFAULT_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

static void complete_env(struct request *r, const struct user *user)
{
    default_env(r, "PATH", DEFAULT_PATH);
    default_env(r, "HOME", user->home);
    default_env(r, "USER", user->name);
    default_env(r, "LOGNAME", user->name);
    default_env(r, "SHELL", user->shell);
    if (r->flags & EXEC_PTY)
        default_env(r, "TERM", "xterm");
}

/* 0 or errno. What is outside of the container's root has no path from it, and is no directory of a command's. */
static int go_to(const char *cwd, const struct user *user)
{
    const char *home = user->home[0] == '/' ? user->home : "/";
    char path[4096];
    if (cwd[0] != '/' && chdir(home) != 0 && chdir("/") != 0)
        return errno;
    if (cwd[0] != 0 && chdir(cwd) != 0)
        return errno;
    return getcwd(path, sizeof path) == NULL && errno == ENOENT ? ENOENT : 0;
}

/* As runc does: first as the container's root, with no more rights than a command of root's has, since a user may work in a directory below one that
 * is closed to it; where root is kept out, as the user. */
static void become(const char *cwd, const char *spec, const struct user *user)
{
    int error = confine_to_root(), refused = error == 0 ? go_to(cwd, user) : 0;
    if (error == 0 && refused != 0 && refused != EACCES && refused != EPERM)
        child_fail(ST_CWD, refused, cwd);
    if (error == 0)
        error = confine(user);
    if (error != 0)
        child_fail(ST_CREDENTIALS, error, spec);
    if (refused != 0 && (error = go_to(cwd, user)) != 0)
        child_fail(ST_CWD, error, cwd);
}

/* The master goes to the agent, the other end becomes the controlling terminal. Opened with the user's own credentials, so that it is the user's. */
static void send_terminal(int master)
{
    struct status status = {.type = S_TERMINAL};
    if (!send_with(CHILD_STATUS_FD, &status, sizeof status, master, 0))
        child_fail(ST_EXEC, errno, "terminal");
}

/* gVisor has no TIOCGPTPEER. The directory is the container's own devpts, opened before anything of the image ran. */
static int other_end(int master)
{
    char name[12];
    unsigned number = 0;
    int how = O_RDWR | O_NOCTTY | O_CLOEXEC, slave = ioctl(master, TIOCGPTPEER, how);
    if (slave >= 0 || !contained_mode || ioctl(master, TIOCGPTN, &number) != 0)
        return slave;
    format(name, sizeof name, "%u", number);
    return openat(CHILD_PTS_FD, name, how | O_NOFOLLOW);
}

static void take_terminal(const struct request *r)
{
    struct winsize size = {.ws_row = r->rows, .ws_col = r->cols};
    int unlocked = 0, how = O_RDWR | O_NOCTTY | O_CLOEXEC;
    int master = native_mode ? open("/dev/ptmx", how) : openat(CHILD_PTS_FD, "ptmx", how); /* inside, /dev is the workload's; the descriptor is ours */
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlocked) != 0)
        child_fail(ST_EXEC, errno, "terminal");
    int slave = other_end(master);
    if (slave < 0 || ioctl(slave, TIOCSWINSZ, &size) != 0 || ioctl(slave, TIOCSCTTY, 0) != 0)
        child_fail(ST_EXEC, errno, "terminal");
    send_terminal(master);
    if (dup2(slave, 0) < 0 || dup2(slave, 1) < 0 || dup2(slave, 2) < 0)
        child_fail(ST_EXEC, errno, "terminal");
    close(slave), close(master), close(CHILD_PTS_FD);
}

/* A service's output, in the cell: a regular file of the user's own, so that /dev/stdout and its kind can be opened anew. */
static void open_log(void)
{
    static const char *const places[] = {"/var/log/service.log", "/tmp/service.log"};
    int fd = -1;
    for (size_t i = 0; i < sizeof places / sizeof *places && fd < 0; i++)
        fd = open(places[i], O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    if (fd >= 0 && (fcntl(fd, F_SETFL, O_APPEND) != 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0))
        child_fail(ST_EXEC, errno, "log");
}

static const char *search_path(const struct request *r)
{
    for (uint32_t i = 0; i < r->envc; i++)
        if (strncmp(r->env[i], "PATH=", 5) == 0)
            return r->env[i] + 5;
    return DEFAULT_PATH;
}

/* By its descriptor, which the exec closes: nothing of the image is looked at, and the program has no name that a workload could open. */
_Noreturn static void run_probe(const struct request *r)
{
    syscall(SYS_execveat, CHILD_PROBE_FD, "", r->argv, r->env, AT_EMPTY_PATH);
    child_fail(ST_EXEC, errno == EBADF ? ENOENT : errno, "");
}

/* As execvpe does, without its fallback to a shell. An error that says more than "not there" is kept. */
_Noreturn static void run(const struct request *r)
{
    const char *name = r->argv[0], *dir = search_path(r);
    int kept = ENOENT;
    char path[4096];
    if (strchr(name, '/') != NULL || name[0] == 0) {
        execve(name, r->argv, r->env);
        child_fail(ST_EXEC, errno, name);
    }
    for (;;) {
        int n = (int)strcspn(dir, ":");
        if (format(path, sizeof path, "%.*s%s%s", n, dir, n ? "/" : "", name)) {
            execve(path, r->argv, r->env);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                child_fail(ST_EXEC, errno, name);
            if (errno == EACCES)
                kept = EACCES;
        }
        if (dir[n] == 0)
            child_fail(ST_EXEC, kept, name);
        dir += n + 1;
    }
}

/* The part that needs no request. 0 or errno. */
static int settle_in(const struct plumbing *pipes, bool give_pipes, bool service)
{
    channel_drop();
    setsid();
    if (give_pipes)
        give_pipes_to_container(pipes);
    int entered = service ? service_enter(pipes->status) : container_enter();
    arrange(pipes);
    fresh_signals();
    fresh_limits();
    return entered;
}

_Noreturn static void carry_out(uint8_t kind, struct request *request)
{
    struct user user;
    int error = user_find(request->user, &user, kind == KIND_EXEC && (request->flags & EXEC_PROBE));
    if (error != 0)
        child_fail(ST_USER, error, user_missing(request->user, &user));
    if (kind == KIND_EXEC)
        give_pipes_to_user(&user);
    become(request->cwd, request->user, &user);
    if (kind == KIND_READ)
        child_read_file(request);
    if (kind == KIND_WRITE)
        child_write_file(request, &user);
    if (kind == KIND_WALK)
        child_walk(request);
    if (kind == KIND_PUT)
        child_put(request);
    if (kind == KIND_REMOVE)
        child_remove(request);
    complete_env(request, &user);
    if (request->flags & EXEC_SERVICE)
        open_log();
    if (request->flags & EXEC_PTY)
        take_terminal(request);
    if (request->flags & EXEC_PROBE)
        run_probe(request);
    run(request);
}

_Noreturn void child_main(uint8_t kind, struct request *request, const struct plumbing *pipes)
{
    int entered = settle_in(pipes, kind == KIND_EXEC, kind == KIND_EXEC && (request->flags & EXEC_SERVICE));
    if (entered != 0)
        child_fail(ST_CREDENTIALS, entered, "container");
    carry_out(kind, request);
}

/* It came with what a command without input has, and all the rest beside; 0 is the null device until then. */
static void keep_only(uint8_t kind, uint32_t flags)
{
    bool command = kind == KIND_EXEC, in = takes_input(kind) || (command && (flags & EXEC_STDIN));
    bool pty = command && (flags & EXEC_PTY);
    if ((pty || takes_input(kind)) && dup2(0, 1) < 0)
        _exit(127);
    if ((pty || !command) && dup2(0, 2) < 0)
        _exit(127);
    if (in && !pty && dup2(CHILD_INPUT_FD, 0) < 0)
        _exit(127);
    close(CHILD_INPUT_FD);
    if (!pty)
        close(CHILD_PTS_FD);
    if (!command || !(flags & EXEC_PROBE))
        close(CHILD_PROBE_FD);
}

_Noreturn void child_wait(const struct plumbing *pipes)
{
    static uint8_t message[1 + FIRST_REQUEST_BYTES + 4];
    struct request request;
    ssize_t n = 0;
    if (settle_in(pipes, true, false) != 0 || confine_early() != 0 || send(CHILD_STATUS_FD, "r", 1, MSG_NOSIGNAL) != 1)
        _exit(127);
    while ((n = recv(CHILD_STATUS_FD, message, 1 + FIRST_REQUEST_BYTES, 0)) < 0 && errno == EINTR)
        ;
    if (n < 1 || !request_parse(message[0], message + 1, (uint32_t)n - 1, &request))
        _exit(127);
    keep_only(message[0], request.flags);
    carry_out(message[0], &request);
}
