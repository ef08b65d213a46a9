/* A busy program: it forks, loads libraries, creates short threads, has a timer whose handler waits, stacks of 4 KiB on
   the heap, and threads with values in every kind of register. It replies to each line with "pong BAD": how
   often a value had changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

static volatile long bad;

static void on_alarm(int signal) {
    (void)signal;
    poll(0, 0, 1);
}

static void block_alarm(void) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, 0);
}

static void *forks(void *none) {
    block_alarm();
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        int status = 0;
        if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) bad++;
        usleep(20000);
    }
    return none;
}

static void *loads(void *none) {
    block_alarm();
    for (;;) {
        void *library = dlopen("libBrokenLocale.so.1", RTLD_NOW);
        if (library) dlclose(library);
        usleep(5000);
    }
    return none;
}

static void *brief(void *none) {
    for (int i = 1; i < 100; i++) {
        char *block = malloc(i * 64);
        memset(block, i, i * 64);
        if (block[i * 63] != i) bad++;
        free(block);
    }
    return none;
}

static void *threads(void *none) {
    block_alarm();
    for (;;) {
        pthread_t thread[8];
        for (int i = 0; i < 8; i++) pthread_create(&thread[i], 0, brief, 0);
        for (int i = 0; i < 8; i++) pthread_join(thread[i], 0);
        usleep(2000);
    }
    return none;
}

/* GUARDED bytes of other data lie below each stack; an overflow would change them. */
enum { STACK = 4096, GUARDED = 8192 };
static ucontext_t caller, coroutine;

static void waits(void) {
    for (;;) {
        poll(0, 0, 3);
        swapcontext(&coroutine, &caller);
    }
}

static void *coroutines(void *none) {
    block_alarm();
    for (;;) {
        char *block = malloc(GUARDED + STACK);
        memset(block, 0x5a, GUARDED);
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = block + GUARDED;
        coroutine.uc_stack.ss_size = STACK;
        makecontext(&coroutine, waits, 0);
        for (int i = 0; i < 20; i++) swapcontext(&caller, &coroutine);
        for (int i = 0; i < GUARDED; i++) bad += block[i] != 0x5a;
        free(block);
    }
    return none;
}

/* Checks that a poll(2) of 3 ms preserves callee-saved and vector registers (with AVX also their upper halves), the red
   zone, MXCSR and the alternate signal stack. */
static void *registers(void *none) {
    block_alarm();
    static _Thread_local char memory[16384];
    stack_t alternative = {.ss_sp = memory, .ss_size = sizeof memory}, found;
    sigaltstack(&alternative, 0);
    unsigned mxcsr = _mm_getcsr() ^ 0x2000;
    _mm_setcsr(mxcsr);
    long has_avx = __builtin_cpu_supports("avx") != 0;
    for (;;) {
        long value = 7, upper = 7;
        __asm__ volatile(
            "movq %[value], %%xmm15\n test %[avx], %[avx]\n je 1f\n vinsertf128 $1, %%xmm15, %%ymm15, %%ymm15\n"
            "1: mov $0x7777, %%r13\n movq $0x55aa, -120(%%rsp)\n"
            "mov $7, %%eax\n xor %%edi, %%edi\n xor %%esi, %%esi\n mov $3, %%edx\n syscall\n"
            "movq %%xmm15, %[value]\n cmp $0x7777, %%r13\n je 2f\n movq $0, %[value]\n"
            "2: cmpq $0x55aa, -120(%%rsp)\n je 3f\n movq $1, %[value]\n"
            "3: test %[avx], %[avx]\n je 4f\n"
            "vextractf128 $1, %%ymm15, %%xmm15\n movq %%xmm15, %[upper]\n vzeroupper\n4:"
            : [value] "+r"(value), [upper] "+r"(upper)
            : [avx] "r"(has_avx)
            : "rax", "rcx", "r11", "rdi", "rsi", "rdx", "r13", "xmm15", "memory", "cc");
        sigaltstack(0, &found);
        if (value != 7 || upper != 7 || _mm_getcsr() != mxcsr || found.ss_sp != memory || found.ss_flags) bad++;
    }
    return none;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &often, 0);
    void *(*const works[])(void *) = {forks, loads, threads, coroutines, registers, registers};
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, works[i], 0);
    }
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        printf("pong %ld\n", bad);
        fflush(stdout);
    }
    return 0;
}
