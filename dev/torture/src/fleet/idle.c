// Keeps one MiB, and waits.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) static char *keep(size_t size) { return memset(malloc(size), 1, size); }

int main(void) {
    char *kept = keep(1 << 20);
    pause();
    return kept[0];
}
