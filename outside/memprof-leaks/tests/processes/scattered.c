/* Holds COUNT objects in random order as a list, a tree or rings from a table, and loses seven: "scattered SHAPE COUNT".
 * Replies to each line on standard input with the same line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct object {
	struct object *left, *right;
	char rest[40];
};

static struct object **volatile table;
static struct object *volatile root;

static uint64_t next_random(void)
{
	static uint64_t state = 88172645463325252ull;
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

__attribute__((noinline)) static void lose(int count)
{
	for (int i = 0; i < count; i++) {
		char *volatile object = malloc(3000);
		memset(object, 1, 3000);
		object = NULL;
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	size_t count = strtoul(argv[2], NULL, 10);
	struct object **all = malloc(count * sizeof *all);
	for (size_t i = 0; i < count; i++) {
		all[i] = calloc(1, sizeof **all);
		size_t other = next_random() % (i + 1);
		struct object *object = all[i];
		all[i] = all[other];
		all[other] = object;
	}
	if (strcmp(argv[1], "list") == 0) {
		for (size_t i = 0; i + 1 < count; i++)
			all[i]->left = all[i + 1];
		root = all[0];
	} else if (strcmp(argv[1], "tree") == 0) {
		for (size_t i = 1; i < count; i++)
			*(i % 2 ? &all[(i - 1) / 2]->left : &all[(i - 1) / 2]->right) = all[i];
		root = all[0];
	} else {
		size_t buckets = count / 10 + 1;
		table = calloc(buckets, sizeof *table);
		for (size_t i = 0; i < count; i++) {
			/* An address inside of the object. */
			all[i]->right = (struct object *)all[i]->rest;
			all[i]->left = table[i % buckets];
			table[i % buckets] = all[i];
		}
	}
	memset(all, 0, count * sizeof *all);
	free(all);
	lose(7);
	/* No stale word of lose() stays on the stack. */
	char text[4096];
	memset(text, 0, sizeof text);
	ssize_t length = snprintf(text, sizeof text, "ready %d\n", getpid());
	do
		if (write(1, text, length) != length)
			return 1;
	while ((length = read(0, text, sizeof text)) > 0);
}
