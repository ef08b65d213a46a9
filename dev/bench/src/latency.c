/* Calls a plugin in its own process, as a host in C: latency CONFIG PLUGIN MESSAGE COUNT. Prints the nanoseconds of each
 * call. */
#include <memprof_host.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static memprof_status_t drop(void *ctx, memprof_str_t chunk) {
    (void)ctx, (void)chunk;
    return MEMPROF_OK;
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    memprof_host_options_t options = {sizeof options, "latency", "0", argv[1], NULL, NULL, NULL};
    memprof_running_host_t *host;
    if (memprof_host_start(&options, &host) != MEMPROF_OK) return 1;
    const memprof_str_t plugin = {argv[2], strlen(argv[2])}, message = {argv[3], strlen(argv[3])};
    const memprof_reply_t reply = {sizeof reply, 0, NULL, NULL, drop};
    for (long left = atol(argv[4]); left > 0; left--) {
        long long start = now();
        if (memprof_host_message(host, plugin, message, MEMPROF_STR(""), &reply) != MEMPROF_OK) return 1;
        printf("%lld\n", now() - start);
    }
    memprof_host_stop(host);
    return 0;
}
