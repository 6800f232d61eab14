/* What the host tells the program: `key=value` lines on standard input, which no other process of the cell can read, to the end of the file. */
#include "probe.h"
#include <stdlib.h>

enum { INPUT_BYTES = 16 << 10 };
static char input[INPUT_BYTES];

/* Lines are kept as strings one after the other; an empty one ends them. */
static void split(size_t length)
{
    input[length] = 0;
    for (size_t i = 0; i < length; i++)
        if (input[i] == '\n')
            input[i] = 0;
}

bool parameters_read(void)
{
    size_t have = 0;
    for (;;) {
        ssize_t n = read(0, input + have, sizeof input - 2 - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    split(have);
    return have < sizeof input - 2; /* filled to the brim is cut */
}

const char *parameter(const char *key)
{
    size_t n = strlen(key);
    for (const char *line = input; *line != 0; line += strlen(line) + 1)
        if (strncmp(line, key, n) == 0 && line[n] == '=')
            return line[n + 1] != 0 && strlen(line + n + 1) < VALUE_BYTES ? line + n + 1 : NULL;
    return NULL;
}

const char *needed(struct finding *f, const char *key)
{
    const char *value = parameter(key);
    if (value == NULL)
        failed(f, "not told: %s", key);
    return value;
}

long long needed_number(struct finding *f, const char *key)
{
    const char *value = needed(f, key);
    char *end;
    if (value == NULL)
        return -1;
    long long number = strtoll(value, &end, 10);
    if (*end == 0 && number >= 0)
        return number;
    failed(f, "not a number: %s", key);
    return -1;
}
