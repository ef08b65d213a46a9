/* memprof_host.h: makes a program in C or C++ a host: it loads the plugins that its config names
 * and opens the control socket. Link with libmemprof_host.a -lpthread -ldl -lm.
 *
 * A program that is no host may call memprof_label_push and memprof_label_pop alone.
 * To load a plugin without config and control socket, memprof.h alone is enough.
 * Generated from memprof-host-c/src/lib.rs; do not edit. */

#ifndef MEMPROF_HOST_H
#define MEMPROF_HOST_H


#include "memprof.h"

// A running host.
typedef struct memprof_running_host_t memprof_running_host_t;

// Writes one line to the program's log. Called on any thread, several at once. May be NULL.
typedef void (*memprof_host_log_t)(void *ctx,
                                   memprof_log_level_t level,
                                   memprof_str_t target,
                                   memprof_str_t message);

// What `memprof_host_start` needs. Everything is borrowed for the call, except `log_ctx`.
typedef struct {
  // `sizeof(memprof_host_options_t)`.
  size_t struct_size;
  // The program's name, NUL-terminated.
  const char *name;
  // The program's version, NUL-terminated; may be NULL.
  const char *version;
  // The path of the config file (TOML), NUL-terminated.
  const char *config_path;
  // Where log lines go; may be NULL.
  memprof_host_log_t log;
  // Passed back to `log`; used until the process ends.
  void *log_ctx;
  // The program's own jemalloc; NULL to let plugins search.
  const memprof_jemalloc_t *jemalloc;
} memprof_host_options_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// [control-thread] Loads the plugins and opens the control socket. A plugin that cannot be
// loaded is logged and does not fail this; a config that cannot be read does.
//
// # Safety
// `options` points to a whole struct, and `host` to where the result goes.
memprof_status_t memprof_host_start(const memprof_host_options_t *options,
                                    memprof_running_host_t **host);

// [thread-safe] Sends a message to a plugin; `reply` receives the body.
//
// # Safety
// `host` is running; all texts are borrowed for the call.
memprof_status_t memprof_host_message(const memprof_running_host_t *host,
                                      memprof_str_t plugin,
                                      memprof_str_t message,
                                      memprof_str_t args,
                                      const memprof_reply_t *reply);

// [control-thread] Closes the control socket and ends the plugins. No other call may run.
//
// # Safety
// `host` is running, or NULL; it must not be used again.
void memprof_host_stop(memprof_running_host_t *host);

// [thread-safe] Labels what the calling thread allocates from here on: `memprof activate labels=KEY`
// lets profiles tell whose memory it is, be this program a host or not. Returns what
// `memprof_label_pop` takes to end it. Costs some nanoseconds, allocates nothing but for a new
// key. Both texts are NUL-terminated and copied; of the same key the last one counts. What is
// more than 64 keys, 255 bytes of a value or 612 bytes of a thread's labels is left out.
//
// # Safety
// Both are NUL-terminated; with NULL there is no label.
uint16_t memprof_label_push(const char *key,
                            const char *value);

// [thread-safe] Ends the labels that the calling thread was given since the
// `memprof_label_push` that returned `before`: in the reverse order. A coroutine pops its labels before
// it leaves the thread, and pushes them where it goes on.
void memprof_label_pop(uint16_t before);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif /* MEMPROF_HOST_H */
