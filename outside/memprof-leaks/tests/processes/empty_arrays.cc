/* Arrays without elements, each before an object that is free, or in use. Prints "ready PID" and echoes what it reads. */
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

struct Element {
    ~Element() { std::puts("destroyed"); }
    long values[4];
};

struct alignas(32) Aligned {
    ~Aligned() { std::puts("destroyed"); }
    long values[4];
};

enum { COUNT = 1000 };
static Element *volatile arrays[COUNT];
static Aligned *volatile aligned[COUNT / 10];
static void *volatile others[COUNT];

int main() {
    for (int i = 0; i < COUNT; i++) {
        arrays[i] = new Element[0];
        others[i] = std::malloc(8);
        if (i % 2) std::free(others[i]);
        if (i % 10 == 0) aligned[i / 10] = new Aligned[0];
    }
    char text[256];
    ssize_t length = std::snprintf(text, sizeof text, "ready %d\n", getpid());
    do
        if (write(1, text, length) != length) return 1;
    while ((length = read(0, text, sizeof text)) > 0);
}
