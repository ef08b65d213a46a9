/* A program whose heap profile has as many different stacks as its argument says, at most 2^17. It prints "ready" and
 * waits for a signal. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DEPTH = 17, BLOCK = 4096 };

static void left(unsigned path, int depth);
static void right(unsigned path, int depth);

/* The path's lowest bit chooses the callee, so that each path is a different stack. */
static void step(unsigned path, int depth) {
    if (depth == 0) {
        char *volatile kept = malloc(BLOCK);
        if (kept) {
            kept[0] = 1;
        }
        return;
    }
    if (path & 1) {
        left(path >> 1, depth - 1);
    } else {
        right(path >> 1, depth - 1);
    }
    __asm__ volatile(""); /* prevents tail calls, which would remove frames */
}

__attribute__((noinline)) static void left(unsigned path, int depth) {
    step(path, depth);
    __asm__ volatile("");
}

__attribute__((noinline)) static void right(unsigned path, int depth) {
    step(path, depth);
    __asm__ volatile("");
}

int main(int count, char **words) {
    unsigned stacks = count == 2 ? (unsigned)atoi(words[1]) : 0;
    for (unsigned path = 0; path < stacks && path < 1u << DEPTH; path++) {
        step(path, DEPTH);
    }
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
