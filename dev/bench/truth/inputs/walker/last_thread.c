/* The first thread ends first. The last one ends the program, with seven more lost objects. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_t first;

__attribute__((noinline)) static void lose(void)
{
	for (int i = 0; i < 7; i++) {
		char *volatile object = malloc(5000);
		object[0] = 1;
		object = NULL;
	}
}

static void *last(void *unused)
{
	pthread_join(first, NULL);
	lose();
	return unused;
}

int main(void)
{
	pthread_t thread;
	first = pthread_self();
	lose();
	if (pthread_create(&thread, NULL, last, NULL) != 0)
		return 2;
	pthread_exit(NULL);
}
