/* A program that was not built for memprof and that leaks: an example for `memprof record PID`. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct session {
    struct session *next;
    char data[4000];
};

static struct session *sessions;

__attribute__((noinline)) static void open_session(void) {
    struct session *session = malloc(sizeof *session);
    if (!session) abort();
    memset(session->data, 1, sizeof session->data);
    session->next = sessions;
    sessions = session;
}

int main(void) {
    for (;;) {
        for (int i = 0; i < 20; i++) open_session();
        usleep(10000);
    }
}
