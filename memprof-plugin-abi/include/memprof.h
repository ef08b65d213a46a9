/* memprof.h: the contract between a host process and its plugins, ABI major 1.
 *
 * A plugin is a shared library that exports one constant, `memprof_plugin_entry`. A host loads
 * it, checks `abi_version` and `struct_size`, and calls `create`; it never unloads it.
 *
 * Ownership: every pointer is borrowed for the call, except the entry (which lives as long as
 * the process) and the host struct (from `create` until `destroy` returns). Neither side frees
 * memory of the other.
 * Threads: each function says in brackets which threads may call it. [control-thread]: one
 * thread at a time, chosen by the host. [thread-safe]: any thread, several at once. No function
 * may be called from a signal handler.
 * Text: UTF-8, not NUL-terminated.
 * Growth: structs are frozen within a major version; new functions are added as extensions,
 * requested by ids of the form `memprof.<name>/<n>`.
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

/* Defines the labels of a program or library (`memprof_labels_t`, with these two functions); use it once, at file
 * scope. Adds an ELF note with the owner `memprof` and the type 1, which contains the distance to the struct. */
#define MEMPROF_LABELS(place, key) \
    __attribute__((used)) static const memprof_labels_t memprof_labels __asm__("memprof_labels") = { \
        sizeof(memprof_labels_t), (place), (key)}; \
    __asm__(".pushsection .note.memprof, \"a\", %note\n\t.balign 4\n\t.long 8, 8, 1\n\t.asciz \"memprof\"\n\t" \
            ".quad memprof_labels - .\n\t.popsection")


// Major version of the ABI. Both sides reject another major version.
#define MEMPROF_ABI_MAJOR 1

// Minor version of the ABI, raised when a guarantee or an extension is added.
#define MEMPROF_ABI_MINOR 2

// Value of `abi_version` fields: `major << 16 | minor`.
#define MEMPROF_ABI_VERSION 65538

// Result of a call: 0 for success, a negative number for an error. The set is open: treat an unknown
// negative number as `MEMPROF_INTERNAL`. Numbers are never reused.
typedef int32_t memprof_status_t;

// A log level: 1 error, 2 warn, 3 info, 4 debug, 5 trace.
typedef uint32_t memprof_log_level_t;

// Borrowed UTF-8 text of `len` bytes, not NUL-terminated. `ptr` may be NULL when `len` is 0.
typedef struct {
  // First byte.
  const char *ptr;
  // Number of bytes.
  size_t len;
} memprof_str_t;

// Description of one message that a plugin handles. Names match exactly, by length and case.
typedef struct {
  // `sizeof(memprof_message_t)`.
  size_t struct_size;
  // Reserved; 0.
  uint64_t flags;
  // Name of the message.
  memprof_str_t name;
  // Arguments as a person would type them, for example `id=ID`; may be empty.
  memprof_str_t usage;
  // One sentence that says what the message does.
  memprof_str_t help;
} memprof_message_t;

// Writer of one reply. The host owns it; valid for the call only.
typedef struct {
  // `sizeof(memprof_reply_t)`.
  size_t struct_size;
  // Reserved; 0.
  uint64_t reserved;
  // Argument for the callbacks.
  void *ctx;
  // [same thread as the call] Sets the body's content type; at most once, before the first `write`.
  // Without it the body is `text/plain; charset=utf-8`.
  memprof_status_t (*begin)(void *ctx, memprof_str_t content_type);
  // [same thread as the call] Appends bytes to the body. After an error, further bytes are ignored.
  memprof_status_t (*write)(void *ctx, memprof_str_t chunk);
} memprof_reply_t;

// Functions of the host for its plugins. Valid from the start of `create` until `destroy` returns. No
// callback throws, and none calls the plugin. Only `get_extension` may be NULL.
typedef struct {
  // `sizeof(memprof_host_t)`.
  size_t struct_size;
  // `MEMPROF_ABI_VERSION` of the host.
  uint32_t abi_version;
  // Reserved; 0.
  uint32_t reserved;
  // Argument for the callbacks.
  void *ctx;
  // Name of the program.
  memprof_str_t name;
  // Version of the program; may be empty.
  memprof_str_t version;
  // [thread-safe] Returns 1 if a line of this level would be written, otherwise 0.
  int32_t (*log_enabled)(void *ctx, memprof_log_level_t level);
  // [thread-safe] Writes one line to the host's log. `target` names the part of the plugin that logs.
  void (*log)(void *ctx, memprof_log_level_t level, memprof_str_t target, memprof_str_t message);
  // [thread-safe] Returns the host's extension with this id, or NULL.
  const void *(*get_extension)(void *ctx, memprof_str_t id);
} memprof_host_t;

// Instance of a plugin; opaque to the host.
typedef void memprof_plugin_t;

// The one symbol that a plugin exports: constant data named `memprof_plugin_entry`. It and everything that
// it points to live as long as the process.
typedef struct {
  // `sizeof(memprof_plugin_entry_t)`.
  size_t struct_size;
  // `MEMPROF_ABI_VERSION` of the plugin.
  uint32_t abi_version;
  // Reserved; 0.
  uint32_t reserved;
  // Name of the plugin in messages and logs; unique in a host.
  memprof_str_t id;
  // Version of the plugin.
  memprof_str_t version;
  // Build information for bug reports; may be empty.
  memprof_str_t build_info;
  // `message_count` pointers to the messages that the plugin handles.
  const memprof_message_t *const *messages;
  // Number of messages.
  size_t message_count;
  // [control-thread] Creates the instance and stores it in `*plugin`. Only one instance per process exists
  // at a time, so state may be in static variables. `config` is the text of the plugin's TOML table. On
  // failure log the reason at error level before returning: the host repeats it to every sender of a
  // message to this plugin.
  memprof_status_t (*create)(const memprof_host_t *host,
                             memprof_str_t config,
                             memprof_plugin_t **plugin);
  // [thread-safe] Handles one message; may be called on several threads at once. `args` are `key=value`
  // words. On an error, still writes a body that explains it. The thread is the program's own, or one of a
  // control socket: that has 1 MiB of stack and every signal blocked, which children that are started
  // there inherit unless their mask is set (sigprocmask after fork, `POSIX_SPAWN_SETSIGMASK`). No
  // exception, `longjmp` or `pthread_exit` may leave the call.
  memprof_status_t (*handle_message)(memprof_plugin_t *plugin,
                                     memprof_str_t name,
                                     memprof_str_t args,
                                     const memprof_reply_t *reply);
  // [control-thread] Destroys the instance. No call is running, and none follows.
  void (*destroy)(memprof_plugin_t *plugin);
  // [thread-safe] Returns the plugin's extension with this id, or NULL.
  const void *(*get_extension)(memprof_plugin_t *plugin, memprof_str_t id);
} memprof_plugin_entry_t;

// Callback of `malloc_stats_print`.
typedef void (*memprof_stats_callback_t)(void *opaque, const char *text);

// Host extension `memprof.jemalloc/1`: the HOST's own jemalloc functions (jemalloc(3)), with any prefix.
// `struct_size` must be set; the functions must live as long as the process.
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

// Host extension `memprof.reply_fd/1` (since ABI 1.1): a reply whose body is a file, which is passed without
// a copy. To a host without it, write the bytes by `memprof_reply_t.write`. `struct_size` must be set; the
// function must live as long as the process.
typedef struct {
  // `sizeof(memprof_reply_fd_t)`.
  size_t struct_size;
  // [same thread as the call] The complete body is the first `size` bytes of the file `fd`, with no
  // `begin` and no `write` before or after it. `ctx` is that of the `memprof_reply_t`. The file is a
  // regular one that is open for reading only, or a sealed memfd, and does not change any more. The
  // descriptor is borrowed for the call: the host duplicates it. Returns `MEMPROF_INVALID_ARGUMENT` if the
  // file is neither of these, `MEMPROF_IO` if the host has no descriptor left; the body is then empty, and
  // can still be written.
  memprof_status_t (*file)(void *ctx, int fd, uint64_t size, memprof_str_t content_type);
} memprof_reply_fd_t;

// Plugin extension `memprof.threads/1` (since ABI 1.1): prepares a thread that the host runs only for its
// plugins, such as those of a control socket; a profiler excludes it from the profile. `struct_size` must be
// set; the function must live as long as the process.
typedef struct {
  // `sizeof(memprof_threads_t)`.
  size_t struct_size;
  // [thread-safe] Called on such a thread before the host allocates anything there, and again before each
  // message. Must not allocate.
  void (*enter)(memprof_plugin_t *plugin);
} memprof_threads_t;

// The labels of a program's threads (since ABI 1.2): they say for which work a thread runs, and a profiler
// records them with each sample. Not an extension with an id, because programs that host no plugin have
// labels too: a program or library points to its constant of this type in an ELF note, as `MEMPROF_LABELS`
// does. `struct_size` must be set; the functions must live as long as the process. The static library of
// `memprof_host.h` has one, for `memprof_label_push`.
typedef struct {
  // `sizeof(memprof_labels_t)`.
  size_t struct_size;
  // [thread-safe] Address of the calling thread's pointer to its record: a thread-local variable of the
  // library with the note, at the same offset in each thread. It is read inside of `malloc`. NULL: no
  // labels. The record is that of OpenTelemetry's thread context (OTEP 4947), and must be readable as long
  // as the pointer points to it: 16 and 8 bytes that are not read · valid, 1 byte, 1 · flags, 1 byte ·
  // length of the rest, 2 bytes · for each label the number of its key, 1 byte, the length of its value, 1
  // byte, and the value.
  const void *const *(*place)(void);
  // [thread-safe] Number of a key, 0 to 254, assigned at its first use and constant for the life of the
  // process. A negative status if no number is left.
  int32_t (*key)(memprof_str_t key);
} memprof_labels_t;

// Success.
#define MEMPROF_OK 0

// The plugin has no message of this name.
#define MEMPROF_UNKNOWN_MESSAGE -1

// An argument is malformed, unknown or out of range.
#define MEMPROF_INVALID_ARGUMENT -2

// This allocator or build does not support it.
#define MEMPROF_UNSUPPORTED -3

// Host and plugin were built for different versions of this contract.
#define MEMPROF_ABI_MISMATCH -4

// An operation that excludes this one is running; try again.
#define MEMPROF_BUSY -5

// The allocator refused.
#define MEMPROF_ALLOCATOR -6

// The plugin panicked; the panic was caught.
#define MEMPROF_PANIC -7

// Any other failure.
#define MEMPROF_INTERNAL -8

// It is supported, but not in this process as it was started.
#define MEMPROF_UNAVAILABLE -9

// The operating system refused (file, directory, thread).
#define MEMPROF_IO -10

// Failure of a requested operation.
#define MEMPROF_LOG_ERROR 1

// A likely problem.
#define MEMPROF_LOG_WARN 2

// Information for operators.
#define MEMPROF_LOG_INFO 3

// Details for developers of the plugin.
#define MEMPROF_LOG_DEBUG 4

// Details for developers of the plugin, in large amounts.
#define MEMPROF_LOG_TRACE 5

#ifdef __cplusplus
#define MEMPROF_STR(text) (memprof_str_t MEMPROF_STR_INIT(text))
extern "C" {
#endif
/* Defined by the plugin only. */
extern MEMPROF_EXPORT const memprof_plugin_entry_t memprof_plugin_entry;
#ifdef __cplusplus
}
#endif

#endif /* MEMPROF_H */
