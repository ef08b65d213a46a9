/* Threads that wait in each call that a tracer may take a thread out of, over and over. Prints "ready PID"; for
   each line that it reads, how many of these calls failed since, how many signals came, and how often each thread
   went round at least. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 9 };
static volatile long failed, signals, rounds[KINDS];

static void on_signal(int number) { signals += number != 0; }

static void *waits(void *kind) {
    struct timespec pause = {0, 2000000};
    int pair[2], epoll = epoll_create1(0);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct timeval timeout = {0, 2000};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    sigset_t none;
    sigemptyset(&none);
    sigaddset(&none, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &none, 0);
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    for (;;) {
        struct epoll_event event;
        struct pollfd descriptor = {pair[0], POLLIN, 0};
        struct timespec until;
        char byte;
        int result = 0;
        errno = 0;
        switch ((long)kind) {
        case 0: result = nanosleep(&pause, 0); break;
        case 1: result = poll(&descriptor, 1, 2); break;
        case 2: result = epoll_wait(epoll, &event, 1, 2); break;
        case 3: result = select(0, 0, 0, 0, &(struct timeval){0, 2000}); break;
        case 4: result = recv(pair[0], &byte, 1, 0); break;
        case 5: result = sigtimedwait(&none, 0, &pause); break;
        case 6:
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec = (until.tv_nsec + 2000000) % 1000000000;
            result = sem_timedwait(&semaphore, &until);
            break;
        case 7: result = usleep(2000); break;
        case 8: getpid(); break;
        }
        if (result < 0 && errno != EAGAIN && errno != ETIMEDOUT) failed++;
        rounds[(long)kind]++;
    }
    return kind;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_signal};
    for (int number = 1; number < 32; number++) sigaction(number, &action, 0);
    for (long kind = 0; kind < KINDS; kind++) {
        pthread_t thread;
        pthread_create(&thread, 0, waits, (void *)kind);
    }
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        long least = rounds[0];
        for (int kind = 1; kind < KINDS; kind++) if (rounds[kind] < least) least = rounds[kind];
        printf("failed %ld signals %ld rounds %ld\n", failed, signals, least);
        fflush(stdout);
    }
}
