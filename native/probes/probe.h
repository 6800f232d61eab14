/* Tries, from inside a cell, what a workload that wants out would try. One line an attempt; `design/evidence.md` has the rules.
 *
 * An attempt does no harm when it succeeds: it opens, reads, writes the value that is there, binds. It says what happened and judges nothing. */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { DETAIL_BYTES = 400, VALUE_BYTES = 512 };

/* In the order of their weight: an attempt that tries several ways keeps what weighs most. */
enum outcome { ABSENT, DENIED, FAILED, REACHED };

struct finding {
    enum outcome outcome;
    char detail[DETAIL_BYTES];
};

enum {
    QUICK = 1,      /* cheap enough for both ends of every sample */
    APART = 2,      /* in a process of its own, bounded in time: it could end, change or block the one it is in */
    SIGNAL_IS_NO = 4, /* being killed for it is a refusal */
};

typedef void attempt(struct finding *);
struct probe {
    const char *name;
    attempt *attempt;
    unsigned flags;
};

/* Each group's table ends with an empty name. */
extern const struct probe file_probes[], process_probes[], kernel_probes[], call_probes[], device_probes[], mount_probes[], namespace_probes[],
    network_probes[], address_probes[], resource_probes[], persistence_probes[], channel_probes[], door_probes[], fingerprint_probes[];

/* finding.c */
__attribute__((format(printf, 2, 3))) void reached(struct finding *f, const char *format, ...);
__attribute__((format(printf, 2, 3))) void denied(struct finding *f, const char *format, ...);
__attribute__((format(printf, 2, 3))) void absent(struct finding *f, const char *format, ...);
__attribute__((format(printf, 2, 3))) void failed(struct finding *f, const char *format, ...);
void refused(struct finding *f, const char *what);         /* as errno says: there is nothing there, it is denied, or it could not be tried */
void permitted(struct finding *f, const char *what, long result); /* a call with arguments that can't work: only its permission counts */
const char *errno_name(int error);
void print_finding(const char *name, const struct finding *f);

/* connect.c */
void connect_and_carry(const char *kind, const char *target);
int plant(const char *token, const char *port, int count, char **directories);
int search(void);

/* parameters.c */
bool parameters_read(void);
const char *parameter(const char *key);                    /* NULL when it wasn't given */
const char *needed(struct finding *f, const char *key);    /* the same, and then says that it could not be tried */
long long needed_number(struct finding *f, const char *key); /* -1 when it wasn't given */

/* look.c */
bool opens(struct finding *f, const char *path, int flags); /* and closes it again */
bool has_content(struct finding *f, const char *path);     /* some byte can be read */
ssize_t read_text(const char *path, char *text, size_t size); /* always ends with a NUL */
__attribute__((format(printf, 3, 4))) bool path_of(char *path, size_t size, const char *format, ...);
long number_of(const char *text);                          /* of a name that is only digits, or -1 */
void each_process(struct finding *f, void (*visit)(struct finding *, long pid));
bool same_directory(int a, int b);
bool is_empty(int directory);
bool same_kernel(struct finding *f);                       /* as the host's: the moment it was started, which was told */
int scratch_directory(char path[64]);
extern bool sending_ahead; /* attempts on addresses only send their datagrams, whose answers are looked at when they are called again */
extern bool in_a_hurry;    /* the quick set */
extern pid_t parent_pid; /* of the program, however deep an attempt forks; 0 when it is outside this pid namespace */
