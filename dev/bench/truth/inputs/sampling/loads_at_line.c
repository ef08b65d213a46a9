#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
/* loads the library that its argument names once it has read a line, and calls its function fill */
int main(int argc, char **argv) {
    puts("started");
    fflush(stdout);
    getchar();
    void *library = dlopen(argv[1], RTLD_NOW);
    ((void (*)(void))dlsym(library, "fill"))();
    puts("loaded");
    fflush(stdout);
    for (;;) pause();
}
