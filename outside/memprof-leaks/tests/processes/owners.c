/* Holds 2000 objects of 100 bytes by memory of the kind that the argument names. Replies to each line on standard input
 * with the same line. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 2000, SIZE = 1 << 20 };

static __thread void *local[COUNT];

static void fill(void **table)
{
	for (int i = 0; i < COUNT; i++) {
		table[i] = malloc(100);
		memset(table[i], 1, 100);
	}
}

static void *map(int flags, int file)
{
	void *start = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, file, 0);
	if (start == MAP_FAILED)
		exit(2);
	return start;
}

static void *wait(void *mode)
{
	while (mode == NULL)
		pause();
	return mode;
}

int main(int count, char **arguments)
{
	char line[64], name[] = "/tmp/dataXXXXXX";
	const char *mode = count > 1 ? arguments[1] : "";
	pthread_t thread;
	void *table = NULL;
	if (strcmp(mode, "anonymous") == 0) {
		fill(map(MAP_PRIVATE | MAP_ANONYMOUS, -1));
	} else if (strcmp(mode, "file") == 0) {
		int file = mkstemp(name);
		if (file < 0 || ftruncate(file, SIZE) != 0)
			return 2;
		table = map(MAP_PRIVATE, file);
		unlink(name);
		fill(table);
	} else if (strcmp(mode, "local") == 0) {
		fill(local);
	} else if (strcmp(mode, "stack") == 0) {
		fill(__builtin_alloca(COUNT * sizeof(void *)));
	} else {
		return 2;
	}
	if (pthread_create(&thread, NULL, wait, NULL) != 0)
		return 2;
	snprintf(line, sizeof line, "ready %d\n", getpid());
	if (write(1, line, strlen(line)) < 0)
		return 2;
	ssize_t length;
	while ((length = read(0, line, sizeof line)) > 0)
		if (write(1, line, length) != length)
			return 2;
	return 0;
}
