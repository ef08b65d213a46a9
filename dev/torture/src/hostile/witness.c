// Runs a command with a time limit, and writes to a file: its exit code, its time in milliseconds, the largest resident
// memory of one of its processes in KiB, and 1 if it left a process that had to be killed, else 0.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TIMED_OUT 124
// Time in milliseconds in which orphaned processes must end.
#define ENDING_MS 2000

static long now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static long largest;

// Waits for the end of one child until the deadline. Returns its pid, 0 after the deadline, or -1 if there is no child.
static pid_t wait_until(long deadline, int *status) {
	for (;;) {
		struct rusage used;
		pid_t ended = wait4(-1, status, WNOHANG | __WALL, &used);
		if (ended > 0 && used.ru_maxrss > largest) largest = used.ru_maxrss;
		if (ended) return ended;
		long left = deadline - now();
		if (left <= 0) return 0;
		// A child may end without SIGCHLD (clone(2)), so wait4 is polled every 100 ms.
		if (left > 100) left = 100;
		struct timespec time = {.tv_nsec = left * 1000000};
		sigset_t child;
		sigemptyset(&child);
		sigaddset(&child, SIGCHLD);
		sigtimedwait(&child, NULL, &time);
	}
}

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	// Orphaned descendants become children of this process (prctl(2)).
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	long begun = now(), deadline = begun + atol(argv[2]);
	pid_t command = fork();
	if (!command) {
		sigprocmask(SIG_UNBLOCK, &child, NULL);
		setpgid(0, 0);
		execv(argv[3], argv + 3);
		_exit(127);
	}
	int status, code = TIMED_OUT, left = 0;
	pid_t ended;
	while ((ended = wait_until(deadline, &status)) > 0)
		if (ended == command) {
			code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			break;
		}
	long took = now() - begun;
	if (code == TIMED_OUT) kill(-command, SIGKILL);
	while ((ended = wait_until(begun + took + ENDING_MS, &status)) > 0) {}
	if (!ended) left = 1, kill(-command, SIGKILL);
	FILE *file = fopen(argv[1], "w");
	if (!file) return 1;
	fprintf(file, "%d %ld %ld %d\n", code, took, largest, left);
	return fclose(file) ? 1 : 0;
}
