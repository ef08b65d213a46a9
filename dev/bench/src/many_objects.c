/* A program that loads the libraries of its arguments; those after "--" one by one, at each SIGUSR1. With
 * cc -shared -DLIBRARY this file is the library. */
#ifdef LIBRARY
int library_function(int number) { return number + 1; }
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
    int index = 1;
    for (; index < count && strcmp(objects[index], "--") != 0; index++) load(objects[index]);
    char *volatile block = malloc(1 << 20);
    (void)block;
    while (++index < count) {
        pause();
        load(objects[index]);
    }
    for (;;) pause();
}
#endif
