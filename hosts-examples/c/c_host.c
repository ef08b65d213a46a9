/* The example host in C. It leaks steadily in grow_cache, and allocates and frees in
 * handle_request, until SIGTERM.
 *
 *   cc -I /usr/share/memprof/sdk/include c_host.c /usr/lib/memprof/libmemprof_host.a -lpthread -ldl -lm -o c_host
 *   LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true,prof_active:false c_host --config host.toml &
 *   memprof activate && sleep 5 && memprof dump
 *
 * c_host_static is this source, linked with libjemalloc.a: it needs only MALLOC_CONF. */
#include <memprof_host.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 20 entries of 1 KiB every 10 ms are 2 MB/s. */
enum { ENTRIES_PER_TICK = 20, ENTRY_SIZE = 1024, REQUESTS_PER_TICK = 200, TICK_US = 10000 };

struct entry {
    struct entry *next;
    char body[ENTRY_SIZE - sizeof(struct entry *)];
};

static struct entry *cache;

/* Leaks: adds entries that are never removed. */
__attribute__((noinline)) static void grow_cache(void) {
    for (int i = 0; i < ENTRIES_PER_TICK; i++) {
        struct entry *entry = malloc(sizeof *entry);
        if (!entry) abort();
        entry->next = cache;
        cache = entry;
    }
}

/* Allocates a buffer and frees it. */
__attribute__((noinline)) static void handle_request(int number) {
    volatile char *request = malloc(256 + (size_t)number % 4096);
    if (!request) abort();
    request[0] = 1;
    free((void *)request);
}

static void *work(void *unused) {
    (void)unused;
    for (;;) {
        grow_cache();
        for (int i = 0; i < REQUESTS_PER_TICK; i++) handle_request(i);
        usleep(TICK_US);
    }
    return NULL;
}

static void log_line(void *ctx, memprof_log_level_t level, memprof_str_t target,
                     memprof_str_t message) {
    static const char *const names[] = {"?", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"};
    (void)ctx;
    fprintf(stderr, "%-5s %.*s: %.*s\n", names[level <= MEMPROF_LOG_TRACE ? level : 0],
            (int)target.len, target.ptr, (int)message.len, message.ptr);
}

int main(int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "--config") != 0) {
        fprintf(stderr, "usage: c_host --config FILE\n");
        return 2;
    }
    sigset_t end_signals;
    sigemptyset(&end_signals);
    sigaddset(&end_signals, SIGTERM);
    sigaddset(&end_signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &end_signals, NULL);

    memprof_host_options_t options = {0};
    options.struct_size = sizeof options;
    options.name = "c_host";
    options.version = "0.1.0";
    options.config_path = argv[2];
    options.log = log_line;
    memprof_running_host_t *host = NULL;
    if (memprof_host_start(&options, &host) != MEMPROF_OK) return 1;

    pthread_t worker;
    if (pthread_create(&worker, NULL, work, NULL) != 0) return 1;
    int signal = 0;
    sigwait(&end_signals, &signal);
    memprof_host_stop(host);
    return 0;
}
