/* `PROGRAM all | quick | list | NAME-OR-GROUP…`, parameters on standard input; `PROGRAM connect …` is no probe: connect.c; nor are
 * `plant` and `search`: canary.c. */
#include "probe.h"
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ONE_MS = 5000, WHOLE_S = 60 };

/* What an earlier cell left is looked for first: later attempts leave traces of their own. */
static const struct probe *const GROUPS[] = {
    persistence_probes, file_probes, process_probes, kernel_probes, call_probes, device_probes, mount_probes, namespace_probes, network_probes, address_probes,
    resource_probes, channel_probes, door_probes, fingerprint_probes,
};

_Noreturn static void run_child(const struct probe *p, int out)
{
    struct finding f = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    alarm(ONE_MS / 1000 + 1);
    p->attempt(&f);
    _exit(write(out, &f, sizeof f) != sizeof f);
}

static bool answered(int in, struct finding *f)
{
    struct pollfd waiting = {.fd = in, .events = POLLIN};
    return poll(&waiting, 1, ONE_MS) == 1 && read(in, f, sizeof *f) == sizeof *f;
}

static void explain(const struct probe *p, struct finding *f, int status)
{
    *f = (struct finding){0};
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGALRM && (p->flags & SIGNAL_IS_NO))
        denied(f, "killed by signal %d", WTERMSIG(status));
    else if (WIFSIGNALED(status))
        failed(f, "ended by signal %d", WTERMSIG(status));
    else
        failed(f, "ended with status %d and said nothing", WEXITSTATUS(status));
}

/* Its whole process group ends with it. */
static void run_apart(const struct probe *p, struct finding *f)
{
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        failed(f, "pipe: %s", errno_name(errno));
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        run_child(p, ends[1]);
    close(ends[1]);
    bool said = pid > 0 && answered(ends[0], f);
    if (pid > 0) {
        kill(-pid, SIGKILL), kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    if (pid < 0)
        failed(f, "fork: %s", errno_name(errno));
    else if (!said)
        explain(p, f, status);
    f->detail[sizeof f->detail - 1] = 0;
    close(ends[0]);
}

static void run(const struct probe *p)
{
    struct finding f = {0};
    if (p->flags & APART)
        run_apart(p, &f);
    else
        p->attempt(&f);
    print_finding(p->name, &f);
}

static bool in_group(const char *name, const char *group)
{
    size_t n = strlen(group);
    return strncmp(name, group, n) == 0 && name[n] == '.';
}

static bool wanted(const struct probe *p, int count, char **words)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], "all") == 0 || strcmp(words[i], p->name) == 0 || in_group(p->name, words[i]))
            return true;
        if (strcmp(words[i], "quick") == 0 && (p->flags & QUICK))
            return true;
    }
    return false;
}

static unsigned each(int count, char **words, void (*act)(const struct probe *))
{
    unsigned done = 0;
    for (size_t g = 0; g < sizeof GROUPS / sizeof *GROUPS; g++)
        for (const struct probe *p = GROUPS[g]; p->name != NULL; p++)
            if (wanted(p, count, words))
                act(p), done++;
    return done;
}

/* What takes long to be answered is asked first. */
static void send_ahead(const struct probe *p)
{
    struct finding unused = {0};
    for (const struct probe *each = address_probes; each->name != NULL; each++)
        if (each == p)
            p->attempt(&unused);
}

static void print_name(const struct probe *p) { printf("%s\t%s\n", p->name, p->flags & QUICK ? "quick" : "full"); }

static int list_all(void)
{
    char all[] = "all", *words[] = {all};
    each(1, words, print_name);
    return fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    static char buffer[64 << 10];
    if (argc == 4 && strcmp(argv[1], "connect") == 0) {
        prctl(PR_SET_DUMPABLE, 0); /* nor can this program be read through /proc/PID/exe */
        connect_and_carry(argv[2], argv[3]);
        return 0;
    }
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (argc > 3 && strcmp(argv[1], "plant") == 0)
        return plant(argv[2], argv[3], argc - 4, argv + 4);
    if (argc == 2 && strcmp(argv[1], "search") == 0)
        return search();
    if (argc == 2 && strcmp(argv[1], "list") == 0)
        return list_all();
    alarm(WHOLE_S);
    prctl(PR_SET_NAME, "sh");
    prctl(PR_SET_DUMPABLE, 0); /* other processes of the cell could change what it says, or read what it was told */
    signal(SIGPIPE, SIG_IGN);
    parent_pid = getppid();
    if (argc < 2 || !parameters_read())
        return 64;
    in_a_hurry = argc == 2 && strcmp(argv[1], "quick") == 0;
    sending_ahead = true;
    each(argc - 1, argv + 1, send_ahead);
    sending_ahead = false;
    unsigned done = each(argc - 1, argv + 1, run);
    const char *nonce = parameter("nonce");
    printf("end\t%u\t%s\n", done, nonce == NULL ? "" : nonce);
    return fflush(stdout) != 0;
}
