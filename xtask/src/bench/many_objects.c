/* A program that loads the libraries it is called with, and this library: cc -shared -DLIBRARY. */
#ifdef LIBRARY
int of_the_library(int number) { return number + 1; }
#else
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **objects) {
    for (int at = 1; at < count; at++)
        if (!dlopen(objects[at], RTLD_NOW)) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    char *volatile kept = malloc(1 << 20);
    (void)kept;
    pause();
    return 0;
}
#endif
