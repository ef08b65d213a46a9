/* A process whose heaps say what they like: for each line that it reads, it writes random words over the headers
   of its chunks, over the heads of its second arena and over the lists of its caches, and answers "done". Nothing
   is allocated any more by then. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t *heaps[2];
static size_t words[2];
static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void fill(void) {
    void *freed[400];
    for (int i = 0; i < 400; i++) freed[i] = malloc(24 + i % 60 * 16);
    for (int i = 0; i < 400; i += 2) free(freed[i]);
    for (int i = 0; i < 500; i++) memset(malloc(40), 1, 40);
}

static void *second(void *unused) {
    fill();
    uint64_t *inside = malloc(40);
    heaps[1] = (uint64_t *)((uintptr_t)inside & ~((64ul << 20) - 1));
    words[1] = 132 * 1024 / 8;
    for (;;) pause();
    return unused;
}

/* What a size, a pointer or a mark might be. */
static uint64_t word(int heap) {
    uint64_t any = next();
    switch (any % 8) {
    case 0: return any >> 8;
    case 1: return 0;
    case 2: return any >> 40 & 0xffff1;
    case 3: return UINT64_MAX - (any >> 60);
    case 4: return UINT64_C(0x7fffffffffff) & any;
    case 5: return (uint64_t)(heaps[heap] + any % words[heap]) & ~15ul;
    case 6: return 33;
    default: return (uint64_t)heaps[heap];
    }
}

int main(void) {
    pthread_t thread;
    heaps[0] = (uint64_t *)((uintptr_t)malloc(40) & ~4095ul);
    fill();
    words[0] = 64 * 1024 / 8;
    pthread_create(&thread, 0, second, 0);
    while (!words[1]) usleep(1000);
    char text[64];
    int length = snprintf(text, sizeof text, "ready %d\n", getpid());
    if (write(1, text, length) != length) return 1;
    while (read(0, text, sizeof text) > 0) {
        for (int heap = 0; heap < 2; heap++) {
            size_t changes = next() % 64;
            for (size_t i = 0; i < changes; i++) {
                /* Often the first page, where arena and cache lie. */
                size_t at = next() % (next() % 2 ? 512 : words[heap]);
                heaps[heap][at] = word(heap);
            }
        }
        if (write(1, "done\n", 5) != 5) return 1;
    }
}
