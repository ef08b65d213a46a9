/* A host that knows the size of its live blocks. In each run its threads allocate blocks of mixed sizes,
 * free half of the blocks of another thread, and grow arrays by realloc. It prints a line for each run: the
 * live bytes as a dump of memprof's sampler estimates them, the true live bytes, the standard deviation
 * expected by theory, and the number of lost samples. */
#define _GNU_SOURCE
#include "quiet_host.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>

enum { BLOCKS = 160000, ARRAYS = 400, MOST_THREADS = 8, INTERVAL = 16 << 10 };

static struct text reply;

static double number(const char *key) {
    char *found = strstr(reply.bytes, key);
    if (!found) {
        fprintf(stderr, "no %s in %s\n", key, reply.bytes);
        exit(1);
    }
    return strtod(found + strlen(key), NULL);
}

typedef struct {
    void *block;
    size_t size;
} block_t;

static int threads;
static block_t *blocks[MOST_THREADS], *arrays[MOST_THREADS];
static pthread_barrier_t all_are_here;

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    return *random ^= *random << 17;
}

static void *work(void *argument) {
    int own = (int)(intptr_t)argument, each = BLOCKS / threads;
    uint64_t random = 88172645463325252u + (uint64_t)own * 7919;
    for (int at = 0; at < each; at++) {
        /* Sizes from 16 bytes to 8 KiB, equally many between each two powers of two. */
        size_t size = (size_t)16 << next(&random) % 9;
        size += next(&random) % size;
        blocks[own][at] = (block_t){malloc(size), size};
    }
    pthread_barrier_wait(&all_are_here);
    block_t *neighbours = blocks[(own + 1) % threads];
    for (int at = 0; at < each; at += 2) {
        free(neighbours[at].block);
        neighbours[at] = (block_t){NULL, 0};
    }
    for (int at = 0; at < ARRAYS / threads; at++) {
        block_t *array = &arrays[own][at];
        size_t end = (size_t)64 << next(&random) % 11;
        for (array->size = 48; array->size < end; array->size += array->size / 2)
            array->block = realloc(array->block, array->size);
        array->block = realloc(array->block, array->size);
    }
    return NULL;
}

/* Adds the live bytes of `list`, and the variance of their estimate: a block of s bytes is sampled with
 * probability p = 1 - exp(-s / interval), and then counts as s / p bytes. */
static void add(const block_t *list, int count, double *bytes, double *variance) {
    for (int at = 0; at < count; at++) {
        if (!list[at].block) continue;
        double size = (double)list[at].size, chance = -expm1(-size / INTERVAL);
        *bytes += size;
        *variance += size * size * (1 - chance) / chance;
    }
}

static void run(void) {
    pthread_t thread[MOST_THREADS];
    must_send("reset", "", &reply);
    pthread_barrier_init(&all_are_here, NULL, (unsigned)threads);
    for (int at = 0; at < threads; at++)
        pthread_create(&thread[at], NULL, work, (void *)(intptr_t)at);
    for (int at = 0; at < threads; at++) pthread_join(thread[at], NULL);
    pthread_barrier_destroy(&all_are_here);
    double bytes = 0, variance = 0;
    for (int at = 0; at < threads; at++) {
        add(blocks[at], BLOCKS / threads, &bytes, &variance);
        add(arrays[at], ARRAYS / threads, &bytes, &variance);
    }
    must_send("dump", "", &reply);
    double estimate = number("\"estimated_inuse_bytes\":");
    must_send("status", "", &reply);
    printf("%.0f %.0f %.0f %.0f\n", estimate, bytes, sqrt(variance), number("\"lost\":"));
    for (int at = 0; at < threads; at++) {
        for (int block = 0; block < BLOCKS / threads; block++) free(blocks[at][block].block);
        for (int array = 0; array < ARRAYS / threads; array++) {
            free(arrays[at][array].block);
            arrays[at][array] = (block_t){NULL, 0};
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: accuracy CONFIG THREADS RUNS\n");
        return 2;
    }
    if (start_host("accuracy", argv[1]) != MEMPROF_OK) return 1;
    threads = atoi(argv[2]);
    if (threads < 1 || threads > MOST_THREADS) return 2;
    /* The tables are allocated before sampling starts, so that they are not sampled. */
    for (int at = 0; at < threads; at++) {
        blocks[at] = calloc((size_t)(BLOCKS / threads), sizeof(block_t));
        arrays[at] = calloc((size_t)(ARRAYS / threads), sizeof(block_t));
    }
    must_send("activate", "sampler=memprof sample_interval=16KiB", &reply);
    for (int left = atoi(argv[3]); left > 0; left--) run();
    must_send("deactivate", "", &reply);
    memprof_host_stop(host);
    return 0;
}
