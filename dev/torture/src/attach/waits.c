/* Counts the visible effects of an interruption in 17 kinds of waiting calls: EINTR, and returns before the timeout. On
   SIGTERM it prints for each kind: name, calls, EINTR, early returns, other errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum kind {
    EPOLL, EPOLL_EVER, EPOLL_PWAIT, POLL, POLL_EVER, PPOLL, SELECT, PSELECT, ACCEPT, READ, RECV,
    NANOSLEEP, CLOCK_NANOSLEEP, COND, SEM, SIGTIMEDWAIT, WAIT, KINDS
};
static const char *const names[KINDS] = {
    "epoll_wait", "epoll_wait_ever", "epoll_pwait", "poll", "poll_ever", "ppoll", "select", "pselect",
    "accept", "read", "recv_timeout", "nanosleep", "clock_nanosleep", "cond_timedwait", "sem_wait",
    "sigtimedwait", "wait4"};
static volatile long calls[KINDS], eintr[KINDS], early[KINDS], other[KINDS];
static const long ms = 50;
static const double for_ever = 1e9;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static struct timespec later(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ms * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

static void *waits(void *argument) {
    const enum kind kind = (enum kind)(long)argument;
    int pipes[2], pair[2], epoll = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);
    struct epoll_event event = {.events = EPOLLIN};
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct timeval timeout = {0, ms * 1000};
    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || listener < 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event) || bind(listener, (void *)&any, sizeof any) ||
        listen(listener, 1) || setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout))
        abort();
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    /* Signal mask during epoll_pwait, ppoll and pselect. SIGTERM stays blocked, because main waits for it. */
    sigset_t meanwhile, usr2;
    sigemptyset(&meanwhile);
    sigaddset(&meanwhile, SIGTERM);
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    pid_t child = 0;
    if (kind == WAIT) {
        child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
    }
    for (;;) {
        struct timespec time = {0, ms * 1000000}, at;
        struct timeval short_time = {0, ms * 1000};
        struct pollfd fd = {.fd = pipes[0], .events = POLLIN};
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pipes[0], &set);
        char byte;
        int result = 0;
        double begun = now(), least = ms;
        errno = 0;
        switch (kind) {
        case EPOLL: result = epoll_wait(epoll, &event, 1, ms); break;
        case EPOLL_EVER: result = epoll_wait(epoll, &event, 1, -1); least = for_ever; break;
        case EPOLL_PWAIT: result = epoll_pwait(epoll, &event, 1, ms, &meanwhile); break;
        case POLL: result = poll(&fd, 1, ms); break;
        case POLL_EVER: result = poll(&fd, 1, -1); least = for_ever; break;
        case PPOLL: result = ppoll(&fd, 1, &time, &meanwhile); break;
        case SELECT: result = select(pipes[0] + 1, &set, 0, 0, &short_time); break;
        case PSELECT: result = pselect(pipes[0] + 1, &set, 0, 0, &time, &meanwhile); break;
        case ACCEPT: result = accept(listener, 0, 0); least = for_ever; break;
        case READ: result = (int)read(pipes[0], &byte, 1); least = for_ever; break;
        case RECV: result = (int)recv(pair[0], &byte, 1, 0); break;
        case NANOSLEEP: result = nanosleep(&time, 0); break;
        case CLOCK_NANOSLEEP:
            at = later(CLOCK_MONOTONIC);
            errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, 0);
            break;
        case COND:
            at = later(CLOCK_REALTIME);
            pthread_mutex_lock(&mutex);
            errno = pthread_cond_timedwait(&condition, &mutex, &at);
            pthread_mutex_unlock(&mutex);
            break;
        case SEM: result = sem_wait(&semaphore); least = for_ever; break;
        case SIGTIMEDWAIT: result = sigtimedwait(&usr2, 0, &time); break;
        case WAIT: result = waitpid(child, 0, 0); least = for_ever; break;
        case KINDS: abort();
        }
        int error = errno;
        calls[kind]++;
        if (error == EINTR) eintr[kind]++;
        /* The clocks of timeouts are coarser than the clock of this measurement, so 2 ms are tolerated. */
        else if (now() - begun < least - 2) early[kind]++;
        else if (result < 0 && error != EAGAIN && error != ETIMEDOUT) other[kind]++;
    }
    return 0;
}

int main(void) {
    sigset_t blocked, term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    blocked = term;
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_BLOCK, &blocked, 0);
    for (long kind = 0; kind < KINDS; kind++) {
        pthread_t thread;
        pthread_create(&thread, 0, waits, (void *)kind);
    }
    puts("ready");
    fflush(stdout);
    int signal;
    sigwait(&term, &signal);
    for (int kind = 0; kind < KINDS; kind++)
        printf("%s %ld %ld %ld %ld\n", names[kind], calls[kind], eintr[kind], early[kind], other[kind]);
    fflush(stdout);
    _exit(0);
}
