/* A host that forks while its threads allocate and send messages. Each child requests the status, starts
 * sampling, dumps and exits. The host prints for each child how it ended; the exit code names the failed step. */
#define _GNU_SOURCE
#include "quiet_host.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE = 30 };

static void *keep_sending(void *unused) {
    static __thread struct text text;
    static const char *const names[] = {"status", "list", "ledger", "dump", "doctor"};
    for (size_t at = 0;; at++) send(names[at % 5], "", &text);
    return unused;
}

__attribute__((noinline)) static void *allocate_in_child(void) {
    return memset(malloc(8 << 20), 1, 8 << 20);
}

static void *keep_allocating(void *unused) {
    void *blocks[256] = {0};
    for (unsigned at = 0;; at++) {
        free(blocks[at % 256]);
        blocks[at % 256] = malloc(16 + at % 5000);
    }
    return unused;
}

static int child(void) {
    static struct text text;
    alarm(PATIENCE);
    if (send("status", "", &text) != MEMPROF_OK) return 2;
    if (strstr(text.bytes, "\"profiling\":\"active\"")) return 3;
    if (send("activate", "sample_interval=64KiB", &text) != MEMPROF_OK) return 4;
    void *volatile kept = allocate_in_child();
    if (send("dump", "", &text) != MEMPROF_OK) return 5;
    if (strstr(text.bytes, "\"stacks\":0,")) return 6;
    if (send("deactivate", "", &text) != MEMPROF_OK) return 7;
    free(kept);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: forker CONFIG CHILDREN\n");
        return 2;
    }
    static struct text text;
    if (start_host("forker", argv[1]) != MEMPROF_OK) return 1;
    must_send("activate", "for=1h sample_interval=64KiB", &text);
    pthread_t thread;
    for (int at = 0; at < 2; at++) {
        if (pthread_create(&thread, NULL, keep_allocating, NULL)) return 1;
        if (pthread_create(&thread, NULL, keep_sending, NULL)) return 1;
    }
    for (int at = atoi(argv[2]); at > 0; at--) {
        pid_t pid = fork();
        if (pid == 0) _exit(child());
        int status = -1;
        if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
        printf("%s %d\n", WIFEXITED(status) ? "exit" : "signal",
               WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        fflush(stdout);
    }
    _exit(0);
}
