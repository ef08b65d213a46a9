/* A host that allocates from four million different stacks, and knows the size of its live blocks. It prints the live
 * bytes as a dump of memprof's sampler estimates them, the true live bytes, the standard deviation expected by theory,
 * the number of samples, the number of lost samples, and the bytes by which RSS has grown since sampling started. */
#define _GNU_SOURCE
#include "quiet_host.h"

#include <math.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH = 22, LIVE = 100000, BURST = 2000, INTERVAL = 4 << 10 };

static struct {
    void *block;
    size_t size;
} live[LIVE];

static struct text reply;

static double number(const char *key) {
    char *found = strstr(reply.bytes, key);
    if (!found) {
        fprintf(stderr, "no %s in %s\n", key, reply.bytes);
        exit(1);
    }
    return strtod(found + strlen(key), NULL);
}

static void replace(uint64_t random) {
    size_t at = random % LIVE, size = 64 + (random >> 40) % 256;
    free(live[at].block);
    live[at].block = malloc(size);
    live[at].size = size;
}

static void left(uint64_t random, int depth);
static void right(uint64_t random, int depth);

/* The lowest bits choose the callers, so that each value gives a different stack. */
static void step(uint64_t random, int depth) {
    if (depth == DEPTH)
        replace(random);
    else if (random >> depth & 1)
        left(random, depth + 1);
    else
        right(random, depth + 1);
    __asm__ volatile(""); /* prevents tail calls, which would remove frames */
}

__attribute__((noinline)) static void left(uint64_t random, int depth) {
    step(random, depth);
    __asm__ volatile("");
}

__attribute__((noinline)) static void right(uint64_t random, int depth) {
    step(random, depth);
    __asm__ volatile("");
}

static double resident_bytes(void) {
    unsigned long all, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%lu %lu", &all, &resident) != 2) exit(1);
    fclose(statm);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

/* Replaces blocks in bursts with pauses, so that memprof's share of a core stays small. */
static void churn(int seconds) {
    uint64_t random = 88172645463325252u;
    for (time_t end = time(NULL) + seconds; time(NULL) < end; usleep(2000)) {
        for (int at = 0; at < BURST; at++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            step(random, 0);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: churn CONFIG SECONDS\n");
        return 2;
    }
    if (start_host("churn", argv[1]) != MEMPROF_OK) return 1;
    churn(1);
    must_send("activate", "sampler=memprof sample_interval=4KiB", &reply);
    /* The blocks allocated before sampling started are not sampled, so they must not be counted. */
    for (int at = 0; at < LIVE; at++) {
        free(live[at].block);
        live[at].block = NULL;
    }
    double before = resident_bytes();
    churn(atoi(argv[2]));
    double after = resident_bytes(), bytes = 0, variance = 0;
    for (int at = 0; at < LIVE; at++) {
        if (!live[at].block) continue;
        double size = (double)live[at].size, chance = -expm1(-size / INTERVAL);
        bytes += size;
        variance += size * size * (1 - chance) / chance;
    }
    must_send("dump", "", &reply);
    double estimate = number("\"estimated_inuse_bytes\":");
    must_send("status", "", &reply);
    printf("%.0f %.0f %.0f %.0f %.0f %.0f\n", estimate, bytes, sqrt(variance), number("\"samples\":"),
           number("\"lost\":"), after - before);
    must_send("deactivate", "", &reply);
    memprof_host_stop(host);
    return 0;
}
