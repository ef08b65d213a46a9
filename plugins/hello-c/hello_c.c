/* The smallest plugin in C: greets, and logs that it did.
 * cc -shared -fPIC -fvisibility=hidden -Wl,-z,nodelete,-Bsymbolic -I<dir of memprof.h> -o hello_c.so hello_c.c */
#include <memprof.h>

static const memprof_host_t *host;

static memprof_status_t create(const memprof_host_t *from, memprof_str_t config, void **plugin) {
    (void)config;
    host = from;
    *plugin = &host;
    return MEMPROF_OK;
}

static memprof_status_t handle_message(void *plugin, memprof_str_t name, memprof_str_t args,
                                       const memprof_reply_t *reply) {
    char who[64] = "C";
    memprof_arg_t list[] = {{"name", who, sizeof who, 0}};
    (void)plugin;
    if (!memprof_is(name, "hello")) return memprof_unknown_message(reply, name);
    if (memprof_parse(args, list, 1, reply) != MEMPROF_OK) return MEMPROF_INVALID_ARGUMENT;
    memprof_log(host, MEMPROF_LOG_INFO, "greeting from %s", who);
    memprof_write(reply, "hello from ");
    return memprof_write(reply, who);
}

static void destroy(void *plugin) { (void)plugin; }

static const memprof_message_t hello = MEMPROF_MESSAGE("hello", "[name=NAME]", "Greets.");
MEMPROF_PLUGIN("hello_c", "0.1.0", create, handle_message, destroy, &hello);
