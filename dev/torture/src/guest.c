/* An unmodified program, which `cargo xtask torture` runs under `memprof run`. It prints "ready",
 * then executes the command in each line of its input and prints a line for it. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grp.h>
#include <signal.h>
#include <sys/time.h>
#include <linux/capability.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOBODY = 65534, PAIRS = 32, WORD = 4 };

#ifdef TLS_KIB
/* The C library allocates this TLS block from the stack of each thread. */
static __thread volatile char local[TLS_KIB << 10];
static bool has_locals(void) { return local[0] == 0 && local[sizeof local - 1] == 0; }
#else
static bool has_locals(void) { return true; }
#endif

static unsigned long pages(void) {
    unsigned long all = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%lu", &all) != 1) abort();
    fclose(statm);
    return all;
}

static void limit(rlim_t bytes) {
    const struct rlimit limit = {bytes, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit)) abort();
}

/* Limits the address space to its present size, and allocates until malloc fails; a line of input
 * lifts the limit. */
static void fill(void) {
    static void *blocks[1 << 20];
    size_t count = 0;
    limit(pages() * (rlim_t)sysconf(_SC_PAGESIZE));
    for (size_t size = 1 << 20; size >= 16; size /= 2) {
        while (count < sizeof blocks / sizeof *blocks && (blocks[count] = malloc(size))) count++;
    }
    printf("full\n");
    fflush(stdout);
    if (getchar() == EOF) exit(0);
    limit(RLIM_INFINITY);
    while (count) free(blocks[--count]);
}

/* Sets the capabilities of this thread only, as capset(2) does. */
static void set_capabilities(unsigned effective, unsigned permitted) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{effective, permitted, 0}, {0, 0, 0}};
    if (syscall(SYS_capset, &header, data)) abort();
}

static void become_nobody(void) {
    const unsigned both = 1u << CAP_SETUID | 1u << CAP_SETGID;
    set_capabilities(both, both);
    if (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY)) abort();
}

/* exit(3) is not async-signal-safe (signal-safety(7)), but many programs call it in a handler. */
static void on_alarm(int signal) {
    (void)signal;
    exit(0);
}

/* Exits in the handler of a signal that interrupts malloc or free. */
static void exit_in_malloc(void) {
    const struct itimerval soon = {{0, 0}, {0, 1000 + getpid() % 97 * 500}};
    if (signal(SIGALRM, on_alarm) == SIG_ERR || setitimer(ITIMER_REAL, &soon, NULL)) abort();
    for (;;) {
        char *volatile block = malloc(60000);
        if (block) block[0] = 1;
        free(block);
    }
}

static int pairs[PAIRS][2];

/* Closes all descriptors, like a daemon. The new sockets get the numbers of the closed ones. */
static void close_all(void) {
    closefrom(3);
    for (int at = 0; at < PAIRS; at++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[at])) abort();
        for (int end = 0; end < 2; end++) {
            if (write(pairs[at][end], "word", WORD) != WORD) abort();
        }
    }
}

/* Counts the sockets whose unread data is not exactly the bytes written by close_all. */
static void look(void) {
    int harmed = 0;
    for (int at = 0; at < PAIRS; at++) {
        for (int end = 0; end < 2; end++) {
            int unread = 0;
            if (ioctl(pairs[at][end], FIONREAD, &unread) || unread != WORD) harmed++;
        }
    }
    printf("%d harmed\n", harmed);
}

int main(void) {
    char line[64], answer[64];
    if (!has_locals()) return 1;
    setvbuf(stdout, answer, _IOLBF, sizeof answer);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        const unsigned both = 1u << CAP_SETUID | 1u << CAP_SETGID;
        line[strcspn(line, "\n")] = '\0';
        if (!strcmp(line, "fill")) fill();
        else if (!strcmp(line, "closefrom")) close_all();
        else if (!strcmp(line, "look")) look();
        else if (!strcmp(line, "exit")) exit_in_malloc();
        else if (!strcmp(line, "become")) become_nobody();
        else if (!strcmp(line, "drop")) set_capabilities(0, 0);
        else if (!strcmp(line, "lower")) set_capabilities(both, both);
        /* The capabilities stay permitted, so that the program can make them effective again. */
        else if (!strcmp(line, "effective")) set_capabilities(0, both);
        else if (!strcmp(line, "same") && setuid(getuid())) abort();
        puts("done");
    }
    return 0;
}
