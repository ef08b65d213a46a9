/* A program with a malloc of its own, which takes memory from mmap(2). Prints "ready PID" and echoes what it reads. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, SIZE = 5000, COUNT = 400 };

static char *next, *end;

void *malloc(size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (!next || size > (size_t)(end - next)) {
        size_t block = size > BLOCK ? size : BLOCK;
        next = mmap(0, block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        end = next + block;
    }
    void *object = next;
    next += size;
    return object;
}

void free(void *object) { (void)object; }

int main(void) {
    for (int i = 0; i < COUNT; i++) memset(malloc(SIZE), 1, SIZE);
    char text[256];
    ssize_t length = snprintf(text, sizeof text, "ready %d\n", getpid());
    do if (write(1, text, length) != length) return 1;
    while ((length = read(0, text, sizeof text)) > 0);
}
