/* A process in a state that the first argument names. It says "ready", with a pid where that is not its
 * own, and then answers each line with the same line: so it shows that it lives on. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) abort();
}

static void *serve(void *ready) {
    char line[256];
    ssize_t length;
    if (ready) say("ready\n");
    while ((length = read(0, line, sizeof line)) > 0)
        if (write(1, line, length) != length) abort();
    /* Not exit_group, which a filter may forbid. */
    syscall(SYS_exit, 0);
    return NULL;
}

/* Serves once the main thread, whose state /proc tells as the process's, is a zombie. */
static void *serve_alone(void *unused) {
    char stat[512];
    const char *state;
    (void)unused;
    do {
        FILE *file = fopen("/proc/self/stat", "r");
        if (!file || !fgets(stat, sizeof stat, file)) abort();
        fclose(file);
        state = strrchr(stat, ')');
    } while (state[2] != 'Z');
    return serve("ready");
}

static void filter(struct sock_filter *code, unsigned short length) {
    struct sock_fprog program = { length, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) {
        perror("seccomp");
        _exit(1);
    }
}

/* Answers one system call so. */
static void forbid(unsigned call, unsigned answer) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    filter(code, sizeof code / sizeof *code);
}

/* Answers all system calls so but those whose numbers are given. */
static void only(unsigned answer, int count, char **numbers) {
    struct sock_filter code[1024] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0) };
    int length = 1;
    for (int i = 0; i < count; i++) {
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(numbers[i]), 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    filter(code, length);
}

static void *forbid_and_serve(void *answer) {
    forbid(SYS_clone3, (unsigned)(uintptr_t)answer);
    return serve("ready");
}

static void zombie(void) {
    char line[64];
    pid_t child = fork();
    if (child == 0) _exit(0);
    siginfo_t info;
    /* Waits for its end and leaves it. */
    if (waitid(P_PID, child, &info, WEXITED | WNOWAIT)) abort();
    snprintf(line, sizeof line, "ready %d\n", child);
    say(line);
    serve(NULL);
}

static void vforks(void) {
    if (vfork() == 0) {
        char line[64];
        snprintf(line, sizeof line, "ready %d\n", getpid());
        say(line);
        if (read(0, line, sizeof line) < 0) _exit(1);
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    wait(NULL);
    say("the child has executed a program\n");
    serve(NULL);
}

static void forks(void) {
    char line[64];
    if (fork() == 0) {
        snprintf(line, sizeof line, "ready %d\n", getpid());
        say(line);
        serve(NULL);
    }
    wait(NULL);
}

/* Reads filters and what to call getppid with, puts them on a child, and says what the kernel answers. */
static void judge(void) {
    uint16_t lengths[4];
    uint64_t arguments[6];
    static struct sock_filter code[4][4096];
    while (fread(lengths, sizeof lengths, 1, stdin) == 1) {
        for (int i = 0; i < 4; i++)
            if (fread(code[i], sizeof **code, lengths[i], stdin) != lengths[i]) abort();
        if (fread(arguments, sizeof arguments, 1, stdin) != 1) abort();
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 4; i++)
                if (lengths[i]) filter(code[i], lengths[i]);
            uint64_t *a = arguments;
            long made = syscall(SYS_getppid, a[0], a[1], a[2], a[3], a[4], a[5]);
            char line[64];
            if (made == -1) snprintf(line, sizeof line, "error %d\n", errno);
            else snprintf(line, sizeof line, made == getpid() || made == 0 ? "error 0\n" : "allowed\n");
            say(line);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child) abort();
        if (WIFSIGNALED(status)) say(WTERMSIG(status) == SIGSYS ? "killed\n" : "died\n");
        else if (status) say("not taken\n");
    }
}

int main(int count, char **words) {
    const char *state = words[1];
    /* Of which call, and what is answered to it. */
    unsigned call = count > 3 ? atoi(words[2]) : 0;
    unsigned answer = count > 3 ? strtoul(words[3], NULL, 0) : 0;
    if (!strcmp(state, "serve")) serve("ready");
    if (!strcmp(state, "zombie")) zombie();
    if (!strcmp(state, "vfork")) vforks();
    if (!strcmp(state, "fork")) forks();
    if (!strcmp(state, "judge")) judge();
    if (!strcmp(state, "undumpable")) {
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) abort();
        serve("ready");
    }
    if (!strcmp(state, "strict")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0)) abort();
        serve("ready");
    }
    if (!strcmp(state, "filter")) {
        forbid(call, answer);
        serve("ready");
    }
    if (!strcmp(state, "filter-and-execute")) {
        forbid(call, answer);
        execl("/proc/self/exe", "target", "serve", NULL);
        abort();
    }
    if (!strcmp(state, "only")) {
        only(answer, count - 4, words + 4);
        serve("ready");
    }
    if (!strcmp(state, "filtered-thread")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, forbid_and_serve, (void *)(uintptr_t)answer)) abort();
        pthread_join(thread, NULL);
    }
    if (!strcmp(state, "main-thread-ends")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve_alone, NULL)) abort();
        pthread_exit(NULL);
    }
    return 0;
}
