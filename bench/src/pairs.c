/* A host that measures what a malloc and its free cost, without a profiler and with one, in turns: a
 * line for each round and state, "STATE SIZES NANOSECONDS". */
#define _GNU_SOURCE
#include <memprof_host.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIRS = 1000000 };

static memprof_running_host_t *host;

static void log_line(void *ctx, memprof_log_level_t level, memprof_str_t target,
                     memprof_str_t message) {
    (void)ctx, (void)level, (void)target, (void)message;
}

static memprof_status_t ignore(void *ctx, memprof_str_t text) {
    (void)ctx, (void)text;
    return MEMPROF_OK;
}

static void send(const char *name, const char *args) {
    memprof_reply_t reply = {sizeof reply, 0, NULL, ignore, ignore};
    memprof_status_t status = memprof_host_message(
        host, MEMPROF_STR("memory_profile"), (memprof_str_t){name, strlen(name)},
        (memprof_str_t){args, strlen(args)}, &reply);
    if (status != MEMPROF_OK) {
        fprintf(stderr, "%s %s: %d\n", name, args, (int)status);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *volatile kept;

__attribute__((noinline)) static double pair(bool mixed) {
    uint64_t random = 88172645463325252u;
    double begun = now();
    for (int at = 0; at < PAIRS; at++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        kept = malloc(mixed ? 16 + (random & 1023) : 64);
        free(kept);
    }
    return (now() - begun) / PAIRS;
}

static void measure(const char *state) {
    printf("%s 64 %.3f\n", state, pair(false));
    printf("%s mixed %.3f\n", state, pair(true));
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: pairs CONFIG allocator|ours ROUNDS\n");
        return 2;
    }
    memprof_host_options_t options = {0};
    options.struct_size = sizeof options;
    options.name = "pairs";
    options.config_path = argv[1];
    options.log = log_line;
    if (memprof_host_start(&options, &host) != MEMPROF_OK) return 1;
    static const char *const intervals[] = {"512KiB", "64KiB", "16KiB"};
    for (int round = atoi(argv[3]); round > 0; round--) {
        measure("off");
        for (int at = 0; at < 3; at++) {
            char args[80];
            snprintf(args, sizeof args, "sampler=%s sample_interval=%s", argv[2], intervals[at]);
            send("activate", args);
            measure(intervals[at]);
        }
        /* The same sampling without and with what tells whose a sample is, and how old. */
        char fine[80];
        snprintf(fine, sizeof fine, "sampler=%s sample_interval=1KiB", argv[2]);
        uint16_t before = memprof_label_push("route", "/search");
        send("activate", fine);
        measure("plain");
        strcat(fine, " ages=1m labels=route");
        send("activate", fine);
        measure("marked");
        memprof_label_pop(before);
        /* Sampled for certain, and alive: free is watched until it is gone. */
        void *sampled = malloc(64 << 20);
        send("deactivate", "");
        measure("deactivated");
        free(sampled);
        send("reset", "");
        measure("after");
    }
    memprof_host_stop(host);
    return 0;
}
