// A hostile process, one kind for each first argument. It prints "ready", and runs until its input ends.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
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
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096

static void must(int done, const char *what) {
	if (done) return;
	perror(what);
	exit(1);
}

// File outside of its directory, removed at the end.
static char outside[PAGE];

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
	if (*outside) unlink(outside);
	// Not by exit(3): the loader ends a process whose list of libraries has no end with an error.
	_exit(0);
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

static void *swap_files(void *path) {
	char other[PAGE];
	snprintf(other, sizeof other, "%s.other", (char *)path);
	for (;;) {
		syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, other, RENAME_EXCHANGE);
		usleep(200);
	}
	return NULL;
}

// Exchanges the library's file with a FIFO, thousands of times a second.
static void library_swaps(const char *path) {
	static char copy[PAGE], other[PAGE + 8];
	snprintf(copy, sizeof copy, "%s", path);
	snprintf(other, sizeof other, "%s.other", path);
	void *loaded = dlopen(path, RTLD_NOW);
	must(loaded != NULL, "dlopen");
	must(!mkfifo(other, 0666), "mkfifo");
	pthread_t swapper;
	must(!pthread_create(&swapper, NULL, swap_files, copy), "pthread_create");
	work_until_input_ends((void *(*)(size_t))dlsym(loaded, "allocate"));
}

// Maps a file of terabytes without a block, writable and shared, and as much private memory.
static void sparse_mapping(void) {
	size_t size = 8UL << 40;
	int file = memfd_create("sparse", 0);
	must(file >= 0 && !ftruncate(file, size), "memfd_create");
	char *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must(shared != MAP_FAILED, "mmap");
	char *private = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	must(private != MAP_FAILED, "mmap");
	// A page in each gigabyte.
	for (size_t at = 0; at < size; at += 1UL << 30) shared[at] = private[at] = 1;
	work_until_input_ends(malloc);
}

// Gives each of 30,000 mappings a name of 79 bytes.
static void mapping_names(void) {
	size_t count = 30000;
	char *place = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(place != MAP_FAILED, "mmap");
	for (size_t page = 0; page < count; page++) {
		char name[80];
		snprintf(name, sizeof name, "%079zu", page);
		// PR_SET_VMA, PR_SET_VMA_ANON_NAME: kernels without CONFIG_ANON_VMA_NAME refuse it.
		if (prctl(0x53564d41, 0, place + page * PAGE, PAGE, name)) break;
	}
	work_until_input_ends(malloc);
}

// Makes the loader's list of libraries endless.
static void endless_libraries(void) {
	struct link_map *last = _r_debug.r_map;
	while (last->l_next) last = last->l_next;
	last->l_next = _r_debug.r_map;
	work_until_input_ends(malloc);
}

// Allocates from memory that no file has, and describes it by a map for perf: one line of 200 MiB, or a FIFO.
static void perf_map(const char *kind, const char *library) {
	snprintf(outside, sizeof outside, "/tmp/perf-%d.map", getpid());
	unlink(outside);
	if (!strcmp(kind, "perf-map-fifo")) must(!mkfifo(outside, 0666), "mkfifo");
	else {
		static char text[1 << 20];
		memset(text, '1', sizeof text);
		int file = open(outside, O_CREAT | O_WRONLY, 0666);
		must(file >= 0, outside);
		for (int part = 0; part < 200; part++) must(write(file, text, sizeof text) > 0, outside);
		close(file);
	}
	void *loaded = dlopen(library, RTLD_NOW);
	must(loaded != NULL, library);
	// push rbp; mov rbp, rsp; movabs rax, allocate; call rax; pop rbp; ret
	unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3};
	void *target = dlsym(loaded, "allocate");
	memcpy(code + 6, &target, sizeof target);
	char *place = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(place != MAP_FAILED, "mmap");
	memcpy(place, code, sizeof code);
	work_until_input_ends((void *(*)(size_t))place);
}

// Executes itself with arguments and an environment of a megabyte each.
static void arguments(char *program) {
	enum { COUNT = 8, SIZE = 100000 };
	static char text[SIZE];
	memset(text, '\033', SIZE - 1);
	char *many[COUNT + 3] = {program, "arguments-now"}, *environment[COUNT + 1] = {0};
	for (int count = 0; count < COUNT; count++) many[count + 2] = environment[count] = text;
	execve("/proc/self/exe", many, environment);
	must(0, "execve");
}

static void *sleeps(void *nothing) {
	pause();
	return nothing;
}

static void threads(void) {
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (int count = 0; count < 3000; count++) {
		pthread_t thread;
		if (pthread_create(&thread, &small, sleeps, NULL)) break;
	}
	work_until_input_ends(malloc);
}

// A host of memprof whose replies hurt: a byte a second, without end, nested 100,000 times, or 1 GiB long.
static void *host_client(void *argument) {
	long client = (long)argument >> 3, kind = (long)argument & 7;
	static char text[1 << 16];
	char request[PAGE];
	while (read(client, request, sizeof request) > 0) {
		if (kind == 0)
			while (write(client, "{", 1) == 1) sleep(1);
		memset(text, kind == 2 ? '[' : ' ', sizeof text);
		if (kind == 1)
			while (write(client, text, sizeof text) > 0) {}
		const char *head = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":";
		if (write(client, head, strlen(head)) < 0) break;
		for (int part = 0; part < (kind == 2 ? 2 : 1 << 14); part++)
			if (write(client, text, sizeof text) < 0) break;
		if (write(client, "{}}\n", 4) < 0) break;
	}
	close(client);
	return NULL;
}

static void host(const char *kind) {
	static const char *const kinds[] = {"host-drips", "host-endless", "host-nested", "host-huge"};
	long number = 0;
	while (number < 4 && strcmp(kind, kinds[number])) number++;
	signal(SIGPIPE, SIG_IGN);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(outside, sizeof outside, "/tmp/memprof-%d", getuid());
	mkdir(outside, 0700);
	snprintf(outside, sizeof outside, "/tmp/memprof-%d/%d.sock", getuid(), getpid());
	memcpy(address.sun_path, outside, strlen(outside));
	unlink(outside);
	int door = socket(AF_UNIX, SOCK_STREAM, 0);
	must(!bind(door, (void *)&address, sizeof address) && !listen(door, 64), outside);
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			long client = accept(door, NULL, NULL);
			pthread_t thread;
			if (client >= 0) pthread_create(&thread, NULL, host_client, (void *)(client << 3 | number));
		}
	}
	work_until_input_ends(malloc);
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
	if (!strcmp(kind, "arguments")) arguments(argv[0]);
	setvbuf(stdout, NULL, _IONBF, 0);
	// The process must have a heap before memprof inspects it.
	static void *volatile first;
	first = malloc(1);
	(void)first;
	if (!strcmp(kind, "jvm-elsewhere")) jvm_elsewhere(argv[2], argv[3]);
	if (!strncmp(kind, "jvm", 3)) jvm(kind, argv[2]);
	if (!strcmp(kind, "library-swaps")) library_swaps(argv[2]);
	if (!strncmp(kind, "library", 7)) library(kind, argv[2], argv[3]);
	if (!strcmp(kind, "names")) names();
	if (!strcmp(kind, "mappings")) mappings();
	if (!strcmp(kind, "mapping-names")) mapping_names();
	if (!strcmp(kind, "sparse-mapping")) sparse_mapping();
	if (!strcmp(kind, "endless-libraries")) endless_libraries();
	if (!strncmp(kind, "perf-map", 8)) perf_map(kind, argv[2]);
	if (!strcmp(kind, "arguments-now")) work_until_input_ends(malloc);
	if (!strcmp(kind, "threads")) threads();
	if (!strncmp(kind, "host-", 5)) host(kind);
	if (!strcmp(kind, "heap")) heap(strtoul(argv[2], NULL, 10));
	return 2;
}
