/* An operation's request, from bytes to names. The host is trusted to mean well; what it relays was written by others, so every count is checked. */
#include "agent.h"
#include <stdlib.h>

static char **take_strings(struct reader *r, uint32_t *count, uint32_t spare)
{
    uint32_t n = (uint32_t)take_int(r, 4);
    if (r->bad || n > (uint64_t)(r->end - r->p) / 4) { /* a string takes four bytes at least */
        r->bad = true;
        return NULL;
    }
    char **list = must_alloc(NULL, ((size_t)n + spare + 1) * sizeof *list);
    for (uint32_t i = 0; i < n; i++)
        list[i] = take_str(r, NULL);
    list[n] = NULL;
    *count = n;
    return list;
}

static void parse_exec(struct reader *r, struct request *out)
{
    uint32_t argc = 0;
    out->flags = (uint32_t)take_int(r, 4);
    out->timeout_ms = take_int(r, 8);
    out->cap[0] = take_int(r, 8);
    out->cap[1] = take_int(r, 8);
    out->rows = (uint16_t)take_int(r, 2);
    out->cols = (uint16_t)take_int(r, 2);
    out->user = take_str(r, NULL);
    out->cwd = take_str(r, NULL);
    out->argv = take_strings(r, &argc, 0);
    out->env = take_strings(r, &out->envc, ENV_SPARE);
    bool service = out->flags & EXEC_SERVICE;
    if (argc == 0 || ((out->flags & EXEC_ALONE) && !(out->flags & EXEC_PROBE)) || (service && (out->flags & (EXEC_STDIN | EXEC_PTY | EXEC_PROBE))))
        r->bad = true;
}

static void parse_read(struct reader *r, struct request *out)
{
    out->flags = (uint32_t)take_int(r, 4);
    out->user = take_str(r, NULL);
    out->cwd = take_str(r, NULL);
    out->path = take_str(r, NULL);
    out->max_bytes = take_int(r, 8);
    /* One byte more tells that the file is larger. A compromised reading process can't make the agent send what the host did not ask for. */
    out->cap[0] = out->max_bytes == UINT64_MAX ? UINT64_MAX : out->max_bytes + 1;
}

static void parse_write(struct reader *r, struct request *out)
{
    out->flags = (uint32_t)take_int(r, 4);
    out->user = take_str(r, NULL);
    out->cwd = take_str(r, NULL);
    out->path = take_str(r, NULL);
    out->mode = (uint32_t)take_int(r, 4);
    out->owner = take_str(r, NULL);
}

static void parse_place(struct reader *r, struct request *out)
{
    out->flags = (uint32_t)take_int(r, 4);
    out->user = take_str(r, NULL);
    out->cwd = take_str(r, NULL);
    out->path = take_str(r, NULL);
}

static void parse_walk(struct reader *r, struct request *out)
{
    parse_place(r, out);
    out->depth = (uint32_t)take_int(r, 4);
    out->max_entries = take_int(r, 8);
    out->max_bytes = take_int(r, 8);
    out->cap[0] = take_int(r, 8);
    r->bad |= out->depth > MAX_PUT_DEPTH;
}

static void parse_put(struct reader *r, struct request *out)
{
    parse_place(r, out);
    out->mode = (uint32_t)take_int(r, 4);
    out->staging = take_str(r, NULL);
    out->owner = take_str(r, NULL);
    r->bad = r->bad || out->staging[0] == 0 || strchr(out->staging, '/') != NULL || ((out->flags & PUT_TIMES) && out->path[0] != '/');
}

bool request_parse(uint8_t kind, uint8_t *body, uint32_t n, struct request *out)
{
    struct reader r = {body, body + n, false};
    *out = (struct request){.cap = {UINT64_MAX, UINT64_MAX}};
    if (kind == KIND_EXEC)
        parse_exec(&r, out);
    else if (kind == KIND_READ)
        parse_read(&r, out);
    else if (kind == KIND_WRITE)
        parse_write(&r, out);
    else if (kind == KIND_WALK)
        parse_walk(&r, out);
    else if (kind == KIND_PUT)
        parse_put(&r, out);
    else if (kind == KIND_REMOVE)
        parse_place(&r, out), out->cap[0] = 8;
    else
        r.bad = true;
    return !r.bad && r.p == r.end;
}

void request_free(struct request *request)
{
    free(request->argv);
    free(request->env);
}
