/* A host that measures what a malloc and its free cost, without a profiler and with one, in turns: a
 * line for each round and state, "STATE BLOCKS NANOSECONDS". With ROUNDS alone nothing is loaded: for peers. */
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

enum { HELD = 1000 };

static void *held[HELD];

static uint64_t next(uint64_t random) {
    random ^= random << 13;
    random ^= random >> 7;
    return random ^ random << 17;
}

/* The cheapest pair that there is: freed at once. Of one size, or of 16 to 1039 bytes. */
__attribute__((noinline)) static double at_once(bool mixed) {
    uint64_t random = 88172645463325252u;
    double begun = now();
    for (int at = 0; at < PAIRS; at++) {
        random = next(random);
        void *volatile *place = (void *volatile *)held;
        *place = malloc(mixed ? 16 + (random & 1023) : 64);
        free(*place);
    }
    held[0] = NULL;
    return (now() - begun) / PAIRS;
}

/* As programs do: each block takes the place of one of a thousand, which is freed. 16 to 1039 bytes. */
__attribute__((noinline)) static double replacing(void) {
    uint64_t random = 88172645463325252u;
    double begun = now();
    for (int at = 0; at < PAIRS; at++) {
        random = next(random);
        void **place = &held[(random >> 32) % HELD];
        free(*place);
        *place = malloc(16 + (random & 1023));
        *(volatile char *)*place = 1;
    }
    return (now() - begun) / PAIRS;
}

static void measure(const char *state) {
    printf("%s 64 %.3f\n", state, at_once(false));
    printf("%s mixed %.3f\n", state, replacing());
    printf("%s freed-at-once %.3f\n", state, at_once(true));
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
        for (int at = 0; at < 3; at++) {
            char args[80];
            snprintf(args, sizeof args, "sampler=%s sample_interval=%s", argv[2], intervals[at]);
            must_send("activate", args, &reply);
            measure(intervals[at]);
        }
        /* The same sampling without and with what tells whose a sample is, and how old. */
        char fine[80];
        snprintf(fine, sizeof fine, "sampler=%s sample_interval=1KiB", argv[2]);
        uint16_t before = memprof_label_push("route", "/search");
        must_send("activate", fine, &reply);
        measure("plain");
        strcat(fine, " ages=1m labels=route");
        must_send("activate", fine, &reply);
        measure("marked");
        memprof_label_pop(before);
        /* Sampled for certain, and alive: free is watched until it is gone. */
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
