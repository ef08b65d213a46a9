/* The smallest plugin in C: greets, and logs that it did.
 * cc -shared -fPIC -Wl,-z,nodelete -I<dir of memprof.h> -o hello_c.so hello_c.c */
#include <memprof.h>
#include <string.h>

static const memprof_host_t *host;

static memprof_status_t create(const memprof_host_t *from, memprof_str_t config, void **plugin) {
    (void)config;
    host = from;
    *plugin = &host;
    return MEMPROF_OK;
}

static memprof_status_t handle_message(void *plugin, memprof_str_t name, memprof_str_t args,
                                       const memprof_reply_t *reply) {
    (void)plugin, (void)args;
    if (name.len != 5 || memcmp(name.ptr, "hello", 5) != 0) {
        reply->write(reply->ctx, MEMPROF_STR("no such message; valid messages: hello"));
        return MEMPROF_UNKNOWN_MESSAGE;
    }
    host->log(host->ctx, MEMPROF_LOG_INFO, MEMPROF_STR("hello_c"), MEMPROF_STR("greeting from C"));
    return reply->write(reply->ctx, MEMPROF_STR("hello from C"));
}

static void destroy(void *plugin) { (void)plugin; }

static const memprof_message_t hello = {
    sizeof(hello), 0, MEMPROF_STR_INIT("hello"), MEMPROF_STR_INIT(""), MEMPROF_STR_INIT("Greets.")};
static const memprof_message_t *const messages[] = {&hello};

const memprof_plugin_entry_t memprof_plugin_entry = {
    sizeof(memprof_plugin_entry_t), MEMPROF_ABI_VERSION, 0,
    MEMPROF_STR_INIT("hello_c"), MEMPROF_STR_INIT("0.1.0"), MEMPROF_STR_INIT(""),
    messages, 1, create, handle_message, destroy, 0};
