// The library of an attacker. forgery.rs changes its file.
#include <stdlib.h>

__attribute__((noinline)) void *allocate(size_t size) {
	void *block = malloc(size);
	__asm__ volatile("" ::"r"(block) : "memory");
	return block;
}
