/* served MODE: a program with memory whose page faults a thread of its own serves (userfaultfd(2)). Prints "ready PID" and
   echoes what it reads, or "no" if the kernel refuses.
   MODE: forks (the server is notified of forks, which wait for it) | faults (it is not) | stranger (nor is it, and the
   program also holds the descriptor that serves another process and is notified of its forks) | passed (nor is it, but
   only a child holds the descriptor that serves other memory of the program and is notified of forks). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

/* Returns a descriptor that can serve this process; negative if the kernel refuses. */
static int open_server(int forks) {
    int descriptor = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = forks ? UFFD_FEATURE_EVENT_FORK : 0};
    return descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api) ? -1 : descriptor;
}

/* Registers new memory with a server. Returns it; null if the kernel refuses. */
static char *serve_memory(int descriptor) {
    char *memory = mmap(0, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {
        .range = {(unsigned long)memory, LENGTH}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(descriptor, UFFDIO_REGISTER, &range) ? 0 : memory;
}

/* Registers new memory. Returns it, and sets its server; null if the kernel refuses. */
static char *register_memory(int forks, int *descriptor) {
    *descriptor = open_server(forks);
    return serve_memory(*descriptor);
}

/* Registers new memory with a server that only a child holds, which lives as long as this process. */
static int pass_server(void) {
    int descriptor = open_server(1);
    /* Once memory is registered, a fork would wait for the server. */
    if (descriptor >= 0 && !fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    char *memory = serve_memory(descriptor);
    close(descriptor);
    return memory != 0;
}

/* Takes the descriptor that serves a child, which lives as long as this process. */
static int hold_stranger(void) {
    int numbers[2], number;
    if (pipe(numbers)) return 0;
    int child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* The kernel could not tell memory of the child at the same address from the parent's. */
        for (int i = 0; i < 16; i++) mmap(0, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!register_memory(1, &number)) number = -1;
        if (write(numbers[1], &number, sizeof number) < 0) return 0;
        for (;;) pause();
    }
    if (read(numbers[0], &number, sizeof number) != sizeof number || number < 0) return 0;
    return syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, child, 0), number, 0) >= 0;
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "";
    char *memory = 0;
    int has_other = !strcmp(mode, "stranger") ? hold_stranger() : !strcmp(mode, "passed") ? pass_server() : 1;
    if (has_other) memory = register_memory(!strcmp(mode, "forks"), &server);
    if (!memory) {
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
