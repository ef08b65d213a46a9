/* served MODE: a program with memory whose page faults a thread of its own serves (userfaultfd(2)). Prints "ready PID" and
   echoes what it reads, or "no" if the kernel refuses.
   MODE: forks (the server is notified of forks, which wait for it) | faults (it is not). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LENGTH = 64 << 10, PAGE = 4096 };
static int server;

static void *serves(void *zeros) {
    struct uffd_msg message;
    while (read(server, &message, sizeof message) == sizeof message) {
        if (message.event == UFFD_EVENT_FORK) close(message.arg.fork.ufd);
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        unsigned long long page = message.arg.pagefault.address & ~(PAGE - 1ULL);
        struct uffdio_copy copy = {.dst = page, .src = (unsigned long)zeros, .len = PAGE};
        ioctl(server, UFFDIO_COPY, &copy);
    }
    return zeros;
}

int main(int count, char **words) {
    int forks = count > 1 && !strcmp(words[1], "forks");
    server = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = forks ? UFFD_FEATURE_EVENT_FORK : 0};
    char *memory = mmap(0, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {
        .range = {(unsigned long)memory, LENGTH}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (server < 0 || ioctl(server, UFFDIO_API, &api) || ioctl(server, UFFDIO_REGISTER, &range)) {
        puts("no");
        return 0;
    }
    pthread_t thread;
    pthread_create(&thread, 0, serves, aligned_alloc(PAGE, PAGE));
    memory[0] = 1;
    printf("ready %d\n", getpid());
    fflush(stdout);
    for (char line[256]; fgets(line, sizeof line, stdin);) {
        memory[rand() % LENGTH]++;
        fputs(line, stdout);
        fflush(stdout);
    }
}
