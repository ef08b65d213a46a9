/* A host that measures a pair of malloc and free without and with sampling, in alternating rounds. It prints a line for
 * each round and state, "STATE BLOCKS NANOSECONDS". With ROUNDS as the only argument it loads no plugin. */
#define _GNU_SOURCE
#include "../../torture/src/quiet_host.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { PAIRS = 1000000 };

static struct text reply;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

enum { MAX_BLOCKS = 1000 };

static void *blocks[MAX_BLOCKS];

static uint64_t next(uint64_t random) {
    random ^= random << 13;
    random ^= random >> 7;
    return random ^ random << 17;
}

/* Frees each block at once, which is the cheapest pair. Blocks have 64 bytes, or 16 to 1039. */
__attribute__((noinline)) static double time_freed_at_once(bool mixed) {
    uint64_t random = 88172645463325252u;
    double start = now();
    for (int index = 0; index < PAIRS; index++) {
        random = next(random);
        void *volatile *slot = (void *volatile *)blocks;
        *slot = malloc(mixed ? 16 + (random & 1023) : 64);
        free(*slot);
    }
    blocks[0] = NULL;
    return (now() - start) / PAIRS;
}

/* Replaces one of a thousand blocks, which is freed, like real programs do. Blocks have 16 to 1039 bytes. */
__attribute__((noinline)) static double time_replacing(void) {
    uint64_t random = 88172645463325252u;
    double start = now();
    for (int index = 0; index < PAIRS; index++) {
        random = next(random);
        void **slot = &blocks[(random >> 32) % MAX_BLOCKS];
        free(*slot);
        *slot = malloc(16 + (random & 1023));
        *(volatile char *)*slot = 1;
    }
    return (now() - start) / PAIRS;
}

static void measure(const char *state) {
    printf("%s 64 %.3f\n", state, time_freed_at_once(false));
    printf("%s mixed %.3f\n", state, time_replacing());
    printf("%s freed-at-once %.3f\n", state, time_freed_at_once(true));
}

int main(int argc, char **argv) {
    if (argc == 2) {
        for (int round = atoi(argv[1]); round > 0; round--) measure("off");
        return 0;
    }
    if (argc != 4) {
        fprintf(stderr, "usage: pairs [CONFIG allocator|ours] ROUNDS\n");
        return 2;
    }
    if (start_host("pairs", argv[1]) != MEMPROF_OK) return 1;
    static const char *const intervals[] = {"512KiB", "64KiB", "16KiB"};
    for (int round = atoi(argv[3]); round > 0; round--) {
        measure("off");
        for (int index = 0; index < 3; index++) {
            char args[80];
            snprintf(args, sizeof args, "sampler=%s sample_interval=%s", argv[2], intervals[index]);
            must_send("activate", args, &reply);
            measure(intervals[index]);
        }
        /* State "plain" samples without ages and labels, "marked" with them. */
        char fine[80];
        snprintf(fine, sizeof fine, "sampler=%s sample_interval=1KiB", argv[2]);
        uint16_t before = memprof_label_push("route", "/search");
        must_send("activate", fine, &reply);
        measure("plain");
        strcat(fine, " ages=1m labels=route");
        must_send("activate", fine, &reply);
        measure("marked");
        memprof_label_pop(before);
        /* A block of this size is always sampled. While it lives, free stays intercepted. */
        void *sampled = malloc(64 << 20);
        must_send("deactivate", "", &reply);
        measure("deactivated");
        free(sampled);
        must_send("reset", "", &reply);
        measure("after");
    }
    memprof_host_stop(host);
    return 0;
}
