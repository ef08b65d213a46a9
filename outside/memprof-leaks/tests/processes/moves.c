/* moves MIB: a program whose memory moves while it runs, as a garbage collector moves it. Prints "ready PID" and
   echoes what it reads. Two spaces of so many MiB, which a copy of the process lacks, hold objects of MOVED bytes: each
   has its pointer in one of them, and a thread moves one after the other to the other space. It also writes to objects
   of WRITTEN bytes whose pointers it holds mixed; to those of LEFT bytes it does not. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 1 << 10, MOVED = 312, WRITTEN = 504, LEFT = 712 };

static void *volatile *spaces[2];
static volatile uintptr_t written[COUNT], left[COUNT];
static volatile size_t apart;

static void *make(size_t size) { return memset(malloc(size), 0, size); }

/* Overwrites what calls before left below this frame. */
__attribute__((noinline)) static void wipe(void) {
    volatile char rest[64 << 10];
    for (size_t i = 0; i < sizeof rest; i++) rest[i] = 0;
}

__attribute__((noinline)) static void hold(size_t space) {
    for (int i = 0; i < 2; i++) {
        spaces[i] = mmap(0, space, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset((void *)spaces[i], 0, space);
        /* No pages of zeros that are none. */
        for (size_t at = 0; at < space / sizeof(void *); at += 512) spaces[i][at + 1] = (void *)1;
        madvise((void *)spaces[i], space, MADV_DONTFORK);
    }
    apart = space / sizeof(void *) / COUNT;
    for (int i = 0; i < COUNT; i++) {
        spaces[0][i * apart] = make(MOVED);
        written[i] = ~(uintptr_t)make(WRITTEN);
        left[i] = ~(uintptr_t)make(LEFT);
    }
}

/* The pointer lies at its new place before it leaves the old one. */
static void *moves(void *unused) {
    for (uint64_t random = 1;;) {
        random = random * 6364136223846793005 + 1442695040888963407;
        size_t at = (random >> 40) % COUNT;
        int from = !spaces[0][at * apart];
        spaces[!from][at * apart] = spaces[from][at * apart];
        spaces[from][at * apart] = 0;
        ++*(volatile uint64_t *)~written[at];
    }
    return unused;
}

int main(int count, char **words) {
    static char input[BUFSIZ], output[BUFSIZ];
    setvbuf(stdin, input, _IOFBF, sizeof input);
    setvbuf(stdout, output, _IOFBF, sizeof output);
    hold((size_t)(count > 1 ? atoi(words[1]) : 1) << 20);
    pthread_t thread;
    pthread_create(&thread, 0, moves, 0);
    wipe();
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        fputs(line, stdout);
        fflush(stdout);
    }
}
