/* A program that knows nothing of memprof, which `cargo xtask torture` puts under `memprof run`.
 * It says "ready", then does what each line of its input asks for and answers with a line. */
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
/* The C library takes it from the stack of every thread. */
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

/* Lets the address space grow no more, and takes what the allocator still has. */
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

/* Of this thread alone, as capset(2) does it. */
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

/* As a program does that a signal ends: exit(3) is not allowed there, and common. */
static void on_alarm(int signal) {
    (void)signal;
    exit(0);
}

/* Ends in a handler of a signal that comes in the midst of malloc, or of free. */
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

/* As a daemon does. What it opens then gets the numbers that it closed. */
static void close_all(void) {
    closefrom(3);
    for (int at = 0; at < PAIRS; at++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[at])) abort();
        for (int end = 0; end < 2; end++) {
            if (write(pairs[at][end], "word", WORD) != WORD) abort();
        }
    }
}

/* Each end still has its word to be read, and nothing else. */
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
        /* Gone for now, but not for good: what comes next takes them back. */
        else if (!strcmp(line, "effective")) set_capabilities(0, both);
        else if (!strcmp(line, "same") && setuid(getuid())) abort();
        puts("done");
    }
    return 0;
}
