/* planted MODE: a program with objects that nothing points to any more, each kind of a size of its own, among
   objects that are held in every way there is. Prints "ready PID" and echoes what it reads.
   MODE: clean | leaks | churn (clean, and four threads that allocate and free all the time) | merges (clean, and a
   thread has a list of freed chunks of glibc's in a register, as malloc_consolidate does) | kills or refuses
   (clean, and a filter of seccomp(2) does that where it calls clone(2)). */
#define _GNU_SOURCE
#include <errno.h>
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

enum { LIVE = 200000, EACH = 500, SINGLE = 120, LIST = 152, CYCLE = 184, TREE = 216, ARENA = 248, CROSS = 280 };
enum { LARGE = 1 << 20, TEN = 10 };

struct node { struct node *next, *other; };

/* Volatile: a compiler leaves out what nobody reads. */
static struct node *volatile live;
static void *volatile interior[100], *volatile tagged[100], *volatile large;
static void **volatile dontfork;
static __thread void *volatile in_tls;
static void *volatile handed[EACH];
static volatile int handed_over, ready, vector_ready;

static void *make(size_t size) { return memset(malloc(size), 0, size); }

/* Overwrites what calls before left below this frame, and in registers that the next call need not use. */
__attribute__((noinline)) static void wipe(void) {
    volatile char rest[64 << 10];
    for (size_t i = 0; i < sizeof rest; i++) rest[i] = 0;
    __asm__ volatile("xor %%edx, %%edx\n xor %%esi, %%esi\n xor %%edi, %%edi\n xor %%r8d, %%r8d\n"
                     "xor %%r9d, %%r9d\n xor %%r10d, %%r10d\n xor %%r11d, %%r11d"
                     : : : "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11");
}

/* Sets the registers of vectors to 0: jemalloc copies arrays of pointers by them, and a thread that runs keeps them. */
static void wipe_vectors(void) {
    /* An area that says nothing of them does it; at 24 lies MXCSR. */
    static _Alignas(64) struct { char legacy[24]; unsigned mxcsr; char rest[4068]; } none = {.mxcsr = 0x1f80};
    __asm__ volatile("xrstor64 %0" : : "m"(none), "a"(0xe6), "d"(0) : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
                     "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
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

/* Leaves an arena in which nothing is allocated any more. */
static void *ends(void *unused) {
    free(make(3000));
    return unused;
}

/* Only a register has it: the loop uses no memory. */
static void *in_register(void *unused) {
    void *held = make(300);
    wipe_vectors();
    __asm__ volatile("mov %0, %%r12\n xor %0, %0\n movl $1, %1\n 1: pause\n pause\n jmp 1b"
                     : "+r"(held), "=m"(ready) : : "r12", "memory");
    return unused;
}

/* Only a register of vectors has it. */
static void *in_vector(void *unused) {
    void *held = make(300);
    wipe_vectors();
    __asm__ volatile("movq %0, %%xmm9\n xor %0, %0\n movl $1, %1\n 1: pause\n pause\n jmp 1b"
                     : "+r"(held), "=m"(vector_ready) : : "xmm9", "memory");
    return unused;
}

/* Takes a list of small free chunks from the first arena: where libc's variables have the last one that was freed. */
__attribute__((noinline)) static void *taken(void) {
    enum { FREED = 100 };
    void *freed[FREED], **start = 0, **end = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        if (strstr(line, "libc.so.6") && strstr(line, " rw-p ")) sscanf(line, "%p-%p", (void **)&start, (void **)&end);
    }
    fclose(maps);
    for (int i = 0; i < FREED; i++) freed[i] = make(24);
    void *last = (char *)freed[FREED - 1] - 16;
    for (int i = 0; i < FREED; i++) free(freed[i]);
    memset(freed, 0, sizeof freed);
    for (void **at = start; at < end; at++) if (*at == last) *at = 0;
    return last;
}

static void *merges(void *chunk) {
    __asm__ volatile("mov %0, %%r12\n xor %0, %0\n movl $1, %1\n 1: pause\n pause\n jmp 1b"
                     : "+r"(chunk), "=m"(ready) : : "r12", "memory");
    return chunk;
}

static void *in_stack(void *unused) {
    void *volatile held = make(300);
    in_tls = make(300);
    wipe();
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

static void filter(unsigned answer) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

int main(int count, char **words) {
    /* What libc allocates for them has words of what was freed, and ends where another object begins. */
    static char input[BUFSIZ], output[BUFSIZ];
    setvbuf(stdin, input, _IOFBF, sizeof input);
    setvbuf(stdout, output, _IOFBF, sizeof output);
    int leaks = count > 1 && !strcmp(words[1], "leaks");
    hold();
    start(in_stack, 0);
    start(in_register, 0);
    start(in_vector, 0);
    start(in_second_arena, leaks ? words : 0);
    if (leaks) {
        leak();
        start(gives, 0);
        start(takes, 0);
        while (handed_over != 2) usleep(1000);
    }
    if (count > 1 && !strcmp(words[1], "churn")) for (int i = 0; i < 4; i++) start(churns, 0);
    if (count > 1 && !strcmp(words[1], "merges")) {
        while (!ready) usleep(1000);
        ready = 0;
        start(merges, taken());
    }
    if (count > 1 && !strcmp(words[1], "kills")) filter(SECCOMP_RET_KILL_PROCESS);
    if (count > 1 && !strcmp(words[1], "refuses")) filter(SECCOMP_RET_ERRNO | EPERM);
    pthread_t ended;
    pthread_create(&ended, 0, ends, 0);
    pthread_join(ended, 0);
    wipe();
    while (!ready || !vector_ready) usleep(1000);
    usleep(20000);
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        fputs(line, stdout);
        fflush(stdout);
    }
}
