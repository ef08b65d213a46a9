/* A host that knows what it holds: in each run its threads allocate blocks of mixed sizes, free half of
 * what their neighbours allocated, and let arrays grow by realloc. A line for each run: the bytes that a
 * dump of memprof's sampler tells, those that live, and the standard deviation that theory gives. */
#define _GNU_SOURCE
#include <memprof_host.h>

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 160000, ARRAYS = 400, MOST_THREADS = 8, INTERVAL = 16 << 10 };

static memprof_running_host_t *host;
static char reply[1 << 16];
static size_t replied;

static void log_line(void *ctx, memprof_log_level_t level, memprof_str_t target,
                     memprof_str_t message) {
    (void)ctx, (void)level, (void)target, (void)message;
}

static memprof_status_t begin(void *ctx, memprof_str_t type) {
    (void)ctx, (void)type;
    return MEMPROF_OK;
}

static memprof_status_t keep(void *ctx, memprof_str_t text) {
    (void)ctx;
    size_t room = sizeof reply - 1 - replied;
    size_t length = text.len < room ? text.len : room;
    memcpy(reply + replied, text.ptr, length);
    replied += length;
    reply[replied] = 0;
    return MEMPROF_OK;
}

static void send(const char *name, const char *args) {
    memprof_reply_t answer = {sizeof answer, 0, NULL, begin, keep};
    replied = 0;
    memprof_status_t status = memprof_host_message(
        host, MEMPROF_STR("memory_profile"), (memprof_str_t){name, strlen(name)},
        (memprof_str_t){args, strlen(args)}, &answer);
    if (status != MEMPROF_OK) {
        fprintf(stderr, "%s %s: %d %s\n", name, args, (int)status, reply);
        exit(1);
    }
}

static double number(const char *key) {
    char *found = strstr(reply, key);
    if (!found) {
        fprintf(stderr, "no %s in %s\n", key, reply);
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
        /* As many from each power of two to the next, from 16 bytes to 8 KiB. */
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

/* What lives of `list`, and the variance of its estimate: a block of s bytes is sampled with the chance
 * p = 1 - exp(-s / interval), and counts s / p then. */
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
    send("reset", "");
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
    send("dump", "");
    double estimate = number("\"estimated_inuse_bytes\":");
    send("status", "");
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
    memprof_host_options_t options = {0};
    options.struct_size = sizeof options;
    options.name = "accuracy";
    options.config_path = argv[1];
    options.log = log_line;
    if (memprof_host_start(&options, &host) != MEMPROF_OK) return 1;
    threads = atoi(argv[2]);
    if (threads < 1 || threads > MOST_THREADS) return 2;
    /* Before anything is sampled. */
    for (int at = 0; at < threads; at++) {
        blocks[at] = calloc((size_t)(BLOCKS / threads), sizeof(block_t));
        arrays[at] = calloc((size_t)(ARRAYS / threads), sizeof(block_t));
    }
    send("activate", "sampler=ours sample_interval=16KiB");
    for (int left = atoi(argv[3]); left > 0; left--) run();
    send("deactivate", "");
    memprof_host_stop(host);
    return 0;
}
