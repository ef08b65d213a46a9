/* loses: a thread loses 20 objects of 1,500 bytes each 10 ms, and holds one in ten of another size. Prints "ready PID" and
   echoes what it reads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void **held;

__attribute__((noinline)) static void lose_report(void) {
    void *volatile lost = memset(malloc(1500), 1, 1500);
    lost = 0;
}

__attribute__((noinline)) static void hold_entry(void) {
    void **entry = malloc(2500);
    *entry = held;
    held = entry;
}

static void *work(void *unused) {
    for (;;) {
        for (int i = 0; i < 20; i++) {
            lose_report();
            if (i % 10 == 0) hold_entry();
        }
        usleep(10000);
    }
    return unused;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, work, 0)) return 1;
    char text[256];
    ssize_t length = snprintf(text, sizeof text, "ready %d\n", getpid());
    do if (write(1, text, length) != length) return 1;
    while ((length = read(0, text, sizeof text)) > 0);
}
