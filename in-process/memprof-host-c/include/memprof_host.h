/* memprof_host.h: makes a program in C or C++ a host, which loads the plugins that its config names
 * and opens the control socket. Link with libmemprof_host.a -lpthread -ldl -lm.
 *
 * A program that is no host may call only memprof_label_push and memprof_label_pop.
 * To load a plugin without config and control socket, memprof.h is enough.
 * Generated from memprof-host-c/src/lib.rs; do not edit. */

#ifndef MEMPROF_HOST_H
#define MEMPROF_HOST_H


#include "memprof.h"

// A running host: its plugins and its control socket.
typedef struct memprof_running_host_t memprof_running_host_t;

// Writes one line to the program's log. May be called on any thread, and on several at once. May be NULL.
typedef void (*memprof_host_log_t)(void *ctx,
                                   memprof_log_level_t level,
                                   memprof_str_t target,
                                   memprof_str_t message);

// Options of `memprof_host_start`. All pointers are borrowed for the call, except `log_ctx`.
typedef struct {
  // `sizeof(memprof_host_options_t)`.
  size_t struct_size;
  // Name of the program, NUL-terminated.
  const char *name;
  // Version of the program, NUL-terminated; may be NULL.
  const char *version;
  // Path of the config file (TOML), NUL-terminated.
  const char *config_path;
  // Receives the log lines; may be NULL.
  memprof_host_log_t log;
  // Passed to `log`; used until the process ends.
  void *log_ctx;
  // Functions of the program's jemalloc; NULL to let plugins search for one.
  const memprof_jemalloc_t *jemalloc;
} memprof_host_options_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// [control-thread] Loads the plugins and opens the control socket. A plugin that cannot be loaded is logged, and is no
// error. Returns `MEMPROF_INVALID_ARGUMENT` if the config cannot be read or is invalid, for a reason that is logged; if
// an argument, the name or the path is null; or if the struct is too small.
//
// # Safety
// `options` points to a whole struct, and `host` to a pointer that receives the result.
memprof_status_t memprof_host_start(const memprof_host_options_t *options,
                                    memprof_running_host_t **host);

// [thread-safe] Sends a message to a plugin; `reply` receives the body of its reply, and never reaches the plugin: it may
// be NULL, and so may each of its callbacks. Returns the plugin's status, or `MEMPROF_UNKNOWN_PLUGIN`, with a text that
// lists the host's plugins, if none has that name.
// `MEMPROF_INVALID_ARGUMENT` if `host` is null or a text is not UTF-8; `MEMPROF_INTERNAL` if the reply's file cannot
// be read.
//
// # Safety
// `host` is running; all texts are borrowed for the call.
memprof_status_t memprof_host_message(const memprof_running_host_t *host,
                                      memprof_str_t plugin,
                                      memprof_str_t message,
                                      memprof_str_t args,
                                      const memprof_reply_t *reply);

// [control-thread] Closes the control socket and destroys the plugins. No other call may run meanwhile.
//
// # Safety
// `host` is running, or NULL. It must not be used again.
void memprof_host_stop(memprof_running_host_t *host);

// [thread-safe] Labels the memory that the calling thread allocates from now on. `memprof activate labels=KEY` records
// labels in profiles, whether this program is a host or not. Returns the argument with which `memprof_label_pop` ends
// the label. Costs some nanoseconds, and allocates only for a new key. Both texts are NUL-terminated and copied. If a
// key is pushed twice, the last label counts. Labels are omitted beyond 64 keys and 612 bytes of a thread's labels;
// values are truncated to 255 bytes.
//
// # Safety
// Both are NUL-terminated, or NULL for no label.
uint16_t memprof_label_push(const char *key,
                            const char *value);

// [thread-safe] Ends the labels of the calling thread since the `memprof_label_push` that returned `before`, including
// that one. Labels end in reverse order. A coroutine pops its labels before it leaves a thread, and pushes them again
// on the thread where it resumes.
void memprof_label_pop(uint16_t before);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif /* MEMPROF_HOST_H */
