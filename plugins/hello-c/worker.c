/* A plugin with a thread of its own, work that blocks, and a reply that is a file. */
#define _GNU_SOURCE
#include <memprof.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

extern char **environ;

static const memprof_host_t *host;
static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, running = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int stops;
static unsigned long ticks;

static void *work(void *unused) {
    pthread_mutex_lock(&lock);
    while (!stops) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 10000000;
        if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
        if (pthread_cond_timedwait(&changed, &lock, &until) == ETIMEDOUT) ticks++;
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static memprof_status_t create(const memprof_host_t *from, memprof_str_t config, void **plugin) {
    sigset_t all, before;
    int error;
    host = from;
    *plugin = &host;
    if (memprof_read_config(host, config, NULL, 0) != MEMPROF_OK) return MEMPROF_INVALID_ARGUMENT;
    stops = 0;
    ticks = 0;
    /* The program's signals are for its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return MEMPROF_OK;
    memprof_log(host, MEMPROF_LOG_ERROR, "failed to start a thread: %s", strerror(error));
    return MEMPROF_IO;
}

/* A child must not inherit that a thread of the control socket blocks all signals. */
static int run_program(char *program) {
    char *const words[] = {program, NULL};
    posix_spawnattr_t attributes;
    sigset_t none;
    pid_t child;
    int error, status = 0;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    error = posix_spawn(&child, program, NULL, &attributes, words, environ);
    posix_spawnattr_destroy(&attributes);
    if (error) return -error;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

static memprof_status_t run(memprof_str_t args, const memprof_reply_t *reply) {
    char program[1024] = "";
    memprof_arg_t list[] = {{"program", program, sizeof program, 0}};
    int status;
    if (memprof_parse(args, list, 1, reply) != MEMPROF_OK) return MEMPROF_INVALID_ARGUMENT;
    if (pthread_mutex_trylock(&running) != 0) return memprof_fail(reply, MEMPROF_BUSY, "", "a program is running");
    status = run_program(program);
    pthread_mutex_unlock(&running);
    if (status < 0) return memprof_fail(reply, MEMPROF_IO, "", "failed to run %s: %s", program, strerror(-status));
    return memprof_reply(reply, "exit status: %d", WEXITSTATUS(status));
}

static memprof_status_t report(const memprof_reply_t *reply) {
    static char line[1 << 20];
    const memprof_reply_fd_t *extension =
        host->get_extension ? host->get_extension(host->ctx, MEMPROF_STR("memprof.reply_fd/1")) : NULL;
    int i, file;
    memprof_status_t status = MEMPROF_IO;
    if (!extension) return memprof_fail(reply, MEMPROF_UNSUPPORTED, "", "this host takes no files");
    file = memfd_create("report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) return memprof_fail(reply, MEMPROF_IO, "", "failed to make a file: %s", strerror(errno));
    memset(line, 'x', sizeof line);
    for (i = 0; i < 20 && write(file, line, sizeof line) == (ssize_t)sizeof line; i++) {
    }
    /* Sealed, so that the host knows that it does not change. */
    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    if (i == 20) status = extension->file(reply->ctx, file, 20ull << 20, MEMPROF_STR("text/plain; charset=utf-8"));
    close(file);
    return status == MEMPROF_OK ? status : memprof_fail(reply, status, "", "failed to pass the report");
}

static memprof_status_t handle_message(void *plugin, memprof_str_t name, memprof_str_t args,
                                       const memprof_reply_t *reply) {
    unsigned long count;
    (void)plugin;
    if (memprof_is(name, "run")) return run(args, reply);
    if (!memprof_is(name, "ticks") && !memprof_is(name, "report")) return memprof_unknown_message(reply, name);
    if (memprof_parse(args, NULL, 0, reply) != MEMPROF_OK) return MEMPROF_INVALID_ARGUMENT;
    if (memprof_is(name, "report")) return report(reply);
    pthread_mutex_lock(&lock);
    count = ticks;
    pthread_mutex_unlock(&lock);
    return memprof_reply(reply, "%lu", count);
}

/* Afterwards the host is gone for this plugin: no thread may be left. */
static void destroy(void *plugin) {
    (void)plugin;
    pthread_mutex_lock(&lock);
    stops = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
}

static const memprof_message_t ticks_message = MEMPROF_MESSAGE("ticks", "", "Says how often the thread has worked.");
static const memprof_message_t run_message = MEMPROF_MESSAGE("run", "program=PATH", "Runs a program, and waits for it.");
static const memprof_message_t report_message = MEMPROF_MESSAGE("report", "", "Returns a large report, as a file.");
MEMPROF_PLUGIN("worker", "0.1.0", create, handle_message, destroy, &ticks_message, &run_message, &report_message);
