/* memprof.h: the contract between a host process and its plugins, ABI major 1.
 *
 * A plugin is a shared library that exports one constant, `memprof_plugin_entry`. A host loads
 * it, checks `abi_version` and `struct_size`, and calls `create`; it never unloads it.
 *
 * Ownership: every pointer is borrowed for the call, except the entry (which lives as long as
 * the process) and the host struct (from `create` until `destroy` returns). Nobody frees the
 * other side's memory.
 * Threads: each function says in brackets who may call it. [control-thread]: one thread at a
 * time, chosen by the host. [thread-safe]: any thread, several at once. Nothing may be called
 * from a signal handler.
 * Text: UTF-8, not NUL-terminated.
 * Growth: structs are frozen within a major version; new functions come as extensions, asked
 * for by ids of the form `memprof.<name>/<n>`.
 *
 * Link a plugin with -Wl,-z,nodelete and -Wl,-Bsymbolic.
 * Generated from memprof-plugin-abi/src/raw.rs; do not edit. */

#ifndef MEMPROF_H
#define MEMPROF_H


#include <stddef.h>
#include <stdint.h>

/* Text from a string literal: in an initializer, and as an expression (C99; C++ as a function). */
#define MEMPROF_STR_INIT(text) { (text), sizeof(text) - 1 }
#ifndef __cplusplus
#define MEMPROF_STR(text) ((memprof_str_t)MEMPROF_STR_INIT(text))
#endif

#if defined(__GNUC__)
#define MEMPROF_EXPORT __attribute__((visibility("default")))
#else
#define MEMPROF_EXPORT
#endif

/* At file scope, once in a program or library: it has labels (`memprof_labels_t`, with these two functions). An
 * ELF note tells it, with the owner `memprof` and the type 1, which holds the distance to the struct. */
#define MEMPROF_LABELS(place, key) \
    __attribute__((used)) static const memprof_labels_t memprof_labels __asm__("memprof_labels") = { \
        sizeof(memprof_labels_t), (place), (key)}; \
    __asm__(".pushsection .note.memprof, \"a\", %note\n\t.balign 4\n\t.long 8, 8, 1\n\t.asciz \"memprof\"\n\t" \
            ".quad memprof_labels - .\n\t.popsection")


// The ABI's major version. Another major is refused by both sides.
#define MEMPROF_ABI_MAJOR 1

// The ABI's minor version: raised when a promise or an extension is added.
#define MEMPROF_ABI_MINOR 2

// `major << 16 | minor`: what `abi_version` fields hold.
#define MEMPROF_ABI_VERSION 65538

// The outcome of a call: 0 is success, a negative number an error. The set is open: treat an
// unknown negative number as `MEMPROF_INTERNAL`. Numbers are never reused.
typedef int32_t memprof_status_t;

// A log level: 1 error, 2 warn, 3 info, 4 debug, 5 trace.
typedef uint32_t memprof_log_level_t;

// Borrowed UTF-8 text of `len` bytes, not NUL-terminated. `ptr` may be NULL when `len` is 0.
typedef struct {
  // The first byte.
  const char *ptr;
  // The number of bytes.
  size_t len;
} memprof_str_t;

// One message that a plugin answers. Names match exactly, by length and case.
typedef struct {
  // `sizeof(memprof_message_t)`.
  size_t struct_size;
  // 0; reserved.
  uint64_t flags;
  // The message's name.
  memprof_str_t name;
  // Its arguments as a person would type them, for example `id=ID`; may be empty.
  memprof_str_t usage;
  // One sentence that says what it does.
  memprof_str_t help;
} memprof_message_t;

// Where a plugin writes its reply. The host owns it; it lives as long as the call.
typedef struct {
  // `sizeof(memprof_reply_t)`.
  size_t struct_size;
  // 0; reserved.
  uint64_t reserved;
  // Passed back to the callbacks.
  void *ctx;
  // [same thread as the call] Names the body's content type; at most once, before the first
  // `write`. Without it the body is `text/plain; charset=utf-8`.
  memprof_status_t (*begin)(void *ctx, memprof_str_t content_type);
  // [same thread as the call] Appends bytes to the body. After an error further bytes are
  // dropped.
  memprof_status_t (*write)(void *ctx, memprof_str_t chunk);
} memprof_reply_t;

// What a host offers its plugins. Valid from the start of `create` until `destroy` returns.
// No callback throws, and none of them calls the plugin back. Only `get_extension` may be NULL.
typedef struct {
  // `sizeof(memprof_host_t)`.
  size_t struct_size;
  // `MEMPROF_ABI_VERSION` of the host.
  uint32_t abi_version;
  // 0; reserved.
  uint32_t reserved;
  // Passed back to the callbacks.
  void *ctx;
  // The program's name.
  memprof_str_t name;
  // The program's version; may be empty.
  memprof_str_t version;
  // [thread-safe] 1 when a line of this level would be written, else 0.
  int32_t (*log_enabled)(void *ctx, memprof_log_level_t level);
  // [thread-safe] Writes one line to the host's log. `target` names the part that speaks.
  void (*log)(void *ctx, memprof_log_level_t level, memprof_str_t target, memprof_str_t message);
  // [thread-safe] The host's extension of that id, or NULL.
  const void *(*get_extension)(void *ctx, memprof_str_t id);
} memprof_host_t;

// An instance of a plugin: opaque to the host.
typedef void memprof_plugin_t;

// The one symbol that a plugin exports, as constant data named `memprof_plugin_entry`.
// It and all that it points to live as long as the process.
typedef struct {
  // `sizeof(memprof_plugin_entry_t)`.
  size_t struct_size;
  // `MEMPROF_ABI_VERSION` of the plugin.
  uint32_t abi_version;
  // 0; reserved.
  uint32_t reserved;
  // The plugin's name in messages and logs, unique in a host.
  memprof_str_t id;
  // The plugin's version.
  memprof_str_t version;
  // How it was built, for a bug report; may be empty.
  memprof_str_t build_info;
  // `message_count` pointers to the messages that it answers.
  const memprof_message_t *const *messages;
  // The number of messages.
  size_t message_count;
  // [control-thread] Makes the instance and stores it in `*plugin`: one at a time in a process, so that
  // state may lie in static variables. `config` is the text of
  // the plugin's TOML table. On failure log the reason at error level before returning: the
  // host repeats it to everyone who sends this plugin a message.
  memprof_status_t (*create)(const memprof_host_t *host,
                             memprof_str_t config,
                             memprof_plugin_t **plugin);
  // [thread-safe] Answers one message; may be called on several threads at once.
  // `args` are `key=value` words. An error still writes a body that explains it.
  // The thread is the program's own, or one of a control socket: that has 1 MiB of stack and every
  // signal blocked, which children that are started there inherit unless their mask is set (sigprocmask
  // after fork, `POSIX_SPAWN_SETSIGMASK`). No exception, `longjmp` or `pthread_exit` may leave the call.
  memprof_status_t (*handle_message)(memprof_plugin_t *plugin,
                                     memprof_str_t name,
                                     memprof_str_t args,
                                     const memprof_reply_t *reply);
  // [control-thread] Ends the instance. No call is running and none follows.
  void (*destroy)(memprof_plugin_t *plugin);
  // [thread-safe] The plugin's extension of that id, or NULL.
  const void *(*get_extension)(memprof_plugin_t *plugin, memprof_str_t id);
} memprof_plugin_entry_t;

// The callback of `malloc_stats_print`.
typedef void (*memprof_stats_callback_t)(void *opaque, const char *text);

// Host extension `memprof.jemalloc/1`: the HOST's own jemalloc functions (jemalloc(3)), whatever
// prefix they were built with. `struct_size` must be set; the functions must live as long as
// the process.
typedef struct {
  // `sizeof(memprof_jemalloc_t)`.
  size_t struct_size;
  // `mallctl`.
  int (*mallctl)(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
  // `mallctlnametomib`.
  int (*mallctlnametomib)(const char *name, size_t *mibp, size_t *miblenp);
  // `mallctlbymib`.
  int (*mallctlbymib)(const size_t *mib,
                      size_t miblen,
                      void *oldp,
                      size_t *oldlenp,
                      void *newp,
                      size_t newlen);
  // `malloc_stats_print`.
  void (*malloc_stats_print)(memprof_stats_callback_t write, void *opaque, const char *opts);
} memprof_jemalloc_t;

// Host extension `memprof.reply_fd/1` (since ABI 1.1): a reply whose body is a file, which is
// passed on without a copy. A host that lacks it takes the bytes by `memprof_reply_t.write`.
// `struct_size` must be set; the function must live as long as the process.
typedef struct {
  // `sizeof(memprof_reply_fd_t)`.
  size_t struct_size;
  // [same thread as the call] The whole body is the first `size` bytes of the file `fd`; no
  // `begin` and no `write` before or after it. `ctx` is that of the `memprof_reply_t`. The file
  // is a regular one that is open for reading only, or a sealed memfd; nobody writes to it any
  // more. The descriptor is borrowed for the call: the host duplicates it.
  // `MEMPROF_INVALID_ARGUMENT` when the file is none of these, `MEMPROF_IO` when the host has
  // no descriptor left; the body is empty then, and can still be written.
  memprof_status_t (*file)(void *ctx, int fd, uint64_t size, memprof_str_t content_type);
} memprof_reply_fd_t;

// Plugin extension `memprof.threads/1` (since ABI 1.1): what a plugin does on a thread that the
// host runs only for its plugins, such as those of a control socket: a profiler leaves it out of the
// profile. `struct_size` must be set; the function must live as long as the process.
typedef struct {
  // `sizeof(memprof_threads_t)`.
  size_t struct_size;
  // [thread-safe] Called on such a thread before the host allocates anything there, and again
  // before each message. Allocates nothing.
  void (*enter)(memprof_plugin_t *plugin);
} memprof_threads_t;

// The labels of a program's threads (since ABI 1.2): whose work a thread does, which a profiler tells of
// each sample. Not asked for by an id, because programs that host nothing have labels too: a program or
// library tells of its constant of this type in an ELF note, as `MEMPROF_LABELS` does. `struct_size` must be
// set; the functions must live as long as the process. The static library of `memprof_host.h` has
// one, for `memprof_label_push`.
typedef struct {
  // `sizeof(memprof_labels_t)`.
  size_t struct_size;
  // [thread-safe] Where the calling thread has a pointer to its record: a thread-local variable
  // of the library that has the note, at the same offset in each thread. It is read in the
  // midst of `malloc`. NULL: no labels. The record is that of OpenTelemetry's thread context
  // (OTEP 4947), and can be read for as long as the pointer leads to it: 16 and 8 bytes that
  // are not read · valid, 1 byte, 1 · flags, 1 byte · length of what follows, 2 bytes · for each
  // label the number of its key, 1 byte, the length of its value, 1 byte, and the value.
  const void *const *(*place)(void);
  // [thread-safe] The number of a key, 0 to 254, for as long as the process lives; made where
  // the key is new. A negative status where there is no number left.
  int32_t (*key)(memprof_str_t key);
} memprof_labels_t;

// Success.
#define MEMPROF_OK 0

// The plugin has no message of that name.
#define MEMPROF_UNKNOWN_MESSAGE -1

// An argument is malformed, unknown or out of range.
#define MEMPROF_INVALID_ARGUMENT -2

// This allocator or build cannot do it.
#define MEMPROF_UNSUPPORTED -3

// The two sides were built for different versions of this contract.
#define MEMPROF_ABI_MISMATCH -4

// Something that excludes this call is running; try again.
#define MEMPROF_BUSY -5

// The allocator refused.
#define MEMPROF_ALLOCATOR -6

// The plugin panicked; the panic was contained.
#define MEMPROF_PANIC -7

// Any other failure.
#define MEMPROF_INTERNAL -8

// It could work, but not in this process as it was started.
#define MEMPROF_UNAVAILABLE -9

// The operating system refused (file, directory, thread).
#define MEMPROF_IO -10

// The host or the plugin cannot do something it was asked to do.
#define MEMPROF_LOG_ERROR 1

// Something is likely wrong.
#define MEMPROF_LOG_WARN 2

// Something an operator wants to know.
#define MEMPROF_LOG_INFO 3

// For the developer of the plugin.
#define MEMPROF_LOG_DEBUG 4

// For the developer of the plugin, in bulk.
#define MEMPROF_LOG_TRACE 5

#ifdef __cplusplus
#define MEMPROF_STR(text) (memprof_str_t MEMPROF_STR_INIT(text))
extern "C" {
#endif
/* Defined by a plugin, and by nobody else. */
extern MEMPROF_EXPORT const memprof_plugin_entry_t memprof_plugin_entry;
#ifdef __cplusplus
}
#endif

#endif /* MEMPROF_H */
