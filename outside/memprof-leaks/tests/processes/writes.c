/* writes MIB: a program that writes to all of its memory, again and again. Prints "ready PID" and echoes what it reads. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count < 2) return 3;
    size_t size = strtoul(arguments[1], 0, 10) << 20;
    volatile char *memory = memset(malloc(size), 1, size);
    char text[256];
    ssize_t length = snprintf(text, sizeof text, "ready %d\n", getpid());
    do {
        if (write(1, text, length) != length) return 1;
        for (struct pollfd input = {0, POLLIN, 0}; poll(&input, 1, 0) == 0;)
            for (size_t at = 0; at < size; at += 4096) memory[at]++;
    } while ((length = read(0, text, sizeof text)) > 0);
}
