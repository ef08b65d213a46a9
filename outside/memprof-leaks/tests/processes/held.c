/* held MODE: a program that loses LOST objects of LOST_SIZE bytes, and holds HELD objects of HELD_SIZE bytes only in the
   kind of memory, or of kernel object, that MODE names. Prints "ready PID" and echoes what it reads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { LOST = 7, LOST_SIZE = 5000, HELD = 50, HELD_SIZE = 1000, PAGE = 4096 };
static const int RW = PROT_READ | PROT_WRITE;

static uintptr_t table[HELD];
static volatile int is_ready;

static void fail(const char *what) { perror(what); exit(2); }
static void *check(void *mapped) { if (mapped == MAP_FAILED) fail("mmap"); return mapped; }

__attribute__((noinline)) static void *make(size_t size) { return memset(malloc(size), 0x11, size); }

/* Overwrites what calls before left below this frame, and in registers. */
__attribute__((noinline)) static void wipe(void) {
    volatile char rest[128 << 10];
    for (size_t i = 0; i < sizeof rest; i++) rest[i] = 0;
    __asm__ volatile("pxor %%xmm0,%%xmm0\n pxor %%xmm1,%%xmm1\n pxor %%xmm2,%%xmm2" ::: "rdx", "rsi", "rdi", "r8", "r9",
                     "r10", "r11", "xmm0", "xmm1", "xmm2");
}

__attribute__((noinline)) static void lose(void) {
    for (int i = 0; i < LOST; i++) { char *volatile lost = make(LOST_SIZE); lost[1] = 2; lost = 0; }
}

__attribute__((noinline)) static void fill(void *to) { for (int i = 0; i < HELD; i++) ((void *volatile *)to)[i] = make(HELD_SIZE); }

static void *map(size_t size, int flags, int fd) { return check(mmap(0, size, RW, flags, fd, 0)); }
static void *own(size_t size) { return map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1); }
static int memory_file(void) { int fd = memfd_create("held", 0); if (ftruncate(fd, PAGE)) fail("ftruncate"); return fd; }

static void in_shared(void) { fill(map(PAGE, MAP_SHARED | MAP_ANONYMOUS, -1)); }
static void in_shared_read_only(void) { void *to = map(PAGE, MAP_SHARED | MAP_ANONYMOUS, -1); fill(to); mprotect(to, PAGE, PROT_READ); }
static void in_shared_without_access(void) { void *to = map(PAGE, MAP_SHARED | MAP_ANONYMOUS, -1); fill(to); mprotect(to, PAGE, PROT_NONE); }
static void in_file(void) {
    char name[] = "heldXXXXXX"; int fd = mkstemp(name); unlink(name);
    if (ftruncate(fd, PAGE)) fail("ftruncate");
    fill(map(PAGE, MAP_SHARED, fd)); close(fd);
}
/* The first view is gone, the second one was never touched. */
static void in_second_view(void) {
    int fd = memory_file(); void *first = map(PAGE, MAP_SHARED, fd); map(PAGE, MAP_SHARED, fd);
    fill(first); munmap(first, PAGE); close(fd);
}
/* Only a child has touched the memory. */
static void in_untouched(void) {
    void *to = map(PAGE, MAP_SHARED | MAP_ANONYMOUS, -1); fill(table);
    if (fork() == 0) { memcpy(to, table, sizeof table); _exit(0); }
    wait(0); memset(table, 0, sizeof table);
}
static void in_unmapped_file(void) {
    int fd = memory_file(); void *to = map(PAGE, MAP_SHARED, fd); fill(to); munmap(to, PAGE);
}
/* Opening the file would send a signal that ends this process. */
static void in_leased_file(void) {
    char name[] = "/dev/shm/heldXXXXXX"; int fd = mkstemp(name); unlink(name);
    if (ftruncate(fd, PAGE)) fail("ftruncate");
    void *to = map(PAGE, MAP_SHARED, fd); fill(to); munmap(to, PAGE);
    if (fcntl(fd, F_SETLEASE, F_WRLCK)) fail("fcntl");
}
/* The pages of a private mapping that was not written to are those of the file. */
static void in_private_view(void) {
    int fd = memory_file(); void *first = map(PAGE, MAP_SHARED, fd); map(PAGE, MAP_PRIVATE, fd);
    fill(first); munmap(first, PAGE); close(fd);
}
static void in_system_v_memory(void) {
    int id = shmget(IPC_PRIVATE, PAGE, 0600); void *to = check(shmat(id, 0, 0)); shmctl(id, IPC_RMID, 0); fill(to);
}
static void in_dropped_page_tables(void) { void *to = map(PAGE, MAP_SHARED | MAP_ANONYMOUS, -1); fill(to); madvise(to, PAGE, MADV_DONTNEED); }
static void in_secret_memory(void) {
    int fd = syscall(SYS_memfd_secret, 0); if (fd < 0 || ftruncate(fd, PAGE)) fail("memfd_secret");
    fill(map(PAGE, MAP_SHARED, fd));
}

static void in_terminal(void) { int ends[2]; struct termios raw; if (openpty(&ends[0], &ends[1], 0, 0, 0) || tcgetattr(ends[1], &raw)) fail("openpty"); cfmakeraw(&raw); if (tcsetattr(ends[1], TCSANOW, &raw)) fail("tcsetattr"); fill(table); if (write(ends[0], table, sizeof table) < (ssize_t)sizeof table) fail("write"); memset(table, 0, sizeof table); }
static void in_pipe(void) { int ends[2]; if (pipe(ends)) fail("pipe"); fill(table); if (write(ends[1], "x", 1) + write(ends[1], table, sizeof table) < 2) fail("write"); memset(table, 0, sizeof table); }
static void send_table(int type, size_t piece) {
    int ends[2]; if (socketpair(AF_UNIX, type, 0, ends)) fail("socketpair");
    fill(table);
    for (size_t i = 0; i < HELD; i += piece) if (send(ends[0], table + i, piece * sizeof *table, 0) < 0) fail("send");
    memset(table, 0, sizeof table);
}
static void in_stream(void) { send_table(SOCK_STREAM, 10); }
static void in_datagram(void) { send_table(SOCK_DGRAM, HELD); }
static void in_datagrams(void) { send_table(SOCK_DGRAM, 10); }
static void in_message_queue(void) {
    struct { long type; void *held[HELD]; } message = {.type = 1};
    fill(message.held); msgsnd(msgget(IPC_PRIVATE, 0600), &message, sizeof message.held, 0); memset(&message, 0, sizeof message);
}
static void in_posix_queue(void) {
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = sizeof table};
    char name[32]; snprintf(name, sizeof name, "/held%d", getpid());
    mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &attributes); mq_unlink(name); fill(table);
    if (mq_send(queue, (char *)table, sizeof table, 0)) fail("mq_send");
    memset(table, 0, sizeof table);
}
static void in_eventfd(void) { for (int i = 0; i < HELD; i++) { int fd = eventfd(0, 0); uint64_t value = (uintptr_t)make(HELD_SIZE); if (write(fd, &value, 8) != 8) fail("write"); } }
static void block(void) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGRTMIN + 3); sigprocmask(SIG_BLOCK, &set, 0); }
static void in_signals(void) { block(); for (int i = 0; i < HELD; i++) sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_ptr = make(HELD_SIZE)}); }
static void *sleeps(void *unused) { wipe(); is_ready = 1; for (;;) pause(); return unused; }
static void start(pthread_attr_t *attributes) { is_ready = 0; pthread_t thread; pthread_create(&thread, attributes, sleeps, 0); while (!is_ready) sched_yield(); }
static void in_signals_of_thread(void) {
    block(); pthread_t thread; pthread_create(&thread, 0, sleeps, 0); while (!is_ready) sched_yield();
    for (int i = 0; i < HELD; i++) pthread_sigqueue(thread, SIGRTMIN + 3, (union sigval){.sival_ptr = make(HELD_SIZE)});
}
static void handle(int unused) { (void)unused; }
static void set_signal_stack(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK}; sigaction(SIGSEGV, &action, 0);
    stack_t stack = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10}; sigaltstack(&stack, 0); memset(&stack, 0, sizeof stack);
}
static void in_signal_stack(void) { set_signal_stack(); }
static void *sleeps_with_signal_stack(void *unused) { set_signal_stack(); return sleeps(unused); }
static void in_signal_stacks_of_threads(void) {
    for (int i = 0; i < 3; i++) { is_ready = 0; pthread_t thread; pthread_create(&thread, 0, sleeps_with_signal_stack, 0); while (!is_ready) sched_yield(); }
}
/* Only the kernel has the address of the area, as glibc's was given back. */
static void in_rseq_area(void) {
    enum { UNREGISTER = 1, SIZE = 32, SIGNATURE = 0x53053053 };
    char *own = (char *)__builtin_thread_pointer() + __rseq_offset, *area = make(HELD_SIZE);
    area += -(uintptr_t)area & 31; memset(area, 0, SIZE); memset(area + 4, -1, 4);
    if (syscall(SYS_rseq, own, SIZE, UNREGISTER, SIGNATURE) || syscall(SYS_rseq, area, SIZE, 0, SIGNATURE)) fail("rseq");
}
/* Another process has the only end at which the data can be read. */
static void in_socket_of_child(void) {
    int ends[2]; if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail("socketpair");
    fill(table);
    if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); close(ends[0]); for (;;) pause(); }
    close(ends[1]); if (send(ends[0], table, sizeof table, 0) < 0) fail("send");
    memset(table, 0, sizeof table);
}
/* A client has sent a request that nothing has read, and does not read the reply. */
static void in_socket_of_client(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX}; socklen_t size = sizeof(sa_family_t);
    int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listening, (struct sockaddr *)&address, size) || listen(listening, 1)) fail("listen");
    size = sizeof address; getsockname(listening, (struct sockaddr *)&address, &size);
    fill(table);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); int client = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(client, (struct sockaddr *)&address, size) || write(client, "request", 7) < 7) fail("connect");
        for (;;) pause();
    }
    int client = accept(listening, 0, 0); struct pollfd request = {.fd = client, .events = POLLIN};
    if (poll(&request, 1, -1) < 1 || send(client, table, sizeof table, 0) < 0) fail("send");
    memset(table, 0, sizeof table);
}
static void in_flight(void) {
    int ends[2], epoll = epoll_create1(0); if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail("socketpair");
    for (int i = 0; i < HELD; i++) { struct epoll_event event = {EPOLLIN, {.ptr = make(HELD_SIZE)}}; epoll_ctl(epoll, EPOLL_CTL_ADD, eventfd(0, 0), &event); }
    char control[CMSG_SPACE(4)] = {0}; struct iovec data = {"x", 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET; header->cmsg_type = SCM_RIGHTS; header->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(header), &epoll, 4); if (sendmsg(ends[1], &message, 0) < 0) fail("sendmsg");
    close(epoll);
}

enum { STACK = 256 << 10 };
/* A table below a thread's stack, in one mapping. */
static void below_stack(void) {
    char *memory = own(2 * STACK); fill(memory);
    pthread_attr_t attributes; pthread_attr_init(&attributes); pthread_attr_setstack(&attributes, memory + STACK, STACK); start(&attributes);
}
/* A table between the stacks of two threads. */
static void between_stacks(void) {
    char *memory = own(3 * STACK); fill(memory + STACK);
    pthread_attr_t attributes; pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, memory, STACK); start(&attributes);
    pthread_attr_setstack(&attributes, memory + 2 * STACK, STACK); start(&attributes);
}
/* The kernel merges the table's mapping with a stack without a guard page. */
static void below_unguarded_stack(void) {
    pthread_attr_t attributes; pthread_attr_init(&attributes); pthread_attr_setguardsize(&attributes, 0);
    pthread_attr_setstacksize(&attributes, STACK); start(&attributes); fill(own(PAGE));
}
/* A handler runs on a stack in the frame of a function that called the interrupted one. */
static void waits_in_handler(int unused) { (void)unused; wipe(); is_ready = 1; for (;;) pause(); }
__attribute__((noinline)) static void interrupted(void) { void *volatile held[HELD]; fill((void *)held); raise(SIGUSR2); table[0] = (uintptr_t)held[0]; }
static void *has_signal_stack(void *unused) {
    char stack[256 << 10] __attribute__((aligned(16)));
    struct sigaction action = {.sa_handler = waits_in_handler, .sa_flags = SA_ONSTACK}; sigaction(SIGUSR2, &action, 0);
    stack_t signal_stack = {.ss_sp = stack, .ss_size = sizeof stack}; sigaltstack(&signal_stack, 0);
    interrupted();
    return unused;
}
static void below_signal_stack(void) { pthread_t thread; pthread_create(&thread, 0, has_signal_stack, 0); while (!is_ready) sched_yield(); }
static char variables[2 * STACK] __attribute__((aligned(PAGE)));
static void in_variables_below_stack(void) {
    fill(variables); pthread_attr_t attributes; pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, variables + STACK, STACK); start(&attributes);
}
/* Only a process that shares the memory has the pointers, on a stack that this one has allocated for it. */
static int shares(void *stack) { prctl(PR_SET_PDEATHSIG, SIGKILL); fill((char *)stack + PAGE); memset(table, 0, sizeof table); is_ready = 1; for (;;) pause(); return 0; }
static void in_sharing_process(void) {
    char *stack = own(STACK); int child = clone(shares, stack + STACK, CLONE_VM | SIGCHLD, stack);
    if (child < 0) fail("clone");
    while (!is_ready) sched_yield();
}

/* Instructions that load an address each, as a compiler at run time writes them: 50 of 11 bytes, across pages. */
__attribute__((noinline)) static void generate(unsigned char *code) {
    for (int i = 0; i < HELD; i++, code += 11) { void *object = make(HELD_SIZE); code[0] = 0x48; code[1] = 0xB8; memcpy(code + 2, &object, 8); code[10] = 0xC3; }
}
static void in_code(void) { unsigned char *to = own(2 * PAGE); generate(to + PAGE - 203); mprotect(to, 2 * PAGE, RW | PROT_EXEC); }
static void in_code_read_only(void) { unsigned char *to = own(2 * PAGE); generate(to + PAGE - 203); mprotect(to, 2 * PAGE, PROT_READ | PROT_EXEC); }
static void in_code_at_a_block_end(void) { size_t size = 4 << 20; unsigned char *to = own(size); mprotect(to, size, RW | PROT_EXEC); for (size_t at = 64 << 10; at < size; at += 64 << 10) to[at] = 1; generate(to + (1 << 20) - 203); }
static void in_shared_code(void) { int fd = memory_file(); unsigned char *to = map(PAGE, MAP_SHARED, fd); generate(to + 1); munmap(to, PAGE); check(mmap(0, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0)); }
static void in_packed_events(void) { static struct epoll_event events[HELD]; for (int i = 0; i < HELD; i++) { events[i].events = 1; events[i].data.ptr = make(HELD_SIZE); } table[0] = (uintptr_t)events; }
static void in_packed_events_on_heap(void) { struct epoll_event *events = malloc(HELD * sizeof *events); for (int i = 0; i < HELD; i++) { events[i].events = 1; events[i].data.ptr = make(HELD_SIZE); } table[0] = (uintptr_t)events; }
/* Behind the last byte, where the next object's header is. */
static void by_end(void) { for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)make(HELD_SIZE) + HELD_SIZE; }
static void by_low_bits(void) { for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)make(HELD_SIZE) | (i & 7); }

/* Disguised pointers: a counter or a type in the upper bits, behind the address, and as glibc mangles. */
static void by_high_bits(void) { for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)make(HELD_SIZE) | (uintptr_t)(0xA00 + i) << 48; }
static void by_nan_box(void) { for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)make(HELD_SIZE) | (uintptr_t)0x1FFF5 << 47; }
static void by_shift(void) { for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)make(HELD_SIZE) << 16 | (i + 1); }
static void by_swapped_bytes(void) { for (int i = 0; i < HELD; i++) table[i] = __builtin_bswap64((uintptr_t)make(HELD_SIZE)); }
/* Each pointer lies in two of the blocks of 256 KiB in which memory is read, from behind an inaccessible page on. */
static void across_blocks(void) {
    enum { BLOCK = 256 << 10, SIZE = (HELD + 1) * BLOCK }; char *to = map(PAGE + SIZE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (mprotect(to, PAGE, PROT_NONE)) fail("mprotect");
    to += PAGE; memset(to, 1, SIZE);
    for (int i = 0; i < HELD; i++) { void *object = make(HELD_SIZE); memcpy(to + (i + 1) * BLOCK - 3, &object, sizeof object); }
}
/* A byte in front of each pointer, without a gap. */
static void by_packed_structs(void) {
    static struct __attribute__((packed)) { char kind; void *object; } packed[HELD];
    for (int i = 0; i < HELD; i++) { packed[i].kind = 0x7f; packed[i].object = make(HELD_SIZE); }
    table[0] = (uintptr_t)packed;
}
static void by_mangled(void) {
    uintptr_t guard; __asm__("mov %%fs:0x30, %0" : "=r"(guard));
    for (int i = 0; i < HELD; i++) { uintptr_t value = (uintptr_t)make(HELD_SIZE) ^ guard; table[i] = value << 17 | value >> 47; }
}
static void by_tagged_list(void) {
    uintptr_t head = 0; for (int i = 0; i < HELD; i++) { uintptr_t *node = make(HELD_SIZE); node[0] = head; head = (uintptr_t)node | (uintptr_t)(i + 1) << 48; }
    table[0] = head;
}
/* The list's nodes have their neighbours' addresses, XORed. */
static void by_xor_list(void) {
    uintptr_t *nodes[HELD + 2] = {0}; for (int i = 1; i <= HELD; i++) nodes[i] = make(HELD_SIZE);
    for (int i = 1; i <= HELD; i++) nodes[i][1] = (uintptr_t)nodes[i - 1] ^ (uintptr_t)nodes[i + 1];
    table[0] = (uintptr_t)nodes[1]; memset(nodes, 0, sizeof nodes);
}

/* Kept as an integer of Ruby and SBCL, of Guile, of CPython (digits of 30 bits), and as a number of JavaScript. */
static void by_integer_of_ruby(void) { for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)make(HELD_SIZE) << 1 | 1; }
static void by_integer_of_guile(void) { for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)make(HELD_SIZE) << 2 | 2; }
static void by_integer_of_python(void) { for (int i = 0; i < HELD; i++) { uintptr_t value = (uintptr_t)make(HELD_SIZE); table[i] = (value >> 30) << 32 | (value & 0x3fffffff); } }
static void by_double(void) { for (int i = 0; i < HELD; i++) { double value = (uintptr_t)make(HELD_SIZE); memcpy(&table[i], &value, sizeof value); } }

/* Frames of a suspended context, deeper in the main stack than where its thread runs on. */
static jmp_buf caller_jump, suspended_jump;
static ucontext_t caller_context, suspended_context;
__attribute__((noinline)) static void deeper(void (*suspend)(void)) {
    volatile char above[256 << 10]; memset((void *)above, 0, sizeof above); suspend(); table[1] = above[0];
}
__attribute__((noinline)) static void jump_out(void) {
    void *volatile held[HELD]; fill((void *)held); if (!setjmp(suspended_jump)) longjmp(caller_jump, 1);
    table[0] = (uintptr_t)held[0];
}
static void in_jumped_frames(void) { if (!setjmp(caller_jump)) deeper(jump_out); }
__attribute__((noinline)) static void swap_out(void) {
    void *volatile held[HELD]; fill((void *)held); swapcontext(&suspended_context, &caller_context);
    table[0] = (uintptr_t)held[0];
}
static void in_swapped_frames(void) {
    static volatile int is_back;
    if (getcontext(&caller_context)) fail("getcontext");
    if (is_back) return;
    is_back = 1; deeper(swap_out);
}

/* Descriptors that a thread alone has. */
static void *unshare_table(void *unused) {
    int pipes[2], epoll; if (unshare(CLONE_FILES) || pipe(pipes)) fail("unshare");
    epoll = epoll_create1(0);
    for (int i = 0; i < HELD; i++) {
        void *object = make(HELD_SIZE);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = object}; int timer = eventfd(0, 0);
        if (i % 2) { if (epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event)) fail("epoll_ctl"); }
        else if (write(pipes[1], &object, sizeof object) != sizeof object) fail("write");
        object = event.data.ptr = 0;
    }
    wipe(); is_ready = 1;
    for (;;) pause();
    return unused;
}
static void in_own_descriptors(void) {
    pthread_t thread; if (pthread_create(&thread, 0, unshare_table, 0)) fail("pthread_create");
    while (!is_ready) usleep(1000);
}

/* Shared memory that is detached, and may be attached again. */
static void in_detached_segment(void) {
    int id = shmget(IPC_PRIVATE, PAGE, 0600); void *to = shmat(id, 0, 0); if (to == (void *)-1) fail("shmat");
    fill(to); shmdt(to);
}

/* Objects of a second C library, each of which is in its own loader namespace, beside lost ones of the first. */
static void of_second_library(void) {
    void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW); if (!library) fail("dlmopen");
    void *(*allocate)(size_t) = dlsym(library, "malloc");
    for (int i = 0; i < HELD; i++) table[i] = (uintptr_t)memset(allocate(HELD_SIZE), 0x11, HELD_SIZE);
}
static void lost_of_second_library(void) { of_second_library(); table[0] = 0; }

static const struct { const char *name; void (*hold)(void); } modes[] = {
#define MODE(name) {#name, name},
    MODE(in_shared) MODE(in_shared_read_only) MODE(in_shared_without_access) MODE(in_file) MODE(in_second_view)
    MODE(in_untouched) MODE(in_unmapped_file) MODE(in_private_view) MODE(in_system_v_memory) MODE(in_dropped_page_tables) MODE(in_secret_memory)
    MODE(in_pipe) MODE(in_terminal) MODE(in_stream) MODE(in_datagram) MODE(in_datagrams) MODE(in_message_queue) MODE(in_posix_queue) MODE(in_eventfd)
    MODE(in_signals) MODE(in_signals_of_thread) MODE(in_signal_stack) MODE(in_signal_stacks_of_threads) MODE(in_flight)
    MODE(in_leased_file) MODE(in_rseq_area) MODE(in_socket_of_child) MODE(in_socket_of_client)
    MODE(below_stack) MODE(between_stacks) MODE(below_unguarded_stack) MODE(below_signal_stack) MODE(in_variables_below_stack) MODE(in_sharing_process)
    MODE(in_code) MODE(in_code_read_only) MODE(in_code_at_a_block_end) MODE(in_shared_code)
    MODE(in_packed_events) MODE(in_packed_events_on_heap) MODE(by_end) MODE(by_low_bits)
    MODE(by_high_bits) MODE(by_nan_box) MODE(by_shift) MODE(by_swapped_bytes) MODE(by_packed_structs) MODE(across_blocks) MODE(by_mangled) MODE(by_tagged_list) MODE(by_xor_list)
    MODE(by_integer_of_ruby) MODE(by_integer_of_guile) MODE(by_integer_of_python) MODE(by_double)
    MODE(of_second_library) MODE(lost_of_second_library) MODE(in_jumped_frames) MODE(in_swapped_frames)
    MODE(in_own_descriptors) MODE(in_detached_segment)
};

int main(int count, char **arguments) {
    free(malloc(30));
    lose();
    wipe();
    int found = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (count > 1 && !strcmp(arguments[1], modes[i].name)) { modes[i].hold(); found = 1; }
    if (!found) return 3;
    for (int i = 0; i < 40; i++) { void *volatile reused = malloc(HELD_SIZE); free(reused); }
    wipe();
    char text[256];
    ssize_t length = snprintf(text, sizeof text, "ready %d\n", getpid());
    do if (write(1, text, length) != length) return 1;
    while (wipe(), (length = read(0, text, sizeof text)) > 0);
}
