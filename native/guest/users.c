/* The user that a command runs as: /etc/passwd and /etc/group of the image, which the workload may have rewritten. Read inside the container, after the machine's
 * rights are gone, so the worst a hostile file can do is name an id that root of the container could take anyway. */
#include "agent.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MAX_DATABASE_BYTES = 4 << 20 };

/* What kept a database from being read, other than that it isn't there: then an account must not be reported as missing. */
static int database_error;

static void note_failure(int error)
{
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO)
        database_error = error;
}

/* The databases as they were before the workload's first instruction: probes must run as the user that the plan means, whatever a hostile root wrote since. */
static struct { const char *path; char *text; } remembered[] = {{"/etc/passwd", NULL}, {"/etc/group", NULL}};
static bool as_remembered;

/* The whole file, NUL-terminated; NULL if it isn't a regular file of sensible size. Never blocks on a FIFO. */
static char *slurp(int dir, const char *path)
{
    struct stat s;
    int fd = openat(dir, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        note_failure(errno);
        return NULL;
    }
    char *text = NULL;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size <= MAX_DATABASE_BYTES && (text = malloc((size_t)s.st_size + 1)) != NULL) {
        ssize_t n = read(fd, text, (size_t)s.st_size);
        if (n < 0)
            note_failure(errno);
        text[n < 0 ? 0 : n] = 0;
    }
    close(fd);
    return text;
}

/* `root`: a descriptor of the container's root, or -1 when this process is in it. Once, before the first operation. */
void users_remember(int root)
{
    for (size_t i = 0; i < sizeof remembered / sizeof *remembered; i++)
        if (remembered[i].text == NULL)
            remembered[i].text = root < 0 ? slurp(AT_FDCWD, remembered[i].path) : slurp(root, remembered[i].path + 1);
}

static char *database(const char *path)
{
    for (size_t i = 0; as_remembered && i < sizeof remembered / sizeof *remembered; i++)
        if (remembered[i].text != NULL && strcmp(remembered[i].path, path) == 0)
            return strdup(remembered[i].text);
    return slurp(AT_FDCWD, path);
}

/* The next line split at its colons, in place; false at the end. Fields that aren't there are "". */
static bool next_entry(char **cursor, char *fields[], int count)
{
    char *line = *cursor;
    if (line == NULL || *line == 0)
        return false;
    char *end = strchr(line, '\n');
    *cursor = end == NULL ? NULL : end + 1;
    if (end != NULL)
        *end = 0;
    for (int i = 0; i < count; i++) {
        char *colon = i + 1 < count ? strchr(line, ':') : NULL;
        fields[i] = line;
        if (colon != NULL)
            *colon = 0;
        line = colon != NULL ? colon + 1 : line + strlen(line);
    }
    return true;
}

static bool parse_id(const char *text, uint32_t *id)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || *end != 0 || value >= (native_mode ? 0xFFFFFFFFUL : in_machine() ? MACHINE_IDS : (unsigned long)ID_COUNT))
        return false;
    *id = (uint32_t)value;
    return true;
}

static void copy(char *to, size_t n, const char *from) { format(to, n, "%s", from); }

/* Fills in from passwd by name, or by id when `name` is a number. */
static bool find_account(const char *name, struct user *user)
{
    char *text = database("/etc/passwd"), *cursor = text, *f[7];
    uint32_t wanted, uid, gid;
    bool by_id = parse_id(name, &wanted), found = false;
    while (!found && next_entry(&cursor, f, 7)) {
        if (!parse_id(f[2], &uid) || !parse_id(f[3], &gid) || (by_id ? uid != wanted : strcmp(f[0], name) != 0))
            continue;
        found = true;
        user->uid = uid, user->gid = gid;
        copy(user->name, sizeof user->name, f[0]);
        copy(user->home, sizeof user->home, f[5][0] ? f[5] : "/");
        copy(user->shell, sizeof user->shell, f[6][0] ? f[6] : "/bin/sh");
    }
    free(text);
    return found;
}

static bool is_member(char *members, const char *name)
{
    char *saved;
    for (char *m = strtok_r(members, ",", &saved); m != NULL; m = strtok_r(NULL, ",", &saved))
        if (strcmp(m, name) == 0)
            return true;
    return false;
}

static void find_groups(struct user *user)
{
    char *text = database("/etc/group"), *cursor = text, *f[4];
    uint32_t gid;
    user->groups[user->group_count++] = user->gid;
    while (user->name[0] && user->group_count < MAX_GROUPS && next_entry(&cursor, f, 4))
        if (parse_id(f[2], &gid) && gid != user->gid && is_member(f[3], user->name))
            user->groups[user->group_count++] = gid;
    free(text);
}

/* An image with no databases still has a root, by its name too. */
static bool root_without_entry(const char *name, uint32_t *id)
{
    if (strcmp(name, "root") != 0)
        return false;
    *id = 0;
    return true;
}

static bool find_group_id(const char *name, gid_t *gid)
{
    char *text = database("/etc/group"), *cursor = text, *f[4];
    uint32_t id;
    bool found = parse_id(name, gid);
    while (!found && next_entry(&cursor, f, 4))
        if (strcmp(f[0], name) == 0 && parse_id(f[2], &id))
            *gid = id, found = true;
    free(text);
    return found || root_without_entry(name, gid);
}

static int look_up(const char *spec, struct user *user)
{
    char name[128];
    const char *colon = strchr(spec, ':');
    if (strlen(spec) >= sizeof name)
        return EINVAL;
    memset(user, 0, sizeof *user);
    copy(name, sizeof name, spec);
    name[colon == NULL ? strlen(spec) : (size_t)(colon - spec)] = 0;
    if (native_mode && spec[0] == 0)
        format(name, sizeof name, "%u", (unsigned)geteuid());
    const char *wanted = name[0] ? name : "0";
    if (!find_account(wanted, user)) {
        if (!parse_id(wanted, &user->uid) && !root_without_entry(wanted, &user->uid))
            return ENOENT;
        copy(user->home, sizeof user->home, "/");
        copy(user->shell, sizeof user->shell, "/bin/sh");
    }
    user->found = true;
    if (colon != NULL && colon[1] == 0) /* `user:` is `user` to Docker */
        colon = NULL;
    if (colon != NULL && !find_group_id(colon + 1, &user->gid))
        return ENOENT;
    if (colon == NULL)
        find_groups(user);
    else
        user->groups[user->group_count++] = user->gid;
    return 0;
}

/* `spec`: "", a name, a uid, or either with ":group". `as_it_was`: by the databases as they were remembered. */
int user_find(const char *spec, struct user *user, bool as_it_was)
{
    as_remembered = as_it_was;
    database_error = 0;
    int error = look_up(spec, user);
    return database_error != 0 ? database_error : error;
}

const char *user_missing(const char *spec, const struct user *user)
{
    const char *colon = strchr(spec, ':');
    return user->found && colon != NULL ? colon : spec;
}
