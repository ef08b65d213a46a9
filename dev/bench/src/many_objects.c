/* A program that loads the libraries it is called with, of those after "--" one for each SIGUSR1; and this library:
 * cc -shared -DLIBRARY. */
#ifdef LIBRARY
int of_the_library(int number) { return number + 1; }
#else
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void load(const char *object) {
    if (!dlopen(object, RTLD_NOW)) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
}

static void wake(int number) { (void)number; }

int main(int count, char **objects) {
    signal(SIGUSR1, wake);
    int at = 1;
    for (; at < count && strcmp(objects[at], "--") != 0; at++) load(objects[at]);
    char *volatile kept = malloc(1 << 20);
    (void)kept;
    while (++at < count) {
        pause();
        load(objects[at]);
    }
    for (;;) pause();
}
#endif
