/* reaps MODE: a program that waits for children of any kind, also those whose end sends no signal, and has one that never
   ends. Prints "ready PID", and for each line that it reads how many other processes it has reaped.
   MODE: thread (another thread waits) | poll (the only thread asks, between reads). */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int strangers;

static void reap(int options) {
    int status;
    if (waitpid(-1, &status, __WALL | options) > 0) strangers++;
}

static void *waits(void *unused) {
    for (;;) reap(0);
    return unused;
}

int main(int count, char **words) {
    int polls = count > 1 && !strcmp(words[1], "poll");
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    pthread_t thread;
    if (!polls) pthread_create(&thread, 0, waits, 0);
    printf("ready %d\n", getpid());
    fflush(stdout);
    for (;;) {
        struct pollfd input = {0, POLLIN, 0};
        if (polls) reap(WNOHANG);
        if (poll(&input, 1, polls ? 1 : -1) <= 0) continue;
        char line[256];
        if (read(0, line, sizeof line) <= 0) return 0;
        printf("%d\n", strangers);
        fflush(stdout);
    }
}
