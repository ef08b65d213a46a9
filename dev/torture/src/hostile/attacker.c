// A hostile process, one kind for each first argument. It prints "ready", and runs until its input ends.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096

static void must(int done, const char *what) {
	if (done) return;
	perror(what);
	exit(1);
}

static void work_until_input_ends(void *(*allocate)(size_t)) {
	printf("ready\n");
	fflush(stdout);
	struct pollfd input = {.fd = 0, .events = POLLIN};
	// A signal handler may interrupt poll, which then returns -1.
	while (poll(&input, 1, 10) <= 0)
		for (int count = 0; allocate && count < 50; count++) {
			char *block = allocate(50000);
			if (!block) break;
			*block = 1;
			// Some blocks stay allocated, about 50 MB at most.
			static size_t kept;
			if (count || kept++ > 1000) free(block);
		}
	exit(0);
}

static void quit(int signal) { (void)signal; }

// Maps a file named libjvm.so and survives SIGQUIT, like a Java VM.
static void look_like_jvm(const char *library) {
	signal(SIGQUIT, quit);
	signal(SIGPIPE, SIG_IGN);
	int file = open(library, O_RDONLY);
	must(file >= 0, library);
	must(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0) != MAP_FAILED, "mmap");
}

static int door(struct sockaddr_un *address, int queue) {
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(address->sun_path, sizeof address->sun_path, "/tmp/.java_pid%d", getpid());
	unlink(address->sun_path);
	umask(0);
	int door = socket(AF_UNIX, SOCK_STREAM, 0);
	must(!bind(door, (void *)address, sizeof *address), "bind");
	must(!listen(door, queue), "listen");
	return door;
}

static void serve(int door, int is_endless) {
	static char line[1 << 16];
	memset(line, '0', sizeof line);
	for (;;) {
		int client = accept(door, NULL, NULL);
		if (client < 0) continue;
		while (write(client, line, is_endless ? sizeof line : 1) > 0)
			if (!is_endless) usleep(200000);
		close(client);
	}
}

static void jvm(const char *kind, const char *library) {
	struct sockaddr_un address;
	look_like_jvm(library);
	int is_full = !strcmp(kind, "jvm-full");
	int opened = door(&address, is_full ? 0 : 8);
	if (is_full) {
		for (int count = 0; count < 4; count++)
			connect(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), (void *)&address, sizeof address);
		work_until_input_ends(NULL);
	}
	int parent = getpid();
	// A child serves the socket; its owner stays this process.
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == parent) serve(opened, !strcmp(kind, "jvm-endless"));
		exit(0);
	}
	work_until_input_ends(NULL);
}

static void put(const char *path, const char *text) {
	int file = open(path, O_WRONLY);
	must(file >= 0 && write(file, text, strlen(text)) > 0, path);
	close(file);
}

// A Java VM with a mount namespace whose /tmp is a directory of another user.
static void jvm_elsewhere(const char *library, const char *guarded) {
	unsigned user = getuid(), group = getgid();
	char line[64];
	look_like_jvm(library);
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) {
		printf("refused\n");
		exit(0);
	}
	snprintf(line, sizeof line, "%u %u 1", user, user);
	put("/proc/self/uid_map", line);
	put("/proc/self/setgroups", "deny");
	snprintf(line, sizeof line, "%u %u 1", group, group);
	put("/proc/self/gid_map", line);
	must(!mount(guarded, "/tmp", NULL, MS_BIND, NULL), "mount");
	prctl(PR_SET_DUMPABLE, 1);
	work_until_input_ends(NULL);
}

// Allocates by a library, and then replaces the library's file by one of another type.
static void library(const char *kind, const char *path, const char *other) {
	void *loaded = dlopen(path, RTLD_NOW);
	if (!loaded) fprintf(stderr, "%s\n", dlerror()), exit(1);
	void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(loaded, "allocate");
	must(allocate != NULL, "dlsym");
	if (strcmp(kind, "library")) must(!unlink(path), "unlink");
	if (!strcmp(kind, "library-fifo")) {
		char deleted[PAGE];
		snprintf(deleted, sizeof deleted, "%s (deleted)", path);
		must(!mkfifo(path, 0666) && !mkfifo(deleted, 0666), "mkfifo");
	}
	if (!strcmp(kind, "library-link")) must(!symlink(other, path), "symlink");
	if (!strcmp(kind, "library-directory")) must(!mkdir(path, 0777), "mkdir");
	if (!strcmp(kind, "library-short")) must(!close(open(path, O_CREAT | O_WRONLY, 0777)), "open");
	work_until_input_ends(allocate);
}

static void names(void) {
	static char text[] = "\033[2J\033]0;x\a\r\n%s";
	prctl(PR_SET_NAME, text);
	work_until_input_ends(malloc);
}

static void mappings(void) {
	// Neighbouring pages with different protections are separate mappings; vm.max_map_count is 65,530 by default.
	char *place = mmap(NULL, 65000UL * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(place != MAP_FAILED, "mmap");
	for (size_t page = 0; page < 65000; page += 2)
		if (mprotect(place + page * PAGE, PAGE, PROT_NONE)) break;
	work_until_input_ends(malloc);
}

// Changes the heap's metadata at random. The process does not use the heap afterwards.
static void heap(unsigned long seed) {
	enum { COUNT = 3000 };
	size_t **blocks = calloc(COUNT, sizeof *blocks);
	for (int count = 0; count < COUNT; count++) {
		blocks[count] = malloc(24 + count % 40 * 16);
		*blocks[count] = (size_t)blocks[count / 2];
	}
	for (int count = 0; count < COUNT; count += 3) free(blocks[count]);
	static const size_t claims[] = {0, 1, 7, 16, 0x1001, 1UL << 20, 1UL << 40, ~0UL, ~7UL, 1UL << 63};
	for (int count = 1; count < 200; count++) {
		seed = seed * 6364136223846793005UL + 1442695040888963407UL;
		size_t *block = blocks[(seed >> 33) % COUNT];
		block[(long)(seed >> 20) % 4 - 1] = claims[(seed >> 50) % 10];
	}
	// In a quarter of the cases also overwrite the top of the heap.
	if (seed >> 62 == 3) memset((char *)sbrk(0) - PAGE, (int)seed, PAGE);
	work_until_input_ends(NULL);
}

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	const char *kind = argv[1];
	setvbuf(stdout, NULL, _IONBF, 0);
	// The process must have a heap before memprof inspects it.
	static void *volatile first;
	first = malloc(1);
	(void)first;
	if (!strcmp(kind, "jvm-elsewhere")) jvm_elsewhere(argv[2], argv[3]);
	if (!strncmp(kind, "jvm", 3)) jvm(kind, argv[2]);
	if (!strncmp(kind, "library", 7)) library(kind, argv[2], argv[3]);
	if (!strcmp(kind, "names")) names();
	if (!strcmp(kind, "mappings")) mappings();
	if (!strcmp(kind, "heap")) heap(strtoul(argv[2], NULL, 10));
	return 2;
}
