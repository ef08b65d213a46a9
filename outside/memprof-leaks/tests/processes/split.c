/* split: a program whose heap is many mappings, as advice for parts of it makes of it. Prints "ready PID" and echoes
   what it reads. Each second object is held by the one before it. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 20000, PAGE = 4096 };

static void *volatile held[COUNT];

static void *make(size_t size) { return memset(malloc(size), 0, size); }

int main(void) {
    static char input[BUFSIZ], output[BUFSIZ];
    setvbuf(stdin, input, _IOFBF, sizeof input);
    setvbuf(stdout, output, _IOFBF, sizeof output);
    for (int i = 0; i < COUNT; i++) {
        void **holder = make(56);
        *holder = make(120);
        held[i] = holder;
    }
    uintptr_t first = ((uintptr_t)held[0] + PAGE) & -PAGE, last = (uintptr_t)held[COUNT - 1] & -PAGE;
    for (uintptr_t page = first; page < last; page += 4 * PAGE) madvise((void *)page, PAGE, MADV_DONTDUMP);
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        fputs(line, stdout);
        fflush(stdout);
    }
}
