/* What an attempt found, and how it is said: printable ASCII, bounded. */
#include "probe.h"
#include <stdarg.h>

static void keep(struct finding *f, enum outcome outcome, const char *format, va_list arguments)
{
    size_t used = strlen(f->detail);
    if (outcome < f->outcome || (outcome == f->outcome && outcome != REACHED && used != 0))
        return;
    if (outcome > f->outcome)
        used = 0;
    f->outcome = outcome;
    if (used != 0 && used + 2 < sizeof f->detail)
        memcpy(f->detail + used, "; ", 3), used += 2;
    vsnprintf(f->detail + used, sizeof f->detail - used, format, arguments);
}

#define SAYS(name, outcome) \
    void name(struct finding *f, const char *format, ...) \
    { \
        va_list arguments; \
        va_start(arguments, format); \
        keep(f, outcome, format, arguments); \
        va_end(arguments); \
    }

SAYS(reached, REACHED)
SAYS(denied, DENIED)
SAYS(absent, ABSENT)
SAYS(failed, FAILED)

static const struct { int error; const char *name; } ERRORS[] = {
#define NAMED(e) {e, #e}
    NAMED(EPERM), NAMED(ENOENT), NAMED(ESRCH), NAMED(EINTR), NAMED(EIO), NAMED(ENXIO), NAMED(E2BIG), NAMED(ENOEXEC), NAMED(EBADF), NAMED(ECHILD),
    NAMED(EAGAIN), NAMED(ENOMEM), NAMED(EACCES), NAMED(EFAULT), NAMED(ENOTBLK), NAMED(EBUSY), NAMED(EEXIST), NAMED(EXDEV), NAMED(ENODEV),
    NAMED(ENOTDIR), NAMED(EISDIR), NAMED(EINVAL), NAMED(ENFILE), NAMED(EMFILE), NAMED(ENOTTY), NAMED(ETXTBSY), NAMED(EFBIG), NAMED(ENOSPC),
    NAMED(ESPIPE), NAMED(EROFS), NAMED(EMLINK), NAMED(EPIPE), NAMED(ERANGE), NAMED(ENAMETOOLONG), NAMED(ENOSYS), NAMED(ELOOP), NAMED(ENODATA),
    NAMED(EPROTO), NAMED(EOVERFLOW), NAMED(EUSERS), NAMED(EDESTADDRREQ), NAMED(EMSGSIZE), NAMED(EPROTONOSUPPORT), NAMED(ESOCKTNOSUPPORT),
    NAMED(EOPNOTSUPP), NAMED(EPFNOSUPPORT), NAMED(EAFNOSUPPORT), NAMED(EADDRINUSE), NAMED(EADDRNOTAVAIL), NAMED(ENETDOWN), NAMED(ENETUNREACH),
    NAMED(ENOBUFS), NAMED(ECONNRESET), NAMED(ENOTCONN), NAMED(ETIMEDOUT), NAMED(ECONNREFUSED), NAMED(EHOSTDOWN), NAMED(EHOSTUNREACH), NAMED(EINPROGRESS),
    NAMED(ESTALE), NAMED(EDQUOT), NAMED(ENOKEY), NAMED(EKEYREJECTED),
};

const char *errno_name(int error)
{
    static char other[24];
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].error == error)
            return ERRORS[i].name;
    snprintf(other, sizeof other, "errno %d", error);
    return other;
}

static bool means_nothing_there(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ENOSYS || error == ENXIO || error == ENODEV || error == ESRCH || error == EAFNOSUPPORT ||
        error == EPROTONOSUPPORT || error == ESOCKTNOSUPPORT;
}

/* A lack of descriptors or memory, which another cell can bring about: then nobody was asked. */
static bool says_nothing(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS; }

void refused(struct finding *f, const char *what)
{
    int error = errno;
    (says_nothing(error) ? failed : means_nothing_there(error) ? absent : denied)(f, "%s: %s", what, errno_name(error));
}

void permitted(struct finding *f, const char *what, long result)
{
    int error = errno;
    if (result >= 0)
        reached(f, "%s: done", what);
    else if (error == EPERM || error == EACCES || error == EROFS)
        denied(f, "%s: %s", what, errno_name(error));
    else if (error == ENOSYS)
        absent(f, "%s: ENOSYS", what);
    else
        reached(f, "%s: past the permission check, then %s", what, errno_name(error));
}

static void print_escaped(const char *text)
{
    static const char digits[] = "0123456789abcdef";
    size_t said = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c != 0 && said + 4 <= DETAIL_BYTES; c++) {
        bool plain = *c >= 0x20 && *c < 0x7f && *c != '\\';
        if (plain)
            putchar(*c);
        else
            printf("\\x%c%c", digits[*c >> 4], digits[*c & 15]);
        said += plain ? 1 : 4;
    }
}

void print_finding(const char *name, const struct finding *f)
{
    static const char *const WORDS[] = {[ABSENT] = "absent", [DENIED] = "denied", [FAILED] = "error", [REACHED] = "reached"};
    printf("%s\t%s\t", name, WORDS[f->outcome]);
    print_escaped(f->detail);
    putchar('\n');
}
