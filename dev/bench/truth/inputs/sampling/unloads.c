// Loads and unloads libraries: each argument is a step. `+a` loads dl/liba.so, `a8` lets it allocate 8 MiB in blocks of
// 1 KiB that stay, `-a` unloads it; `*a` loads it into a namespace of its own, `>new.so` moves dl/new.so to dl/liba.so,
// `f` goes on in a child, `j8` lets code in memory that is no file allocate, and unmaps it, `s` sleeps.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *handles[128];

static void fill(int library, int megabytes) {
	char name[] = "fill_a";
	name[5] = library;
	((void (*)(int))dlsym(handles[library], name))(megabytes);
}

static void allocate_by_unmapped_code(int megabytes) {
	// push rbp; mov rbp, rsp; mov edi, 1024; mov rax, malloc; call rax; pop rbp; ret
	uint8_t code[] = {0x55, 0x48, 0x89, 0xe5, 0xbf, 0, 4, 0, 0, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3};
	void *target = malloc;
	memcpy(code + 11, &target, 8);
	void *place = mmap(0, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(place, code, sizeof code);
	for (int i = 0; i < megabytes * 1024; i++)
		((void *(*)(void))place)();
	munmap(place, 1 << 16);
}

int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		char path[] = "./dl/liba.so", *step = argv[i];
		path[8] = step[1];
		switch (*step) {
		case '+': handles[step[1]] = dlopen(path, RTLD_NOW); break;
		case '*': handles[step[1]] = dlmopen(LM_ID_NEWLM, path, RTLD_NOW); break;
		case '-': dlclose(handles[step[1]]); break;
		case '>': rename("./dl/new.so", "./dl/liba.so"); break;
		case 'f': if (fork()) { wait(0); return 0; } break;
		case 'j': allocate_by_unmapped_code(atoi(step + 1)); break;
		case 's': usleep(400000); break;
		default: fill(*step, atoi(step + 1));
		}
	}
	printf("ready %d\n", getpid());
	fflush(stdout);
	sleep(60);
}
