/* planted MODE: a program with objects that nothing points to any more, each kind of a size of its own, among
   objects that are held in every way there is. Prints "ready PID" and echoes what it reads.
   MODE: clean | leaks | churn (clean, and four threads that allocate and free all the time) | filtered (clean, and
   a filter of seccomp(2) ends it where it calls clone(2)). */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LIVE = 200000, EACH = 500, SINGLE = 120, LIST = 136, CYCLE = 152, TREE = 168, ARENA = 184, CROSS = 200 };
enum { LARGE = 1 << 20, TEN = 10 };

struct node { struct node *next, *other; };

/* Volatile: a compiler leaves out what nobody reads. */
static struct node *volatile live;
static void *volatile interior[100], *volatile tagged[100], *volatile large;
static void **volatile dontfork;
static __thread void *volatile in_tls;
static void *volatile handed[EACH];
static volatile int handed_over, ready;

static void *make(size_t size) { return memset(malloc(size), 0, size); }

/* Overwrites what calls before left below this frame. */
__attribute__((noinline)) static void wipe(void) {
    volatile char rest[64 << 10];
    for (size_t i = 0; i < sizeof rest; i++) rest[i] = 0;
}

__attribute__((noinline)) static void hold(void) {
    for (int i = 0; i < LIVE; i++) {
        struct node *each = make(24 + i % 4 * 16);
        each->next = live;
        live = each;
    }
    for (int i = 0; i < 100; i++) {
        interior[i] = (char *)make(300) + 100;
        tagged[i] = (void *)((uintptr_t)make(300) | 3);
    }
    large = make(3 * LARGE);
    *(void *volatile *)large = make(300);
    dontfork = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(dontfork, 4096, MADV_DONTFORK);
    for (int i = 0; i < 100; i++) dontfork[i] = make(300);
    int epoll = epoll_create1(0);
    for (int i = 0; i < 20; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = make(300)};
        epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(0, 0), &event);
    }
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_ptr = make(300)};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    /* Freed ones in the caches and lists of the allocator. */
    void *freed[2000];
    for (int i = 0; i < 2000; i++) freed[i] = make(24 + i % 40 * 16);
    for (int i = 0; i < 2000; i++) free(freed[i]);
    memset(freed, 0, sizeof freed);
}

static struct node *tree(int depth) {
    if (!depth) return 0;
    struct node *node = make(TREE);
    node->next = tree(depth - 1);
    node->other = tree(depth - 1);
    return node;
}

/* In groups of TEN: a stale pointer to one object, as libc's own data may have, holds all that it leads to. */
__attribute__((noinline)) static void leak(void) {
    struct node *list = 0, *first = 0, *last = 0;
    for (int i = 0; i < EACH; i++) {
        make(SINGLE);
        struct node *each = make(LIST);
        each->next = i % TEN ? list : 0;
        list = each;
        each = make(CYCLE);
        if (i % TEN == 0) first = last = each;
        each->next = first;
        last = last->next = each;
    }
    for (int i = 0; i < 34; i++) tree(4);
    make(LARGE);
}

static void *in_second_arena(void *leaks) {
    for (int i = 0; leaks && i < EACH; i++) make(ARENA);
    wipe();
    for (;;) pause();
    return leaks;
}

static void *gives(void *unused) {
    for (int i = 0; i < EACH; i++) handed[i] = make(CROSS);
    handed_over = 1;
    wipe();
    for (;;) pause();
    return unused;
}

static void *takes(void *unused) {
    while (!handed_over) usleep(1000);
    for (int i = 0; i < EACH; i++) handed[i] = 0;
    handed_over = 2;
    wipe();
    for (;;) pause();
    return unused;
}

/* Only a register has it: the loop uses no memory. */
static void *in_register(void *unused) {
    void *held = make(300);
    __asm__ volatile("mov %0, %%r12\n xor %0, %0\n movl $1, %1\n 1: pause\n pause\n jmp 1b"
                     : "+r"(held), "=m"(ready) : : "r12", "memory");
    return unused;
}

static void *in_stack(void *unused) {
    void *volatile held = make(300);
    in_tls = make(300);
    for (;;) pause();
    return held ? unused : 0;
}

static void *churns(void *unused) {
    unsigned random = (unsigned)(uintptr_t)&random;
    void *kept[256] = {0};
    for (;;) {
        random = random * 1664525 + 1013904223;
        int at = random >> 24;
        free(kept[at]);
        kept[at] = malloc(16 + (random >> 12) % 4000);
    }
    return unused;
}

static void start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    pthread_create(&thread, 0, run, argument);
}

static void filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

int main(int count, char **words) {
    int leaks = count > 1 && !strcmp(words[1], "leaks");
    hold();
    start(in_stack, 0);
    start(in_register, 0);
    start(in_second_arena, leaks ? words : 0);
    if (leaks) {
        leak();
        start(gives, 0);
        start(takes, 0);
        while (handed_over != 2) usleep(1000);
    }
    if (count > 1 && !strcmp(words[1], "churn")) for (int i = 0; i < 4; i++) start(churns, 0);
    if (count > 1 && !strcmp(words[1], "filtered")) filter();
    wipe();
    while (!ready) usleep(1000);
    usleep(20000);
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        fputs(line, stdout);
        fflush(stdout);
    }
}
