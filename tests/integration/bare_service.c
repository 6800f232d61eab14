/* A program of an image without a shell: serves one answer, or asks for it. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(8080), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    char text[8] = {0};
    if (argc > 1 && strcmp(argv[1], "id") == 0)
        return printf("%u\n", (unsigned)getuid()) < 0;
    if (argc > 1 && strcmp(argv[1], "ask") == 0)
        return connect(s, (void *)&address, sizeof address) != 0 || read(s, text, 7) <= 0 || puts(text) < 0;
    snprintf(text, sizeof text, "pid %d", (int)getpid());
    if (bind(s, (void *)&address, sizeof address) != 0 || listen(s, 8) != 0)
        return 3;
    for (int peer; (peer = accept(s, NULL, NULL)) >= 0; close(peer))
        if (write(peer, text, strlen(text)) < 0)
            return 4;
    return 5;
}
