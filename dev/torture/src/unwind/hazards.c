/* Allocates many times on stacks that are hard to walk. The preloaded probe compares memprof's and
 * the allocator's walk of each sample; this program must only survive. Its argument names the case. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { COROUTINES = 64, STACK = 64 * 1024, GUARD = 4096, SMALL_STACK = 24 * 1024, THREADS = 8 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* The compiler must neither remove the calls nor turn a call of this function into a jump. */
__attribute__((noinline)) static int allocate(int times) {
    for (int at = 0; at < times; at++) {
        void *block = malloc(300);
        __asm__ volatile("" : : "r"(block) : "memory");
        free(block);
    }
    return times;
}

__attribute__((noinline)) static int deep(int depth, int times) {
    volatile char frame[32];
    frame[0] = 1;
    int result = depth > 0 ? deep(depth - 1, times) : allocate(times);
    return result + frame[0];
}

/* Functions of the probe. */
static int (*install)(unsigned);
static void (*forget)(void);

static ucontext_t here, coroutines[COROUTINES];
static int running;

static void coroutine(void) {
    for (;;) {
        deep(10, 3);
        swapcontext(&coroutines[running], &here);
    }
}

static void run_coroutines(bool on_the_heap) {
    char *stacks[COROUTINES];
    for (int at = 0; at < COROUTINES; at++) {
        if (on_the_heap) {
            stacks[at] = malloc(STACK);
        } else {
            stacks[at] = mmap(NULL, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (stacks[at] == MAP_FAILED || mprotect(stacks[at] + STACK, GUARD, PROT_NONE)) fail("mmap");
        }
        getcontext(&coroutines[at]);
        coroutines[at].uc_stack.ss_sp = stacks[at];
        coroutines[at].uc_stack.ss_size = STACK;
        makecontext(&coroutines[at], coroutine, 0);
    }
    for (int round = 0; round < 2000; round++)
        for (running = 0; running < COROUTINES; running++) swapcontext(&here, &coroutines[running]);
    for (int at = 0; at < COROUTINES; at++) on_the_heap ? free(stacks[at]) : (void)munmap(stacks[at], STACK + GUARD);
    deep(5, 1000);
}

static void coroutines_mapped(void) { run_coroutines(false); }
static void coroutines_heap(void) { run_coroutines(true); }

static void run_threads(int rounds, size_t stack, void *(*body)(void *)) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack && pthread_attr_setstacksize(&attributes, stack)) fail("stack size");
    for (int round = 0; round < rounds; round++) {
        pthread_t threads[THREADS];
        for (intptr_t at = 0; at < THREADS; at++)
            if (pthread_create(&threads[at], &attributes, body, (void *)(at + round))) fail("pthread_create");
        for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    }
}

static void *busy_thread(void *number) {
    deep((intptr_t)number % 30, 2000);
    return NULL;
}
static void threads(void) { run_threads(150, 0, busy_thread); }

static void *shallow_thread(void *number) {
    deep(5 + (intptr_t)number % 3, 2000);
    return NULL;
}
static void small_stacks(void) { run_threads(60, SMALL_STACK, shallow_thread); }

static void *brief_thread(void *number) {
    (void)number;
    return NULL;
}
/* Samples the allocations of the C library for a new thread before it runs. */
static void threads_created(void) { run_threads(2000, 0, brief_thread); }

static pthread_key_t key;
static void at_thread_exit(void *block) {
    deep(3, 50);
    free(block);
}
static void *exiting_thread(void *number) {
    (void)number;
    pthread_setspecific(key, malloc(10));
    deep(4, 50);
    return NULL;
}
static void thread_exit(void) {
    pthread_key_create(&key, at_thread_exit);
    run_threads(500, 0, exiting_thread);
}

static void forks(void) {
    for (int round = 0; round < 200; round++) {
        pid_t child = fork();
        if (child == 0) {
            deep(10, 200);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) fail("the child died");
        deep(3, 100);
    }
}

static void handler(int signal) {
    (void)signal;
    deep(2, 20);
}
static void run_signals(int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
    for (int at = 0; at < 5000; at++) raise(SIGUSR1);
}
static void signals(void) { run_signals(0); }
static void alternate_stack(void) {
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t alternate = {.ss_sp = stack, .ss_size = STACK};
    if (stack == MAP_FAILED || sigaltstack(&alternate, NULL)) fail("sigaltstack");
    run_signals(SA_ONSTACK);
}
/* A timer interrupts the program at any instruction: in prologues, epilogues and the PLT. The
 * interrupted code must not allocate, because the handler does. */
static volatile int sink;
__attribute__((noinline)) static void no_allocation(int depth) {
    char name[32];
    snprintf(name, sizeof name, "%d", depth);
    sink += atoi(name) + (int)strlen(name);
    if (depth > 0) no_allocation(depth - 1);
}
static void timer(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, NULL);
    for (int at = 0; at < 100000; at++) no_allocation(20);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
}

static void jit(void) {
    /* push rbp; mov rbp, rsp; mov rax, rdi; mov edi, esi; call rax; pop rbp; ret */
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0, 0x5d, 0xc3};
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) fail("mmap");
    memcpy(page, code, sizeof code);
    int (*call)(int (*)(int), int);
    memcpy(&call, &page, sizeof call);
    for (int at = 0; at < 3000; at++) call(allocate, 50);
}

/* A frame whose unwind information finds the caller by the frame pointer, while the frame pointer is
 * wild. jemalloc's walk would read at that address, so only memprof's walk is used, and for fewer
 * samples than lie between two comparisons. */
__attribute__((noinline)) static int with_frame_pointer(uintptr_t wild) {
    int times = 10;
    __asm__ volatile("lea -136(%%rsp), %%rsp\n\t"
                     ".cfi_remember_state\n\t"
                     "push %%rbp\n\t"
                     "mov %1, %%rbp\n\t"
                     ".cfi_def_cfa %%rbp, 16\n\t"
                     ".cfi_offset %%rbp, -16\n\t"
                     "call *%2\n\t"
                     "pop %%rbp\n\t"
                     ".cfi_restore_state\n\t"
                     "lea 136(%%rsp), %%rsp"
                     : "+D"(times)
                     : "b"(wild), "d"(allocate)
                     : "rax", "rcx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    return times;
}
static void wild_frame_pointers(void) {
    static const uintptr_t wild[] = {0,          1,           8,    4096, UINTPTR_MAX, UINTPTR_MAX - 7,
                                     -(uintptr_t)16, (uintptr_t)1 << 47, 0x7fffffffeff0};
    if (install(2)) fail("install");
    /* The probe compares the first sample, so it must come from a normal frame. */
    allocate(100);
    for (int round = 0; round < 20; round++)
        for (size_t at = 0; at < sizeof wild / sizeof *wild; at++) with_frame_pointer(wild[at]);
}

static int load_and_call(int round) {
    char path[4096];
    const char *directory = getenv("UNWIND_LIBRARIES");
    snprintf(path, sizeof path, "%s/library_%c.so", directory ? directory : ".", round % 2 ? 'a' : 'b');
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    int (*run)(int);
    *(void **)&run = dlsym(library, "run");
    int result = run(100);
    dlclose(library);
    return result;
}
/* Loads two libraries in turn at the same address, and clears the cached rules after each. */
static void reload(void) {
    for (int round = 0; round < 1500; round++) {
        load_and_call(round);
        forget();
    }
}
static void *reloading_thread(void *number) {
    for (int round = 0; round < 500; round++) load_and_call((intptr_t)number + round);
    return NULL;
}
/* Like reload, but on several threads and without clearing rules: stacks may be wrong, but the
 * program must survive. */
static void reload_unattended(void) {
    pthread_t threads[3];
    for (intptr_t at = 0; at < 3; at++) pthread_create(&threads[at], NULL, reloading_thread, (void *)at);
    for (int at = 0; at < 3; at++) pthread_join(threads[at], NULL);
}

static atomic_bool stopping;
static void *until_stopped(void *number) {
    while (!atomic_load(&stopping)) deep((intptr_t)number % 30, 50);
    return NULL;
}
/* Installs and uninstalls memprof's walk while eight threads sample. */
static void switching(void) {
    pthread_t threads[THREADS];
    for (intptr_t at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, until_stopped, (void *)at);
    for (int round = 0; round < 20000; round++)
        if (install(round % 2 ? 3 : 0)) fail("install");
    atomic_store(&stopping, true);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    if (install(3)) fail("install");
    deep(20, 20000);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"coroutines_mapped", coroutines_mapped},
    {"coroutines_heap", coroutines_heap},
    {"threads", threads},
    {"threads_created", threads_created},
    {"thread_exit", thread_exit},
    {"small_stacks", small_stacks},
    {"forks", forks},
    {"signals", signals},
    {"alternate_stack", alternate_stack},
    {"timer", timer},
    {"jit", jit},
    {"wild_frame_pointers", wild_frame_pointers},
    {"reload", reload},
    {"reload_unattended", reload_unattended},
    {"switching", switching},
};

int main(int argc, char **argv) {
    *(void **)&install = dlsym(RTLD_DEFAULT, "unwind_probe_install");
    *(void **)&forget = dlsym(RTLD_DEFAULT, "unwind_probe_forget");
    if (!install || !forget) {
        fprintf(stderr, "the probe is not preloaded\n");
        return 2;
    }
    for (size_t at = 0; argc == 2 && at < sizeof CASES / sizeof *CASES; at++) {
        if (strcmp(argv[1], CASES[at].name) == 0) {
            CASES[at].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: hazards CASE\n");
    return 2;
}
