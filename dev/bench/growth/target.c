/* target WHAT N: a process that grows with N, and runs in the background. Prints its pid when it is complete.
 *   list, tree  N objects in one list, or in a binary tree, whose order is not that of the addresses
 *   table       N objects in the lists of a hash table; three of a thousand are leaked
 *   threads     N idle threads
 *   mappings    N mappings
 *   libraries   N copies of ./library.so
 * Built with -fsanitize=leak, it runs the search of LeakSanitizer instead, and prints the seconds of the processor. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

struct object {
    struct object *left, *right;
    uint64_t key;
};

static void *volatile root;

static uint64_t next_random(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void *allocate(size_t size) {
    void *block = calloc(1, size);
    if (!block) exit(1);
    return block;
}

static void link_at_random(long count, int is_tree) {
    struct object **all = allocate(count * sizeof *all);
    for (long i = 0; i < count; i++) all[i] = allocate(56);
    for (long i = count - 1; i > 0; i--) {
        long other = next_random() % (i + 1);
        struct object *moved = all[i];
        all[i] = all[other];
        all[other] = moved;
    }
    for (long i = 0; i < count; i++) {
        long left = is_tree ? 2 * i + 1 : i + 1;
        if (left < count) all[i]->left = all[left];
        if (is_tree && left + 1 < count) all[i]->right = all[left + 1];
    }
    root = all[0];
    free(all);
}

static void fill_table(long count) {
    long lists = count / 20 + 1;
    struct object **table = allocate(lists * sizeof *table), *before = 0;
    for (long i = 0; i < count; i++) {
        struct object *object = allocate(32 + i % 3 * 16);
        object->right = before;
        if (i % 1000 < 3) continue;
        object->left = table[i % lists];
        table[i % lists] = object;
        if (i % 7 == 0) before = object;
    }
    root = table;
}

static void *idle(void *unused) {
    for (;;) pause();
    return unused;
}

static void start_threads(long count) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    for (long i = 0; i < count; i++)
        if (pthread_create(&thread, &attributes, idle, 0)) exit(1);
}

static void map_pages(long count) {
    for (long i = 0; i < count; i++) {
        /* Neighbours with equal access would become one mapping. */
        int access = i & 1 ? PROT_READ : PROT_READ | PROT_WRITE;
        if (mmap(0, 4096, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) exit(1);
    }
}

static void load_libraries(long count) {
    for (long i = 0; i < count; i++) {
        char path[64];
        snprintf(path, sizeof path, "./library-%ld.so", i);
        if (!dlopen(path, RTLD_NOW)) exit(1);
    }
}

#ifdef WITH_LEAK_SANITIZER
int __lsan_do_recoverable_leak_check(void);

static double processor_seconds(void) {
    struct rusage own, ended;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &ended);
    return own.ru_utime.tv_sec + own.ru_stime.tv_sec + ended.ru_utime.tv_sec + ended.ru_stime.tv_sec +
           (own.ru_utime.tv_usec + own.ru_stime.tv_usec + ended.ru_utime.tv_usec + ended.ru_stime.tv_usec) / 1e6;
}
#endif

int main(int count, char **args) {
    if (count != 3) return 2;
    const char *what = args[1];
    long number = atol(args[2]);
#ifndef WITH_LEAK_SANITIZER
    int ready[2];
    char byte = 0;
    if (pipe(ready)) return 1;
    pid_t child = fork();
    if (child) {
        close(ready[1]);
        /* Ends of file mean that the child has failed. */
        if (read(ready[0], &byte, 1) != 1) return 1;
        printf("%d\n", child);
        return 0;
    }
#endif
    if (!strcmp(what, "list")) link_at_random(number, 0);
    else if (!strcmp(what, "tree")) link_at_random(number, 1);
    else if (!strcmp(what, "table")) fill_table(number);
    else if (!strcmp(what, "threads")) start_threads(number);
    else if (!strcmp(what, "mappings")) map_pages(number);
    else if (!strcmp(what, "libraries")) load_libraries(number);
    else return 2;
#ifdef WITH_LEAK_SANITIZER
    double before = processor_seconds();
    __lsan_do_recoverable_leak_check();
    printf("%f\n", processor_seconds() - before);
    fflush(stdout);
    _exit(0);
#else
    /* The caller reads stdout to its end. */
    close(0), close(1), close(2);
    if (write(ready[1], &byte, 1) != 1) return 1;
    close(ready[0]), close(ready[1]);
    /* Attaching takes effect in a thread that allocates. */
    for (;;) {
        void *block = malloc(1000);
        __asm__ volatile("" : : "r"(block) : "memory");
        free(block);
        usleep(10000);
    }
#endif
}
