/* A thread that makes no system call: it sums vectors, with values in every kind of register and in the red zone. With
   "two", a second thread computes and writes a byte at times; with "allocates", the first also allocates and frees. On
   SIGTERM it prints "ROUNDS BAD": the number of rounds, and how often a value was wrong. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH = 4096 };
static volatile sig_atomic_t ended;
static float numbers[LENGTH];
static long rounds, bad;
static long counted;

static void on_term(int signal) {
    (void)signal;
    ended = 1;
}

/* Sums of eight columns. They are exact, because the numbers are small integers. */
__attribute__((noinline, target_clones("avx2", "default"))) static void sum(float sums[8]) {
    typedef float Columns __attribute__((vector_size(32), aligned(4)));
    Columns total = {0};
    for (int i = 0; i < LENGTH; i += 8) total += *(const Columns *)(numbers + i);
    memcpy(sums, &total, sizeof total);
}

/* A leaf function, whose variables lie in the red zone below the stack pointer. */
__attribute__((noinline)) static uint64_t mixed(uint64_t seed) {
    volatile uint64_t kept[12];
    for (int i = 0; i < 12; i++) kept[i] = seed * (i + 1);
    uint64_t mix = 0;
    for (int round = 0; round < 64; round++)
        for (int i = 0; i < 12; i++) mix = (mix << 7 | mix >> 57) ^ (kept[i] + round);
    return mix;
}

__attribute__((noinline)) static long allocated(int size) {
    char *blocks[16];
    for (int i = 0; i < 16; i++) {
        blocks[i] = malloc(size + i * 40);
        memset(blocks[i], i + 1, size + i * 40);
    }
    long wrong = 0;
    for (int i = 0; i < 16; i++) {
        for (int at = 0; at < size + i * 40; at++) wrong += blocks[i][at] != i + 1;
        free(blocks[i]);
    }
    return wrong;
}

static void *counts(void *none) {
    uint64_t expected = mixed(11);
    for (;;) {
        for (int i = 0; i < 100000; i++)
            if (mixed(11) != expected) __atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
        counted++;
        if (write(2, ".", 1) != 1) break;
    }
    return none;
}

int main(int argc, char **argv) {
    signal(SIGTERM, on_term);
    int allocates = argc > 1 && strcmp(argv[1], "allocates") == 0;
    for (int i = 0; i < LENGTH; i++) numbers[i] = i % 97;
    float first[8], sums[8];
    sum(first);
    uint64_t expected = mixed(7);
    if (argc > 1 && strcmp(argv[1], "two") == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, counts, 0);
    }
    puts("ready");
    fflush(stdout);
    while (!ended) {
        long wrong = 0;
        if (allocates) wrong += allocated(24 + rounds % 500);
        sum(sums);
        wrong += memcmp(sums, first, sizeof sums) != 0;
        wrong += mixed(7) != expected;
        if (wrong) __atomic_fetch_add(&bad, wrong, __ATOMIC_RELAXED);
        rounds++;
    }
    printf("%ld %ld\n", rounds, bad);
    return 0;
}
