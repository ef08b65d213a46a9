/* memprof.h: the contract between a host process and its plugins, ABI major 1.
 *
 * A plugin is a shared library that exports one constant, `memprof_plugin_entry`. A host loads it, checks it, calls
 * `create` once, then `handle_message` for each message, and `destroy` at its end. This contract has the number 1; its
 * sentences bind hosts and plugins alike.
 *
 * **Threads.** Each function says in brackets which threads may call it. [control-thread]: one thread at a time, which
 * the host chooses; `create` and `destroy` may come on different ones. [thread-safe]: any thread, several at once, also
 * for the same message. [same thread as the call]: the thread that handles the message, until it returns. Nothing may
 * be called from a signal handler. `create`, `destroy` and messages come on threads of the program, with their stack,
 * signals and privileges, or on memprof's: those of the control socket, and in a foreign server the one that starts the
 * plugin. A thread of memprof's has at least 1 MiB of stack for the plugin and blocks all signals, which children that
 * a plugin starts there inherit unless their mask is set (`POSIX_SPAWN_SETSIGMASK`, or sigprocmask(2) after fork). In a
 * host that memprof-host or `memprof_host.h` started, it has the program's privileges; in a foreign server and in a
 * process that was attached to, only those that memory_profile needs. A plugin that a host's own threads call first
 * (`memprof.threads/1`) learns which they are.
 *
 * **Calls.** While it handles a message, a plugin may block, and start threads and processes; the sender waits, and the
 * sender's timeout does not end the handler. On Redis, Mosquitto, Lua, PostgreSQL and Node (`send`, `call`) the caller
 * is the server's own thread, which serves no other client meanwhile. A plugin may call every callback of the host from
 * any of its threads, also inside `create`, until `destroy` returns. No callback calls the plugin. A program may send a
 * message from inside its log callback; a plugin must then hold no lock while it logs. No exception, panic, `longjmp`
 * or `pthread_exit` may leave a function of either side: the program ends, and the host's last line names the plugin.
 * The Rust SDK catches panics, and does not compile with `panic = "abort"`.
 *
 * **Lifetime.** One library has one instance in a process at a time, whatever paths lead to it, so its state may be
 * static. `destroy` comes when no call is running; the plugin joins its threads there, because afterwards no callback
 * is valid. A later `create` in the same process starts anew. The library is never unloaded: link it with
 * `-Wl,-z,nodelete` (Rust's SDK does the same at run time), because threads and thread-local destructors of an unloaded
 * library crash. Link a plugin in C with `-Wl,-Bsymbolic` too, and hide all but the entry (`-fvisibility=hidden`), so
 * that a program's function of the same name is not called in place of the plugin's. After fork(2) the child has the
 * instance, but none of the plugin's threads; a plugin with locks guards them by `pthread_atfork(3)`. A host that is
 * started in the child calls `create` there, although the parent's instance was not destroyed.
 *
 * **Replacing a plugin.** Replace the file by rename, never in place: the old one is mapped. The new code runs after a
 * restart of the process. Loaded again before that, under the same name, it is refused ("an older file of that name is
 * loaded"); under another name it is another library.
 *
 * **Memory.** Every pointer is borrowed for the call, except the entry and all that it points to, which live as long as
 * the process, and the host struct, which lives from `create` until `destroy` returns. Neither side frees memory of the
 * other. Text is UTF-8, has a length and no NUL at its end; `ptr` may be NULL where the length is 0.
 *
 * **Names.** A plugin's id has at most 64 ASCII letters, digits and `_`, a letter first: people type it, and foreign
 * servers make the names of commands and functions of it. Names of messages may have `-` and `.` too. A host may
 * accept other names, and then warns; it refuses an id with blanks or control characters, and the second of two plugins
 * with one id.
 *
 * **Messages.** Names match exactly, by length and case. Arguments are `key=value`, separated by blanks; a value with
 * blanks is quoted, `key="two words"`, with `\"` and `\\` inside of quotes. A message of the control socket has at most
 * 4096 bytes, with JSON around it; one of a foreign server the same; one that a program sends by its host has no limit.
 * A plugin without a message `help` gets one by memprof's hosts: it lists the messages with their usage and help.
 *
 * **Replies.** A body that is written has at most 16 MiB, and then `write` fails with `MEMPROF_IO`; the host answers an
 * error in place of a body with a hole. A larger body is passed as a file (`memprof.reply_fd/1`). A reply is of one of
 * two forms: any text or bytes with their content type, which is printable ASCII; or a JSON object with `status`
 * (`"ok"` or `"error"`), `text` (for people; a bus that only prints, prints this) and, on errors, `error` with `kind`,
 * `message` and `remedy`. The Rust SDK and the functions at the end of memprof.h write the second form for errors. The
 * status that `handle_message` returns decides whether it is an error; an error without a body gets a text by the host;
 * a positive one counts as `MEMPROF_INTERNAL`.
 *
 * **Errors.** `create` logs the reason of a failure at level error as its last line: the host repeats it to every sender
 * of a message to this plugin, and runs on. Status numbers are an open set and are never reused; treat an unknown negative
 * number as `MEMPROF_INTERNAL`. A host that has no plugin of a name says `MEMPROF_UNKNOWN_PLUGIN`; a plugin that has no
 * message of a name says `MEMPROF_UNKNOWN_MESSAGE` and lists those that it has.
 *
 * **Logging.** A record is one line: control characters are escaped. Its target is the plugin's id, whatever part of
 * the plugin logs; memprof's hosts put it in place of any other. Ask `log_enabled` before a line that is expensive to
 * make; a host drops a line whose level is off. A plugin prints nothing: stdout and stderr are the program's, and may
 * be closed.
 *
 * **Config.** `create` gets the text of the plugin's TOML table, on the lines that it has in the host's file, so that the
 * numbers in a parser's errors are true. Refuse unknown keys: a typo must not be silent.
 *
 * **Versions.** `abi_version` is `major << 16 | minor`. Both sides refuse another major. Structs never change within a
 * major; a minor adds extensions (`memprof.NAME/N`, by `get_extension`), status numbers and promises. So a plugin of any
 * 1.x runs in a host of any 1.y; it asks for an extension, and does without it where the answer is NULL. memprof's own
 * version may be 0.x: this contract does not follow it. The Rust crate memprof-plugin-abi stays at 0.1 as long as the
 * major is 1; a host in Rust also compares the layouts before the first call.
 *
 * **A plugin** gives an id, `create` and `handle_message`; `destroy` and `get_extension` may be NULL, and so may the
 * instance that `create` stores.
 *
 * **A host** loads only a file that it trusts, by an absolute path; checks `struct_size` and `abi_version` first; gives
 * every callback, also `begin` and `write` of a reply: only its `get_extension` may be NULL; calls `create` before any
 * message and `destroy` after the last one; and survives that a plugin is refused. It may assume that a plugin writes to
 * nothing but its own memory and its reply.
 *
 * Generated from memprof-plugin-abi's CONTRACT.md, src/raw.rs and src/helpers.h; do not edit. */

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
#define MEMPROF_ABI_MINOR 3

// Value of `abi_version` fields: `major << 16 | minor`.
#define MEMPROF_ABI_VERSION 65539

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

// Writer of one reply. The host owns it; valid for the call only. Neither callback may be NULL.
typedef struct {
  // `sizeof(memprof_reply_t)`.
  size_t struct_size;
  // Reserved; 0.
  uint64_t reserved;
  // Argument for the callbacks.
  void *ctx;
  // [same thread as the call] Sets the body's content type; at most once, before the first `write`.
  // Without it the body is `text/plain; charset=utf-8`. Returns `MEMPROF_INVALID_ARGUMENT` if it is not
  // printable ASCII, `MEMPROF_INTERNAL` if the reply has begun.
  memprof_status_t (*begin)(void *ctx, memprof_str_t content_type);
  // [same thread as the call] Appends bytes to the body. Returns `MEMPROF_IO` if the body would have more
  // than 16 MiB, or if there is no memory for it. After an error, further bytes are refused with the same.
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
  // [thread-safe] Writes one line to the host's log. `target` is the plugin's id.
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
  // Name of the plugin in messages and logs; unique in a host. At most 64 ASCII letters, digits and `_`, a
  // letter first.
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
  // failure log the reason at error level as the last line: the host repeats it to every sender of a
  // message to this plugin.
  memprof_status_t (*create)(const memprof_host_t *host,
                             memprof_str_t config,
                             memprof_plugin_t **plugin);
  // [thread-safe] Handles one message; may be called on several threads at once. `args` are `key=value`
  // words. On an error, still writes a body that explains it. The thread is the program's own, or one of a
  // control socket: that has at least 1 MiB of stack for the plugin and blocks all signals, which children
  // that are started there inherit unless their mask is set (`POSIX_SPAWN_SETSIGMASK`, or sigprocmask(2)
  // after fork). No exception, panic, `longjmp` or `pthread_exit` may leave the call.
  memprof_status_t (*handle_message)(memprof_plugin_t *plugin,
                                     memprof_str_t name,
                                     memprof_str_t args,
                                     const memprof_reply_t *reply);
  // [control-thread] Destroys the instance. No call is running, and none follows. May be NULL.
  void (*destroy)(memprof_plugin_t *plugin);
  // [thread-safe] Returns the plugin's extension with this id, or NULL. May be NULL.
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
  // file is neither of these or shorter, or the content type is not printable ASCII, `MEMPROF_IO` if the
  // host has no descriptor left: the body is then empty, and can still be written. `MEMPROF_INTERNAL` if
  // the reply has begun.
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

// The host has no plugin of this name: a host says so to its program, no plugin does (since ABI 1.3).
#define MEMPROF_UNKNOWN_PLUGIN -11

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

/* Functions for plugins in C and C++, which use the struct above and nothing else. Define MEMPROF_NO_HELPERS to leave
 * them out. */
#ifndef MEMPROF_NO_HELPERS
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__GNUC__)
#define MEMPROF_FORMAT(text, first) __attribute__((format(printf, text, first), unused))
#define MEMPROF_UNUSED __attribute__((unused))
#else
#define MEMPROF_FORMAT(text, first)
#define MEMPROF_UNUSED
#endif

/* A message with its usage and help, to initialize a `static const memprof_message_t`. */
#define MEMPROF_MESSAGE(name, usage, help) \
    { sizeof(memprof_message_t), 0, MEMPROF_STR_INIT(name), MEMPROF_STR_INIT(usage), MEMPROF_STR_INIT(help) }

/* Defines the entry of a plugin; use it once, at file scope. After the functions come pointers to the messages. */
#define MEMPROF_PLUGIN(id, version, create, handle_message, destroy, ...) \
    static const memprof_message_t *const memprof_plugin_messages[] = {__VA_ARGS__}; \
    const memprof_plugin_entry_t memprof_plugin_entry = { \
        sizeof(memprof_plugin_entry_t), MEMPROF_ABI_VERSION, 0, MEMPROF_STR_INIT(id), MEMPROF_STR_INIT(version), \
        MEMPROF_STR_INIT(""), memprof_plugin_messages, \
        sizeof(memprof_plugin_messages) / sizeof(memprof_plugin_messages[0]), create, handle_message, destroy, 0}

/* Whether two texts are equal; `other` ends with NUL. */
MEMPROF_UNUSED static inline int memprof_is(memprof_str_t text, const char *other) {
    return text.len == strlen(other) && (text.len == 0 || memcmp(text.ptr, other, text.len) == 0);
}

/* Length of a text of `len` bytes that is cut to at most `max` bytes: before a character of UTF-8, not within. */
MEMPROF_UNUSED static inline size_t memprof_cut(const char *text, size_t len, size_t max) {
    if (len <= max) return len;
    while (max > 0 && ((unsigned char)text[max] & 0xc0) == 0x80) max--;
    return max;
}

/* Formats as vsnprintf(3), and cuts a longer text as memprof_cut does. Returns the length. */
MEMPROF_UNUSED static inline size_t memprof_format(char *text, size_t size, const char *format, va_list values) {
    int len = vsnprintf(text, size, format, values);
    size_t end = len < 0 ? 0 : (size_t)len;
    if (end >= size) end = memprof_cut(text, end, size - 2);
    text[end] = 0;
    return end;
}

/* Writes a line to the host's log. A longer line than 1 KiB is cut. */
MEMPROF_FORMAT(3, 4)
static inline void memprof_log(const memprof_host_t *host, memprof_log_level_t level, const char *format, ...) {
    char text[1024];
    memprof_str_t line;
    va_list values;
    if (!host->log_enabled(host->ctx, level)) return;
    va_start(values, format);
    line.len = memprof_format(text, sizeof text, format, values);
    va_end(values);
    line.ptr = text;
    host->log(host->ctx, level, memprof_plugin_entry.id, line);
}

/* Appends a text that ends with NUL to the body. */
MEMPROF_UNUSED static inline memprof_status_t memprof_write(const memprof_reply_t *reply, const char *text) {
    memprof_str_t chunk;
    chunk.ptr = text;
    chunk.len = strlen(text);
    return reply->write ? reply->write(reply->ctx, chunk) : MEMPROF_OK;
}

/* Appends a text that ends with NUL to the body, escaped for a string of JSON, without the quotes. */
MEMPROF_UNUSED static inline memprof_status_t memprof_write_json(const memprof_reply_t *reply, const char *text) {
    char out[256];
    size_t len = 0;
    memprof_status_t status = MEMPROF_OK;
    for (; *text && status == MEMPROF_OK; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20) len += (size_t)snprintf(out + len, 7, "\\u%04x", c);
        else {
            if (c == '"' || c == '\\') out[len++] = '\\';
            out[len++] = (char)c;
        }
        if (len > sizeof out - 8 || !text[1]) {
            out[len] = 0;
            status = memprof_write(reply, out);
            len = 0;
        }
    }
    return status;
}

/* Replies {"status": "ok", "text": …}. A longer text than 4 KiB is cut: write such a body by memprof_write. */
MEMPROF_FORMAT(2, 3)
static inline memprof_status_t memprof_reply(const memprof_reply_t *reply, const char *format, ...) {
    char text[4096];
    va_list values;
    va_start(values, format);
    memprof_format(text, sizeof text, format, values);
    va_end(values);
    if (reply->begin) reply->begin(reply->ctx, MEMPROF_STR("application/json"));
    memprof_write(reply, "{\"status\":\"ok\",\"text\":\"");
    memprof_write_json(reply, text);
    return memprof_write(reply, "\"}");
}

/* Replies an error, {"status": "error", "text": …, "error": {"kind", "message", "remedy"}}, and returns `status`. The
 * remedy may be "". A longer message than 1 KiB is cut. */
MEMPROF_FORMAT(4, 5)
static inline memprof_status_t memprof_fail(const memprof_reply_t *reply, memprof_status_t status,
                                            const char *remedy, const char *format, ...) {
    static const char *const kinds[] = {"", "unknown_message", "invalid_argument", "unsupported", "abi_mismatch", "busy",
                                        "allocator", "panic", "internal", "unavailable", "io"};
    char message[1024];
    va_list values;
    va_start(values, format);
    memprof_format(message, sizeof message, format, values);
    va_end(values);
    if (reply->begin) reply->begin(reply->ctx, MEMPROF_STR("application/json"));
    memprof_write(reply, "{\"status\":\"error\",\"text\":\"");
    memprof_write_json(reply, message);
    if (*remedy) memprof_write(reply, "; ");
    memprof_write_json(reply, remedy);
    memprof_write(reply, "\",\"error\":{\"kind\":\"");
    memprof_write(reply, status < 0 && status >= MEMPROF_IO ? kinds[-status] : "internal");
    memprof_write(reply, "\",\"message\":\"");
    memprof_write_json(reply, message);
    memprof_write(reply, "\",\"remedy\":\"");
    memprof_write_json(reply, remedy);
    memprof_write(reply, "\"}}");
    return status;
}

/* Appends ", name" to a list in `list`. */
MEMPROF_UNUSED static inline void memprof_list(char *list, size_t size, const char *name, size_t len) {
    size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%.*s", used ? ", " : "", (int)len, name);
}

/* Replies that the plugin has no message of this name, and which it has. */
MEMPROF_UNUSED static inline memprof_status_t memprof_unknown_message(const memprof_reply_t *reply, memprof_str_t name) {
    char remedy[512] = "valid messages: ";
    size_t i, start = strlen(remedy);
    for (i = 0; i < memprof_plugin_entry.message_count; i++) {
        memprof_str_t known = memprof_plugin_entry.messages[i]->name;
        memprof_list(remedy + start, sizeof remedy - start, known.ptr, known.len);
    }
    return memprof_fail(reply, MEMPROF_UNKNOWN_MESSAGE, remedy, "%.*s has no message \"%.*s\"",
                        (int)memprof_plugin_entry.id.len, memprof_plugin_entry.id.ptr,
                        (int)memprof_cut(name.ptr, name.len, 64), name.ptr ? name.ptr : "");
}

/* An argument of a message, and where its value goes. */
typedef struct {
    /* The key, which ends with NUL. */
    const char *key;
    /* Receives the value, with NUL behind it. It keeps what it has while the argument is not given. */
    char *value;
    /* Bytes of `value`. */
    size_t size;
    /* Set to 1 if the argument is given, else to 0. */
    int given;
} memprof_arg_t;

/* Reads the next word of `*args` into `word`: without its quotes, and inside of them without the backslash before a
 * character. Returns 1, 0 at the end, -1 for an open quote, -2 for a word of more than `size` - 1 bytes. */
MEMPROF_UNUSED static inline int memprof_next_word(memprof_str_t *args, char *word, size_t size) {
    size_t len = 0;
    int quoted = 0, begun = 0;
    for (; args->len; args->ptr++, args->len--) {
        char c = *args->ptr;
        if (!quoted && (c == ' ' || (c >= '\t' && c <= '\r'))) {
            if (begun) break;
            continue;
        }
        begun = 1;
        if (c == '"') {
            quoted = !quoted;
            continue;
        }
        if (quoted && c == '\\' && args->len > 1) c = *++args->ptr, args->len--;
        if (c == 0 || len + 1 >= size) return -2;
        word[len++] = c;
    }
    word[len] = 0;
    return quoted ? -1 : begun;
}

/* Finds the argument `word` in `list`; `count` if it is not there. */
MEMPROF_UNUSED static inline size_t memprof_find(const memprof_arg_t *list, size_t count, const char *word) {
    size_t i = 0;
    while (i < count && strcmp(list[i].key, word) != 0) i++;
    return i;
}

/* Reads `args` into the `count` arguments of `list`. Replies an error and returns MEMPROF_INVALID_ARGUMENT for a word
 * that is no key=value, an unknown or repeated key, an open quote, a NUL, and a value that does not fit. */
MEMPROF_UNUSED static inline memprof_status_t memprof_parse(memprof_str_t args, memprof_arg_t *list, size_t count,
                                                            const memprof_reply_t *reply) {
    char word[4096], known[512] = "";
    size_t i;
    int found;
    for (i = 0; i < count; i++) {
        list[i].given = 0;
        memprof_list(known, sizeof known, list[i].key, strlen(list[i].key));
    }
    while ((found = memprof_next_word(&args, word, sizeof word)) == 1) {
        char *value = strchr(word, '=');
        if (!value || value == word)
            return memprof_fail(reply, MEMPROF_INVALID_ARGUMENT, "", "argument \"%s\" is not of the form key=value", word);
        *value++ = 0;
        i = memprof_find(list, count, word);
        if (i == count) {
            char remedy[600] = "this message takes no arguments";
            if (count) snprintf(remedy, sizeof remedy, "valid arguments: %s", known);
            return memprof_fail(reply, MEMPROF_INVALID_ARGUMENT, remedy, "unknown argument \"%s\"", word);
        }
        if (list[i].given)
            return memprof_fail(reply, MEMPROF_INVALID_ARGUMENT, "", "argument \"%s\" is given twice", word);
        if (strlen(value) >= list[i].size)
            return memprof_fail(reply, MEMPROF_INVALID_ARGUMENT, "", "argument \"%s\" has more than %lu bytes", word,
                                (unsigned long)(list[i].size - 1));
        strcpy(list[i].value, value);
        list[i].given = 1;
    }
    if (found < 0)
        return memprof_fail(reply, MEMPROF_INVALID_ARGUMENT, "",
                            found == -1 ? "a quote is left open" : "an argument is too long, or has a NUL");
    return MEMPROF_OK;
}

/* Reads a plugin's config into the `count` keys of `list`: lines KEY = "text", KEY = 'text', a number or a boolean. Logs
 * an error with its line, and returns MEMPROF_INVALID_ARGUMENT, for an unknown or repeated key, for a value that does
 * not fit and for other TOML: a plugin with lists or tables needs a parser of TOML. */
MEMPROF_UNUSED static inline memprof_status_t memprof_read_config(const memprof_host_t *host, memprof_str_t config,
                                                                  memprof_arg_t *list, size_t count) {
    const char *next = config.ptr, *end = config.ptr + config.len;
    char known[512] = "";
    unsigned long number = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        list[i].given = 0;
        memprof_list(known, sizeof known, list[i].key, strlen(list[i].key));
    }
    while (next < end) {
        char line[1024], *key, *value, *last;
        const char *stop = (const char *)memchr(next, '\n', (size_t)(end - next)), *from = next;
        size_t len = (size_t)((stop ? stop : end) - from);
        next = stop ? stop + 1 : end;
        number++;
        if (len >= sizeof line) len = sizeof line - 1;
        memcpy(line, from, len);
        line[len] = 0;
        key = line + strspn(line, " \t\r");
        if (*key == 0 || *key == '#') continue;
        value = strchr(key, '=');
        if (*key == '[' || !value) {
            memprof_log(host, MEMPROF_LOG_ERROR, "config: line %lu: expected KEY = VALUE", number);
            return MEMPROF_INVALID_ARGUMENT;
        }
        *value++ = 0;
        key[strcspn(key, " \t")] = 0;
        i = memprof_find(list, count, key);
        if (i == count) {
            memprof_log(host, MEMPROF_LOG_ERROR, "config: line %lu: unknown key \"%s\"; valid keys: %s", number, key,
                        count ? known : "none");
            return MEMPROF_INVALID_ARGUMENT;
        }
        if (list[i].given) {
            memprof_log(host, MEMPROF_LOG_ERROR, "config: line %lu: repeated key \"%s\"", number, key);
            return MEMPROF_INVALID_ARGUMENT;
        }
        value += strspn(value, " \t");
        if (*value == '"' || *value == '\'') {
            char quote[2] = {*value++, 0};
            last = value + strcspn(value, quote);
            if (*last == 0) last = NULL;
        } else {
            last = value + strcspn(value, " \t\r#");
            if (last == value || strchr("[{", *value)) last = NULL;
        }
        if (last) {
            const char *rest = last + (*last == '"' || *last == '\'');
            rest += strspn(rest, " \t\r");
            *last = 0;
            if ((*rest && *rest != '#') || strchr(value, '\\')) last = NULL;
        }
        if (!last || strlen(value) >= list[i].size) {
            memprof_log(host, MEMPROF_LOG_ERROR,
                        "config: line %lu: expected a text, number or boolean of at most %lu bytes for \"%s\"", number,
                        (unsigned long)(list[i].size - 1), key);
            return MEMPROF_INVALID_ARGUMENT;
        }
        strcpy(list[i].value, value);
        list[i].given = 1;
    }
    return MEMPROF_OK;
}
#endif

#endif /* MEMPROF_H */
