/* A port for a server that a test starts: one that the kernel gives to no client meanwhile, whose ports begin at 32768. */
#ifndef FRESHET_TESTS_FREE_PORT_H
#define FRESHET_TESTS_FREE_PORT_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

/* No port twice; 0 = none is free. */
static inline unsigned free_port(void)
{
    static unsigned last;

    for (int tries = 0; tries < 1000; tries++) {
        last = last ? last + 1 : 20000 + (unsigned)getpid() % 12000;
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                      .sin_port = htons((uint16_t)last)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool is_free = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
        close(fd);
        if (is_free)
            return last;
    }
    return 0;
}

#endif
