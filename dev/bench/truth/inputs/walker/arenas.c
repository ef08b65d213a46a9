/* Leaks seven objects of 5000 bytes and holds some others, where the memory of glibc's malloc is
 * what the argument says. Replies to each line on standard input with the same line. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, LARGE = 1 << 20 };

static void *volatile held[4096];
static size_t held_count;
static char input[64];

static void hold(void *object, size_t size)
{
	if (object == NULL)
		exit(2);
	memset(object, 1, size);
	held[held_count++] = object;
}

__attribute__((noinline)) static void lose(size_t size, int count)
{
	for (int i = 0; i < count; i++) {
		char *volatile object = malloc(size);
		object[size - 1] = 1;
		object = NULL;
	}
}

static void hold_some(int count)
{
	for (int i = 0; i < count; i++)
		hold(malloc(1000), 1000);
}

/* Memory of brk(2) that malloc did not request. */
static void take_break(intptr_t size)
{
	char *start = sbrk(size);
	if (start == (void *)-1)
		exit(2);
	/* Looks like chunks. */
	for (intptr_t i = 0; i + 8 <= size; i += 8)
		*(uint64_t *)(start + i) = 0x21;
}

static void foreign_break(void)
{
	hold_some(50);
	lose(5000, 3);
	take_break(100 * PAGE);
	hold_some(500);
	take_break(24);
	hold_some(500);
	take_break(PAGE + 8);
	lose(5000, 4);
	hold_some(500);
}

/* The only pointer to an object lies between two parts of the heap. */
static void held_in_break(void)
{
	hold_some(50);
	void **table = sbrk(PAGE);
	hold_some(500);
	table[8] = malloc(700);
	lose(5000, 7);
}

static void blocked_break(void)
{
	hold_some(10);
	lose(5000, 3);
	char *end = sbrk(0);
	void *above = mmap(end, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (above == MAP_FAILED)
		exit(2);
	hold_some(1500);
	lose(5000, 4);
	/* Later memory of brk(2) is one more part. */
	munmap(above, PAGE);
	hold_some(1500);
}

static void aligned(void)
{
	size_t alignments[] = {32, 64, 512, 2048, 4096, 8192, 1 << 16, 1 << 21};
	for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
		hold(aligned_alloc(alignments[i], LARGE), LARGE);
		void *grown = realloc(aligned_alloc(alignments[i], LARGE), 2 * LARGE + i * PAGE);
		hold(grown, 2 * LARGE);
		void *shrunk = realloc(aligned_alloc(alignments[i], LARGE), LARGE / 2);
		hold(shrunk, LARGE / 2);
	}
	/* Held by its end alone, which the size before realloc does not cover. */
	char *volatile grown = realloc(aligned_alloc(4096, LARGE), 4 * LARGE);
	held[held_count++] = grown + 4 * LARGE - 8;
	void *volatile lost = realloc(aligned_alloc(4096, LARGE), 3 * LARGE);
	lost = NULL;
	(void)lost;
	lose(5000, 7);
}

/* The kernel splits the mapping of a block. */
static void split_blocks(void)
{
	for (int i = 0; i < 4; i++) {
		char *block = malloc(LARGE);
		hold(block, LARGE);
		char *page = (char *)(((uintptr_t)block + LARGE / 2) & -PAGE);
		int (*split[])(void *, size_t, int) = {mprotect, madvise, madvise, mprotect};
		int argument[] = {PROT_READ, MADV_DONTFORK, MADV_NOHUGEPAGE, PROT_NONE};
		if (split[i](page, 4 * PAGE, argument[i]) != 0 && i != 2)
			exit(2);
	}
	lose(LARGE, 1);
	lose(5000, 7);
}

static void *fill_arena(void *unused)
{
	/* More than one heap of 64 MiB. */
	for (int i = 0; i < 800; i++)
		hold(malloc(100000), 8);
	lose(5000, 7);
	hold_some(10);
	return unused;
}

static void many_heaps(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, fill_arena, NULL) != 0)
		exit(2);
	pthread_join(thread, NULL);
	hold_some(10);
}

static void no_frees(void)
{
	hold_some(50);
	lose(5000, 7);
}

static void mapped_only(void)
{
	mallopt(M_MMAP_THRESHOLD, 0);
	hold_some(50);
	lose(5000, 7);
}

static void no_mappings(void)
{
	mallopt(M_MMAP_MAX, 0);
	hold(malloc(8 * LARGE), 8);
	hold_some(50);
	lose(5000, 7);
}

static void early_break(void)
{
	hold_some(50);
	lose(5000, 7);
}

static const struct {
	const char *name;
	void (*run)(void);
} modes[] = {
	{"foreign_break", foreign_break},
	{"held_in_break", held_in_break},
	{"blocked_break", blocked_break},
	{"aligned", aligned},
	{"split_blocks", split_blocks},
	{"many_heaps", many_heaps},
	{"no_frees", no_frees},
	{"mapped_only", mapped_only},
	{"no_mappings", no_mappings},
	{"early_break", early_break},
};

__attribute__((noinline)) static void wipe(void)
{
	volatile char stack[64 << 10];
	for (size_t i = 0; i < sizeof stack; i++)
		stack[i] = 0;
}

int main(int count, char **arguments)
{
	if (count != 2)
		return 2;
	if (strcmp(arguments[1], "early_break") == 0)
		take_break(3 * PAGE + 40);
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
		if (strcmp(arguments[1], modes[i].name) == 0)
			modes[i].run();
	if (held_count == 0)
		return 2;
	wipe();
	char ready[32];
	int length = snprintf(ready, sizeof ready, "ready %d\n", getpid());
	if (write(1, ready, length) != length)
		return 2;
	wipe();
	ssize_t read_count;
	while ((read_count = read(0, input, sizeof input)) > 0)
		if (write(1, input, read_count) != read_count)
			return 2;
	return 0;
}
