/* What a process of the jail gives up before it goes on: descriptors and capabilities. */
#define _GNU_SOURCE
#include "jail.h"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Closes every descriptor but 0, 1, 2 and those listed (negative ones count as absent). */
void keep_only(const int *kept, int count) {
    int sorted[MAX_KEPT + 16], n = 0;
    for (int i = 0; i < count && n < (int)(sizeof sorted / sizeof *sorted); i++)
        if (kept[i] > 2) sorted[n++] = kept[i];
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    unsigned first = 3;
    for (int i = 0; i < n; i++) {
        if ((unsigned)sorted[i] > first) must((int)syscall(SYS_close_range, first, (unsigned)sorted[i] - 1, 0), "close_range");
        first = (unsigned)sorted[i] + 1;
    }
    must((int)syscall(SYS_close_range, first, ~0U, 0), "close_range");
}

/* For good: the locked bits keep a later change of uid or execve from giving one back. */
void hold_no_capability(void) {
    must(prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
                                      SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED, 0, 0, 0),
         "securebits");
    must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient");
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++) must(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), "bounding set");
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    must((int)syscall(SYS_capset, &header, none), "capset");
}
