#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) static void *lose(size_t n) { return memset(malloc(n), 1, n); }
int main(void) { void *last = 0; for (int i = 0; i < 200; i++) last = lose(20000 + i); return last == 0; }
