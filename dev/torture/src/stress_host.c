/* The host that `cargo xtask torture` puts under load and injects faults into. It allocates on many
 * threads, keeps its counters in a mapped file that the suites read meanwhile, and prints "ready" to
 * stderr after it has processed its options. It continues after a failed malloc. */
#define _GNU_SOURCE
#include <memprof_host.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIVE_BLOCKS = 512, BLOCKS_PER_TICK = 20, DEPTH = 7, MAX_SENDERS = 64 };

/* For a large dump: the depth of its stacks, and a block size that is always sampled. */
enum { DEEP = 31, LARGE_BLOCK = 64 * 1024 };

/* In the order of `Counters` of host.rs. */
struct counters {
    _Atomic uint64_t allocations, forks, slowest_fork_us, messages, dumps, failures, alarms,
        reloads;
};

static struct counters *counters;

#ifdef TLS_KIB
/* The C library allocates this TLS block from the stack of each thread. */
static __thread volatile char local[TLS_KIB << 10];
static bool has_locals(void) { return local[0] == 0 && local[sizeof local - 1] == 0; }
#else
static bool has_locals(void) { return true; }
#endif
static memprof_running_host_t *host;
static atomic_bool stopping;
static pthread_t senders[MAX_SENDERS];

static void count(_Atomic uint64_t *counter) { atomic_fetch_add(counter, 1); }

/* The program's malloc, and the malloc of a jemalloc that is loaded beside it. */
struct allocator {
    void *(*malloc)(size_t);
    void (*free)(void *);
};

static struct allocator allocators[2] = {{malloc, free}, {malloc, free}};

static void find_second_allocator(void) {
    void *library = dlopen("libjemalloc.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return;
    *(void **)&allocators[1].malloc = dlsym(library, "malloc");
    *(void **)&allocators[1].free = dlsym(library, "free");
}

/* Two functions that call each other give 2^DEPTH different stacks. */
static void *even(const struct allocator *from, unsigned path, int depth);
static void *odd(const struct allocator *from, unsigned path, int depth);

static void *next(const struct allocator *from, unsigned path, int depth) {
    if (depth == 0) return from->malloc(path >> DEEP ? LARGE_BLOCK : 64 + path % 4096);
    return path >> depth & 1 ? odd(from, path, depth - 1) : even(from, path, depth - 1);
}

__attribute__((noinline)) static void *even(const struct allocator *from, unsigned path, int depth) {
    void *block = next(from, path, depth);
    __asm__ volatile("");
    return block;
}

__attribute__((noinline)) static void *odd(const struct allocator *from, unsigned path, int depth) {
    void *block = next(from, path, depth);
    __asm__ volatile("nop");
    return block;
}

/* Replaces BLOCKS_PER_TICK blocks each millisecond, without end. A thread that waits lowers the
 * rate; a busy machine hardly does. */
static void *allocate(void *number) {
    const struct allocator *allocator = &allocators[(uintptr_t)number % 2];
    void *blocks[LIVE_BLOCKS] = {0};
    const struct timespec tick = {0, 1000000};
    for (unsigned at = 0;; at++) {
        void **block = &blocks[at % LIVE_BLOCKS];
        /* Each block contains its own address; a block that two threads got at once does not. */
        if (*block && *(void **)*block != *block) count(&counters->failures);
        allocator->free(*block);
        *block = even(allocator, at * 2654435761u >> 8, DEPTH);
        if (*block) *(void **)*block = *block;
        count(&counters->allocations);
        if (at % BLOCKS_PER_TICK == 0) nanosleep(&tick, NULL);
    }
    return NULL;
}

/* Allocates 2^lg blocks from different stacks. They are never written, so that they use no
 * memory. */
static void keep_stacks(int lg) {
    for (unsigned path = 0; path < 1u << lg; path++) {
        if (even(&allocators[0], path | 1u << DEEP, DEEP)) count(&counters->allocations);
    }
}

/* Allocates once, so that the thread gets an arena, and sleeps. */
static void *idle(void *unused) {
    if (malloc(1)) count(&counters->allocations);
    for (;;) pause();
    return unused;
}

/* Loads a library that calls malloc, calls it, and unloads it, without end. */
static void *reload_often(void *path) {
    for (;;) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        int (*run)(int) = NULL;
        if (library) *(void **)&run = dlsym(library, "run");
        if (!run || run(100) != 0 || dlclose(library) != 0) count(&counters->failures);
        count(&counters->reloads);
    }
    return NULL;
}

static void *fork_often(void *unused) {
    const struct timespec pause = {0, 20000000};
    for (;;) {
        struct timespec begun, done;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        pid_t child = fork();
        if (child == 0) {
            /* The child would hang here if a lock stayed locked over the fork. */
            for (int at = 0; at < 100; at++) free(malloc(1000));
            _exit(0);
        }
        clock_gettime(CLOCK_MONOTONIC, &done);
        int status = 0;
        pid_t ended;
        /* Alarms interrupt it, too. */
        do ended = child < 0 ? child : waitpid(child, &status, 0);
        while (ended < 0 && child > 0 && errno == EINTR);
        if (child < 0 || ended != child || status != 0) {
            count(&counters->failures);
        }
        uint64_t us = (uint64_t)(done.tv_sec - begun.tv_sec) * 1000000 +
                      (uint64_t)(done.tv_nsec / 1000) - (uint64_t)(begun.tv_nsec / 1000);
        if (us > counters->slowest_fork_us) counters->slowest_fork_us = us;
        count(&counters->forks);
        nanosleep(&pause, NULL);
    }
    return unused;
}

static memprof_status_t ignore(void *ctx, memprof_str_t text) {
    (void)ctx, (void)text;
    return MEMPROF_OK;
}

/* Sends messages through the router, like another bus of the host. */
static void *send_messages(void *number) {
    static const char *const names[] = {"dump", "status", "dump",       "list",
                                        "dump", "stats",  "deactivate", "activate"};
    memprof_reply_t reply = {sizeof reply, 0, NULL, ignore, ignore};
    const struct timespec pause = {0, 20000000};
    for (size_t at = (uintptr_t)number; !stopping; at++) {
        const char *name = names[at % 8];
        memprof_status_t status =
            memprof_host_message(host, MEMPROF_STR("memory_profile"),
                                 (memprof_str_t){name, strlen(name)}, MEMPROF_STR(""), &reply);
        count(&counters->messages);
        if (status != MEMPROF_OK && status != MEMPROF_BUSY) count(&counters->failures);
        if (status == MEMPROF_OK && strcmp(name, "dump") == 0) count(&counters->dumps);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void on_alarm(int signal) {
    (void)signal;
    count(&counters->alarms);
}

/* Without SA_RESTART, so that interrupted calls fail with EINTR. */
static void storm_of_alarms(void) {
    struct sigaction action = {0};
    action.sa_handler = on_alarm;
    struct itimerval each_ms = {{0, 1000}, {0, 1000}};
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &each_ms, NULL)) abort();
}

static pthread_t start(void *(*run)(void *), uintptr_t number) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, (void *)number) != 0) abort();
    return thread;
}

static void enter(const char *root) {
    if (chroot(root) || chdir("/")) abort();
}

static void become(uid_t uid) {
    if (setgid(uid) || setuid(uid)) abort();
}

/* From now on this system call kills the process, on any thread (SECCOMP_FILTER_FLAG_TSYNC). */
static void forbid(int number) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) abort();
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)) abort();
}

static void map_counters(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof *counters)) abort();
    counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counters == MAP_FAILED) abort();
    close(file);
}

static void log_line(void *ctx, memprof_log_level_t level, memprof_str_t target,
                     memprof_str_t message) {
    (void)ctx;
    fprintf(stderr, "%u %.*s: %.*s\n", level, (int)target.len, target.ptr, (int)message.len,
            message.ptr);
}

/* Waits for SIGTERM on the calling thread, then stops the host and exits. */
static void *serve(void *until) {
    int signal = 0;
    fprintf(stderr, "ready\n");
    sigwait(until, &signal);
    stopping = true;
    for (int at = 0; at < MAX_SENDERS && senders[at]; at++) pthread_join(senders[at], NULL);
    memprof_host_stop(host);
    exit(0);
}

int main(int argc, char **argv) {
    if (argc < 3 || !has_locals()) {
        fprintf(stderr, "usage: stress_host CONFIG COUNTERS [OPTION=VALUE]...\n");
        return 2;
    }
    static sigset_t until;
    sigemptyset(&until);
    sigaddset(&until, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &until, NULL);
    map_counters(argv[2]);
    find_second_allocator();

    memprof_host_options_t options = {0};
    options.struct_size = sizeof options;
    options.name = "stress_host";
    options.config_path = argv[1];
    options.log = log_line;
    if (memprof_host_start(&options, &host) != MEMPROF_OK) return 1;

    bool end_main = false;
    for (int at = 3; at < argc; at++) {
        char *value = strchr(argv[at], '=');
        if (!value) return 2;
        *value++ = '\0';
        const char *option = argv[at];
        int threads = atoi(value);
        if (!strcmp(option, "allocate")) {
            for (int each = 0; each < threads; each++) start(allocate, (uintptr_t)each);
        } else if (!strcmp(option, "idle")) {
            for (int each = 0; each < threads; each++) start(idle, 0);
        } else if (!strcmp(option, "messages") && threads <= MAX_SENDERS) {
            for (int each = 0; each < threads; each++) {
                senders[each] = start(send_messages, (uintptr_t)each);
            }
        } else if (!strcmp(option, "fork")) start(fork_often, 0);
        else if (!strcmp(option, "reload")) start(reload_often, (uintptr_t)value);
        else if (!strcmp(option, "stacks")) keep_stacks(threads);
        else if (!strcmp(option, "forbid")) forbid(threads);
        else if (!strcmp(option, "chroot")) enter(value);
        else if (!strcmp(option, "uid")) become((uid_t)atoi(value));
        else if (!strcmp(option, "alarms")) storm_of_alarms();
        else if (!strcmp(option, "main")) end_main = !strcmp(value, "ends");
        else return 2;
    }
    if (!end_main) serve(&until);
    pthread_t server;
    if (pthread_create(&server, NULL, serve, &until) != 0) abort();
    pthread_exit(NULL);
}
