/* Times allocations at the end of a chain of twenty calls, without sampling and with each walker.
 * `micro ROUNDS ALLOCATIONS` prints for each round the cost of a sample in nanoseconds with jemalloc's walk, without a
 * walk and with memprof's. With 0 rounds it only allocates. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

__attribute__((noinline)) static void allocate(int times) {
    for (int at = 0; at < times; at++) {
        void *block = malloc(64 + (at & 1023));
        __asm__ volatile("" : : "r"(block) : "memory");
        free(block);
    }
}

/* Defines functions whose frames have different sizes and save registers, like those of real functions. */
#define CALL(number, callee)                                         \
    __attribute__((noinline)) static int call_##number(int times) {  \
        volatile char frame[16 + number * 8];                        \
        frame[0] = 1;                                                \
        callee(times);                                               \
        __asm__ volatile("" : : : "rbx", "r12");                     \
        return frame[0];                                             \
    }
CALL(1, allocate) CALL(2, call_1) CALL(3, call_2) CALL(4, call_3) CALL(5, call_4)
CALL(6, call_5) CALL(7, call_6) CALL(8, call_7) CALL(9, call_8) CALL(10, call_9)
CALL(11, call_10) CALL(12, call_11) CALL(13, call_12) CALL(14, call_13) CALL(15, call_14)
CALL(16, call_15) CALL(17, call_16) CALL(18, call_17) CALL(19, call_18)

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double time_allocations(int times) {
    double start = cpu_seconds();
    call_19(times);
    return cpu_seconds() - start;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int rounds = atoi(argv[1]), times = atoi(argv[2]);
    if (rounds == 0) return call_19(times) != 1;
    int (*mallctl)(const char *, void *, size_t *, void *, size_t);
    int (*install)(unsigned);
    uint64_t (*samples)(void);
    *(void **)&mallctl = dlsym(RTLD_DEFAULT, "mallctl");
    *(void **)&install = dlsym(RTLD_DEFAULT, "unwind_probe_install");
    *(void **)&samples = dlsym(RTLD_DEFAULT, "unwind_probe_samples");
    if (!mallctl || !install || !samples) return 2;
    bool on = true, off = false;
    for (int round = 0; round < rounds; round++) {
        mallctl("prof.active", NULL, NULL, &off, sizeof off);
        double idle = time_allocations(times);
        double cost[3];
        for (unsigned walker = 0; walker < 3; walker++) {
            if (install(walker)) return 1;
            mallctl("prof.active", NULL, NULL, &on, sizeof on);
            uint64_t before = samples();
            double busy = time_allocations(times);
            uint64_t taken = samples() - before;
            mallctl("prof.active", NULL, NULL, &off, sizeof off);
            if (taken == 0) return 1;
            cost[walker] = (busy - idle) * 1e9 / (double)taken;
        }
        printf("%.1f %.1f %.1f\n", cost[0], cost[1], cost[2]);
    }
}
