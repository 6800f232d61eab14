/* How a step fails: one line on standard error, and the end. */
#include "wire.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void fail(const char *what)
{
    const char *parts[] = {"wire: ", what, ": ", strerror(errno), "\n"};
    for (int i = 0; i < 5; i++)
        if (write(2, parts[i], strlen(parts[i])) < 0)
            break;
    _exit(END_STEP);
}

void must(int result, const char *what)
{
    if (result < 0)
        fail(what);
}
