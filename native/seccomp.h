/* What the programs' system-call filters share: architecture, the newest call known, and the
 * instructions of a filter that is written as a table. */
#ifndef SECCOMP_H
#define SECCOMP_H

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "this architecture has no filter yet"
#endif

/* Calls above this number are refused as unknown: they were not checked. */
enum { LAST_KNOWN_CALL = 462 /* mseal, Linux 6.10 */ };

#define NEW_NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | \
     CLONE_NEWCGROUP)

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_UPPER(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field) + 4)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))
#define ALLOW(number) IS(number, 0, 1), RETURN(SECCOMP_RET_ALLOW)
#define DENY(number) IS(number, 0, 1), RETURN(SECCOMP_RET_ERRNO | EPERM)
#define ABSENT(number) IS(number, 0, 1), RETURN(SECCOMP_RET_ERRNO | ENOSYS)

/* Opens each filter: another architecture's numbers mean other calls. */
#define CHECK_ARCH(otherwise) LOAD(arch), IS(ARCH, 1, 0), RETURN(otherwise), LOAD(nr)

#endif
