/* Unusual programs, one for each first argument. For each line of input a program prints a checksum of its allocations.
 * It uses only read(2) and write(2) for that, so that all kinds give the same output. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int input = 0, output = 1;
static char *self;

static void fail(const char *what) {
    dprintf(2, "%s: %s\n", what, strerror(errno));
    _exit(70);
}

static void must(int holds, const char *what) {
    if (!holds)
        fail(what);
}

/* Checksum of the bytes written to the allocated blocks; it is the same each time. */
static long work(void) {
    char *kept[64];
    long sum = 0;
    for (size_t at = 0; at < COUNT(kept); at++) {
        size_t length = 16 + at * 97;
        must(!!(kept[at] = malloc(length)), "malloc");
        memset(kept[at], (int)at, length);
    }
    for (size_t at = 0; at < COUNT(kept); at++) {
        must(!!(kept[at] = realloc(kept[at], 8192 + at)), "realloc");
        sum += kept[at][0] + kept[at][15 + at * 97];
        free(kept[at]);
    }
    return sum;
}

static void *work_in_thread(void *sum) {
    *(long *)sum = work();
    return 0;
}

static void start_thread(void *(*body)(void *), void *argument, size_t stack, pthread_t *thread) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack)
        must(!pthread_attr_setstacksize(&attributes, stack), "pthread_attr_setstacksize");
    must(!pthread_create(thread, &attributes, body, argument), "pthread_create");
    pthread_attr_destroy(&attributes);
}

static void *wait_for_ever(void *unused) {
    for (;;)
        pause();
    return unused;
}

static void wait_for(pid_t child) {
    int status;
    must(waitpid(child, &status, 0) == child && !status, "a child");
}

/* Functions for each line of input. */

static long in_thread(size_t stack) {
    long sum = 0;
    pthread_t thread;
    start_thread(work_in_thread, &sum, stack, &thread);
    must(!pthread_join(thread, 0), "pthread_join");
    return sum;
}

static long in_small_thread(void) { return in_thread(16 << 10); }

static long in_large_thread(void) { return in_thread(64 << 20); }

static volatile long sum_of_handler;

static void work_in_handler(int signal) {
    (void)signal;
    sum_of_handler = work();
}

static long in_handler(void) {
    sum_of_handler = 0;
    raise(SIGUSR2);
    return sum_of_handler;
}

static ucontext_t caller, coroutine;
static char stack_of_coroutine[20 << 10];

static void body_of_coroutine(void) {
    for (;;) {
        sum_of_handler = work();
        swapcontext(&coroutine, &caller);
    }
}

static long in_coroutine(void) {
    sum_of_handler = 0;
    swapcontext(&caller, &coroutine);
    return sum_of_handler;
}

static long with_vfork(void) {
    for (volatile int at = 0; at < 4; at++) {
        pid_t child = vfork();
        if (!child)
            _exit(0);
        wait_for(child);
    }
    return work();
}

static long with_fork(void) {
    for (int at = 0; at < 2; at++) {
        pid_t child = fork();
        if (!child) {
            work();
            _exit(0);
        }
        wait_for(child);
    }
    return work();
}

static long with_spawn(void) {
    pid_t child = vfork();
    if (!child) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    wait_for(child);
    return work();
}

static long with_libraries(void) {
    const char *names[] = {"libm.so.6", "libresolv.so.2", "libutil.so.1", "libanl.so.1"};
    for (size_t at = 0; at < COUNT(names); at++) {
        void *library = dlopen(names[at], RTLD_NOW);
        must(!!library, names[at]);
        must(!dlclose(library), names[at]);
    }
    return work();
}

static sigjmp_buf probed;

static void leave_fault(int signal) {
    (void)signal;
    siglongjmp(probed, 1);
}

static long with_faults(void) {
    for (volatile int at = 0; at < 8; at++) {
        if (!sigsetjmp(probed, 1)) {
            *(volatile int *)8 = 1;
            fail("no fault");
        }
    }
    return work();
}

static int timer_descriptor, signal_descriptor;

static long with_timerfd(void) {
    struct itimerspec soon = {.it_value = {.tv_nsec = 1000}};
    uint64_t count;
    must(!timerfd_settime(timer_descriptor, 0, &soon, 0), "timerfd_settime");
    must(read(timer_descriptor, &count, sizeof count) == sizeof count && count == 1, "read of a timer");
    return work();
}

static long with_signalfd(void) {
    struct signalfd_siginfo info;
    must(!raise(SIGUSR1), "raise");
    must(read(signal_descriptor, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1, "signalfd");
    return work();
}

static long with_clone(void) {
    /* The child shares the memory, but is no thread of this process (no CLONE_THREAD). */
    static char stack[64 << 10];
    int set_nothing(void *unused);
    int child = clone(set_nothing, stack + sizeof stack, CLONE_VM | SIGCHLD, 0);
    must(child > 0, "clone");
    wait_for(child);
    return work();
}

int set_nothing(void *unused) { return unused != 0; }

/* Checks that malloc preserves the control words of the x87 and SSE units. */
static long with_vectors(void) {
    unsigned before = 0x5f80, after;
    uint16_t control = 0x0c7f, found;
    __asm__ volatile("ldmxcsr %0" : : "m"(before));
    __asm__ volatile("fldcw %0" : : "m"(control));
    long sum = work();
    __asm__ volatile("stmxcsr %0" : "=m"(after));
    __asm__ volatile("fnstcw %0" : "=m"(found));
    must((after & 0xffc0) == 0x5f80 && found == control, "a control word changed");
    __asm__ volatile("fninit");
    return sum;
}

/* Calls malloc with a stack that is misaligned by 8 bytes. */
static long with_skewed_stack(void) {
    void *(*function)(size_t) = malloc;
    void *given;
    __asm__ volatile("mov %%rsp, %%rbx\n\t"
                     "sub $256, %%rsp\n\t"
                     "and $-16, %%rsp\n\t"
                     "sub $8, %%rsp\n\t"
                     "call *%1\n\t"
                     "mov %%rbx, %%rsp"
                     : "=a"(given)
                     : "r"(function), "D"(100L)
                     : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    free(given);
    return work();
}

/* The program that execl(3) starts prints the answer. */
static long with_exec(void) {
    execl(self, self, "exec", "answer", NULL);
    fail("exec");
    return 0;
}

static long with_threads(void) {
    for (int at = 0; at < 8; at++)
        in_small_thread();
    return work();
}

/* Functions that are called once, at the start. */

static void stdio_closed(void) {
    must((input = fcntl(0, F_DUPFD, 100)) > 0 && (output = fcntl(1, F_DUPFD, 100)) > 0, "dup");
    for (int at = 0; at < 3; at++)
        close(at);
}

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    must(!sigaction(signal, &action, 0), "sigaction");
}

static void on_alternate_stack(void) {
    static char memory[16 << 10];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    must(!sigaltstack(&stack, 0), "sigaltstack");
    handle(SIGUSR2, work_in_handler, SA_ONSTACK);
}

static void make_coroutine(void) {
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack_of_coroutine;
    coroutine.uc_stack.ss_size = sizeof stack_of_coroutine;
    makecontext(&coroutine, body_of_coroutine, 0);
}

static void handle_faults(void) { handle(SIGSEGV, leave_fault, SA_NODEFER); }

static void ignore(int signal) { (void)signal; }

static void handle_all(void) {
    for (int signal = 1; signal < 65; signal++) {
        struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
        sigaction(signal, &action, 0);
    }
}

static void block_all(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
}

static void ignore_children(void) { signal(SIGCHLD, SIG_IGN); }

static void make_timerfd(void) { must((timer_descriptor = timerfd_create(CLOCK_MONOTONIC, 0)) > 0, "timerfd"); }

static void make_signalfd(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    must((signal_descriptor = signalfd(-1, &set, 0)) > 0, "signalfd");
}

static void make_timers(void) {
    struct itimerval often = {{0, 1000}, {0, 1000}};
    handle(SIGALRM, ignore, SA_RESTART);
    must(!setitimer(ITIMER_REAL, &often, 0), "setitimer");
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    struct itimerspec hourly = {{3600, 0}, {3600, 0}};
    must(!timer_create(CLOCK_MONOTONIC, &event, &timer), "timer_create");
    must(!timer_settime(timer, 0, &hourly, 0), "timer_settime");
}

static void lock_memory(void) { must(!mlockall(MCL_CURRENT | MCL_FUTURE), "mlockall"); }

static void drop_user(void) { must(!setgid(65534) && !setuid(65534), "setuid"); }

static void hide(void) { must(!prctl(PR_SET_DUMPABLE, 0), "PR_SET_DUMPABLE"); }

static void gain_nothing(void) { must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS"); }

static void limit(int what, rlim_t most) {
    struct rlimit limit = {most, most};
    must(!setrlimit(what, &limit), "setrlimit");
}

static void limit_files(void) { limit(RLIMIT_NOFILE, 4); }

static void limit_space(void) { limit(RLIMIT_AS, 24 << 20); }

static void limit_stack(void) { limit(RLIMIT_STACK, 64 << 10); }

static void limit_locked(void) { limit(RLIMIT_MEMLOCK, 0); }

static void limit_file_size(void) { limit(RLIMIT_FSIZE, 0); }

static void unshare_all(void) {
    must(!unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS), "unshare");
}

static void unshare_files(void) { must(!unshare(CLONE_FILES | CLONE_FS), "unshare"); }

static void change_root(void) { must(!chroot("/var/empty") || !chroot("/proc/self"), "chroot"); }

static void make_threads(void) {
    pthread_t thread;
    for (int at = 0; at < 200; at++)
        start_thread(wait_for_ever, 0, 16 << 10, &thread);
}

static void filter(const struct sock_filter *code, size_t length) {
    struct sock_fprog program = {.len = (unsigned short)length, .filter = (struct sock_filter *)code};
    must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
    must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "PR_SET_SECCOMP");
}

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define GIVE(call, result) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, result)

/* Allows only the system calls of this program; any other kills it. */
static void allow_little(void) {
    struct sock_filter code[] = {
        NUMBER,
        GIVE(read, SECCOMP_RET_ALLOW),
        GIVE(write, SECCOMP_RET_ALLOW),
        GIVE(brk, SECCOMP_RET_ALLOW),
        GIVE(mmap, SECCOMP_RET_ALLOW),
        GIVE(munmap, SECCOMP_RET_ALLOW),
        GIVE(mremap, SECCOMP_RET_ALLOW),
        GIVE(getrandom, SECCOMP_RET_ALLOW),
        GIVE(exit_group, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    filter(code, COUNT(code));
}

static void allow_no_threads(void) {
    struct sock_filter code[] = {
        NUMBER,
        GIVE(clone, SECCOMP_RET_ERRNO | EPERM),
        GIVE(clone3, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    filter(code, COUNT(code));
}

static void allow_no_sockets(void) {
    struct sock_filter code[] = {
        NUMBER,
        GIVE(socket, SECCOMP_RET_KILL_PROCESS),
        GIVE(memfd_create, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    filter(code, COUNT(code));
}

static void make_ring(void) {
    char parameters[256] = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 8, parameters);
    must(ring >= 0 || errno == ENOSYS || errno == EPERM, "io_uring_setup");
}

static void be_idle(void) {
    struct sched_param none = {0};
    must(!sched_setscheduler(0, SCHED_IDLE, &none), "SCHED_IDLE");
}

static void be_batch(void) {
    struct sched_param none = {0};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    must(!sched_setscheduler(0, SCHED_BATCH, &none) && !sched_setaffinity(0, sizeof one, &one), "SCHED_BATCH");
}

static void load_namespaces(void) { must(!!dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW), "dlmopen"); }


static void nothing(void) {}

static const struct {
    const char *name;
    void (*once)(void);
    long (*each)(void);
} kinds[] = {
    {"alternate-stack", on_alternate_stack, in_handler},
    {"batch", be_batch, work},
    {"blocked", block_all, work},
    {"chroot", change_root, work},
    {"clone", nothing, with_clone},
    {"coroutine", make_coroutine, in_coroutine},
    {"dlmopen", load_namespaces, work},
    {"dlopen", nothing, with_libraries},
    {"exec", nothing, with_exec},
    {"faults", handle_faults, with_faults},
    {"fork", nothing, with_fork},
    {"handlers", handle_all, work},
    {"hidden", hide, work},
    {"idle", be_idle, work},
    {"ignored-children", ignore_children, work},
    {"large-stacks", nothing, in_large_thread},
    {"limited-files", limit_files, work},
    {"limited-locked", limit_locked, work},
    {"limited-size", limit_file_size, work},
    {"limited-space", limit_space, work},
    {"limited-stack", limit_stack, work},
    {"little", allow_little, work},
    {"locked", lock_memory, work},
    {"no-new-privileges", gain_nothing, work},
    {"no-sockets", allow_no_sockets, work},
    {"no-stdio", stdio_closed, work},
    {"no-threads", allow_no_threads, work},
    {"plain", nothing, work},
    {"ring", make_ring, work},
    {"setuid", drop_user, work},
    {"signalfd", make_signalfd, with_signalfd},
    {"skewed", nothing, with_skewed_stack},
    {"small-stacks", nothing, in_small_thread},
    {"spawn", nothing, with_spawn},
    {"threads", make_threads, with_threads},
    {"timerfd", make_timerfd, with_timerfd},
    {"timers", make_timers, work},
    {"unshared", unshare_all, work},
    {"unshared-files", unshare_files, work},
    {"vectors", nothing, with_vectors},
    {"vfork", nothing, with_vfork},
};

static void answer(long sum) {
    char text[32];
    int length = snprintf(text, sizeof text, "%ld ok\n", sum);
    must(write(output, text, (size_t)length) == length, "write");
}

int main(int count, char **words) {
    self = words[0];
    for (size_t at = 0; at < COUNT(kinds); at++) {
        if (count < 2 || strcmp(words[1], kinds[at].name))
            continue;
        kinds[at].once();
        if (count > 2)
            answer(work());
        /* Reads one byte at a time, so that the rest of the input is left for the program after an exec. */
        for (char byte; read(input, &byte, 1) == 1;) {
            if (byte == '\n')
                answer(kinds[at].each());
        }
        return 7;
    }
    dprintf(2, "usage: odd KIND\n");
    return 2;
}
