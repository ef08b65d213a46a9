/* A library that hazards.c loads and unloads. It has two builds, whose frames have different sizes
 * at the same addresses. */
#include <stdlib.h>

int run(int times) {
    volatile char frame[FRAME];
    frame[0] = 0;
    for (int at = 0; at < times; at++) {
        void *block = malloc(300);
        __asm__ volatile("" : : "r"(block) : "memory");
        free(block);
    }
    return frame[0];
}
