/* A program that forks on several threads while the plugin replies to its first message. Each child sends a
 * message, or forks while one of its threads sends one. The program prints for each child how it ended. A
 * child that waits for a lock that was held by a thread of its parent is killed by its alarm. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKERS = 3, CHILDREN = 8, GRANDCHILDREN = 4, KINDS = 4, PATIENCE = 10 };

static char *(*send)(const char *message);
static void (*give_back)(char *text);
static atomic_int ready;
static atomic_bool begins;
static atomic_bool asks;
static int ends[FORKERS][CHILDREN];

static void ask(const char *message) {
    char *text = send(message);
    if (!text || !strncmp(text, "error", 5)) {
        fprintf(stderr, "%s: %s\n", message, text ? text : "no answer");
        _exit(2);
    }
    give_back(text);
}

static void *ask_status(void *unused) {
    atomic_store(&asks, true);
    ask("status");
    return unused;
}

/* Forks while another thread sends the first message of this process. */
static void fork_while_asking(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, ask_status, NULL)) _exit(3);
    while (!atomic_load(&asks)) sched_yield();
    pid_t pids[GRANDCHILDREN];
    for (int at = 0; at < GRANDCHILDREN; at++) {
        pids[at] = fork();
        if (pids[at] == 0) {
            alarm(PATIENCE);
            ask("status");
            _exit(0);
        }
    }
    int status = -1;
    for (int at = 0; at < GRANDCHILDREN; at++) {
        if (pids[at] < 0 || waitpid(pids[at], &status, 0) != pids[at] || status) _exit(4);
    }
    pthread_join(thread, NULL);
}

static void child(int kind) {
    /* A child that forks waits longer than its own children. */
    alarm(kind == 0 ? 2 * PATIENCE : PATIENCE);
    switch (kind) {
    case 0:
        fork_while_asking();
        _exit(0);
    case 1:
        ask("activate sample_interval=64KiB");
        ask("dump");
        ask("deactivate");
        _exit(0);
    case 2:
        ask("list");
        exit(0);
    default:
        ask("status");
        _exit(0);
    }
}

static void *keep_forking(void *own) {
    int *statuses = own;
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&begins)) sched_yield();
    for (int at = 0; at < CHILDREN; at++) {
        pid_t pid = fork();
        if (pid == 0) child(at % KINDS);
        if (pid < 0 || waitpid(pid, &statuses[at], 0) != pid) statuses[at] = -1;
    }
    return NULL;
}

/* Installs a seccomp filter that allows everything; the plugin probes filters before its first reply. */
static int filter_calls(void) {
    struct sock_filter pass = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &pass};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: beginner PLUGIN free|filtered\n");
        return 2;
    }
    if (!strcmp(argv[2], "filtered") && filter_calls()) return 1;
    pthread_t threads[FORKERS];
    for (int at = 0; at < FORKERS; at++) {
        if (pthread_create(&threads[at], NULL, keep_forking, ends[at])) return 1;
    }
    while (atomic_load(&ready) < FORKERS) sched_yield();
    /* No thread forks during dlopen, because the C library's loader does not support that. */
    void *plugin = dlopen(argv[1], RTLD_NOW);
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&send = dlsym(plugin, "memory_profile_send");
    *(void **)&give_back = dlsym(plugin, "memory_profile_free");
    atomic_store(&begins, true);
    ask("status");
    ask("activate for=1h sample_interval=64KiB");
    for (int at = 0; at < FORKERS; at++) pthread_join(threads[at], NULL);
    for (int at = 0; at < FORKERS * CHILDREN; at++) {
        int status = ends[at / CHILDREN][at % CHILDREN];
        printf("%s %d: kind %d\n", WIFEXITED(status) ? "exit" : "signal",
               WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), at % KINDS);
    }
    fflush(stdout);
    _exit(0);
}
