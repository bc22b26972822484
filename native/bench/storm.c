/* storm.c: many processes register with the arbiter at the same moment.
 *
 *   aliquot-bench-storm PROCESSES UUID_HEX SOCKET...
 *
 * Each process is one of the hook's first minutes without the rest of it: connect, HELLO answered by WELCOME, ATTACH
 * answered by PAGE with its descriptor. They are forked first and wait at a pipe; the clock runs from its opening until
 * the last page has come. Prints `SECONDS REGISTERED`; exit status 1 when a process was not served.
 */
#define _GNU_SOURCE
#include "aliquot_abi.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 60

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A full backlog answers EAGAIN at once: the same jittered patience as the hook's. */
static int connect_patiently(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    double until = now_s() + PATIENCE_S;
    unsigned seed = (unsigned)getpid();
    while (now_s() < until) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        close(fd);
        usleep(1000 + (useconds_t)(rand_r(&seed) % 10000));
    }
    return -1;
}

static int ask(int fd, aliquot_message *message, uint16_t wanted)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {message, sizeof *message};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (send(fd, message, sizeof *message, MSG_NOSIGNAL) != sizeof *message)
        return 0;
    return recvmsg(fd, &header, MSG_CMSG_CLOEXEC) == sizeof *message && message->type == wanted;
}

static int register_process(const char *path, const uint8_t *uuid)
{
    int fd = connect_patiently(path);
    aliquot_message message = {.type = ALIQUOT_MSG_HELLO, .seq = 1, .a = ALIQUOT_ABI_VERSION, .c = (uint64_t)getpid()};
    if (fd < 0 || !ask(fd, &message, ALIQUOT_MSG_WELCOME))
        return 0;
    message = (aliquot_message){.type = ALIQUOT_MSG_ATTACH, .seq = 2};
    memcpy(message.uuid, uuid, sizeof message.uuid);
    return ask(fd, &message, ALIQUOT_MSG_PAGE);
}

int main(int argc, char **argv)
{
    int processes = argc > 3 ? atoi(argv[1]) : 0, gate[2], done[2], hold[2], served = 0;
    uint8_t uuid[16];
    if (processes < 1 || strlen(argv[2]) != 32 || pipe(gate) || pipe(done) || pipe(hold)) {
        fprintf(stderr, "usage: aliquot-bench-storm PROCESSES UUID_HEX SOCKET...\n");
        return 1;
    }
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        sscanf(argv[2] + 2 * i, "%2x", &byte);
        uuid[i] = (uint8_t)byte;
    }
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) {
            fprintf(stderr, "aliquot-bench-storm: process %d of %d: %s\n", i, processes, strerror(errno));
            return 1;
        }
        if (child == 0) {
            char byte;
            close(gate[1]);
            close(hold[1]);
            if (read(gate[0], &byte, 1) < 0)
                _exit(1);
            byte = (char)register_process(argv[3 + i % (argc - 3)], uuid);
            if (write(done[1], &byte, 1) != 1 || read(hold[0], &byte, 1) < 0)
                _exit(1);
            _exit(0); /* the connection is held until all have registered */
        }
    }
    double began = now_s();
    close(gate[1]);
    for (int i = 0; i < processes; i++) {
        char byte = 0;
        if (read(done[0], &byte, 1) == 1)
            served += byte;
    }
    printf("%.4f %d\n", now_s() - began, served);
    close(hold[1]);
    while (wait(NULL) > 0)
        ;
    return served == processes ? 0 : 1;
}
