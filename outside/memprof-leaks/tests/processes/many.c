/* many: a program of 300 MiB that takes much to look at: a million small objects, held by lists of many kinds, and
   arrays, within the heap and outside of it, that point to the same objects over and over. Prints "ready PID" and
   echoes what it reads. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POINTERS = 20 << 20, IN_HEAP = POINTERS / 5, LISTS = 70000, LENGTH = 8, SMALL = 700000, SAME = 1000 };

/* Volatile: a compiler leaves out what nobody reads. */
static void **volatile small, **volatile lists, **volatile same, **volatile in_heap, **volatile outside;

static void **make(size_t size) { return memset(malloc(size), 0, size); }

/* Each of the kinds that a number's digits are. */
static void **list(unsigned kinds) {
    void **last = 0;
    for (int i = 0; i < LENGTH; i++, kinds >>= 4) {
        void **each = make(24 + kinds % 16 * 16);
        *each = last;
        last = each;
    }
    return last;
}

int main(void) {
    small = make(SMALL * sizeof *small);
    for (int i = 0; i < SMALL; i++) small[i] = make(24);
    lists = make(LISTS * sizeof *lists);
    for (int i = 0; i < LISTS; i++) lists[i] = list(i * 2654435761u);
    same = make(SAME * sizeof *same);
    for (int i = 0; i < SAME; i++) same[i] = make(24);
    in_heap = make(IN_HEAP * sizeof *in_heap);
    for (int i = 0; i < IN_HEAP; i++) in_heap[i] = same[i % SAME];
    outside = mmap(0, POINTERS * sizeof *outside, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < POINTERS; i++) outside[i] = same[i % SAME];
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        fputs(line, stdout);
        fflush(stdout);
    }
}
