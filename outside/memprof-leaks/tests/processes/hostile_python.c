/* Part of hostile_python.py: for each line that it reads, it writes random words over the interpreter's memory that it
   was given, and answers "done". It never returns to the interpreter. */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

struct part { uint64_t start, words; };

/* What a count, a length, a pointer, a table's form or a type might be. */
static uint64_t word(const struct part *parts, uint64_t count) {
    uint64_t any = next();
    const struct part *part = &parts[next() % count];
    switch (any % 8) {
    case 0: return any >> 8;
    case 1: return 0;
    case 2: return any >> 40 & 0xffff1;
    case 3: return UINT64_MAX - (any >> 60);
    case 4: return any >> 32 & 0x3f3f3f;
    case 5: return UINT64_C(1) << (any >> 58);
    case 6: return part->start + (any >> 8) % part->words * 8;
    default: return part->start;
    }
}

/* Overwrites `changes` words of the parts in the first round, and twice as many in each later one. */
void scribble(const struct part *parts, uint64_t count, uint64_t changes, uint64_t seed) {
    char text[64];
    state *= 2 * seed + 1;
    while (read(0, text, sizeof text) > 0) {
        for (uint64_t i = 0; i < changes; i++) {
            const struct part *part = &parts[next() % count];
            ((uint64_t *)part->start)[next() % part->words] = word(parts, count);
        }
        changes *= 2;
        if (write(1, "done\n", 5) != 5) _exit(1);
    }
    _exit(0);
}
