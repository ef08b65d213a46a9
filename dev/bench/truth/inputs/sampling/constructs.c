/* A library that allocates in its constructor, by an address of malloc that it looks up, and in thread-local storage that
 * the dynamic loader allocates at its first use. 16 MiB each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 16384, SIZE = 1000, THREADS = 64 };

static void *kept[BLOCKS];
static __thread char storage[BLOCKS * SIZE / THREADS];
static sem_t touched;

__attribute__((constructor)) static void construct(void) {
    void *(*take)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");
    for (int i = 0; i < BLOCKS; i++) kept[i] = memset(take(SIZE), 1, 64);
}

static void *touch(void *none) {
    memset(storage, 1, sizeof storage);
    sem_post(&touched);
    for (;;) pause();
    return none;
}

void fill(void) {
    pthread_t thread;
    sem_init(&touched, 0, 0);
    for (int i = 0; i < THREADS; i++) pthread_create(&thread, NULL, touch, NULL);
    for (int i = 0; i < THREADS; i++) sem_wait(&touched);
}
