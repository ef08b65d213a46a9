/* A plugin with two messages, a config key and an error reply. */
#include <memprof.h>
#include <stdatomic.h>

static const memprof_host_t *host;
static char greeting[32];
static atomic_ulong greeted;

/* Sets all state: a host that is started again in the process creates the plugin anew. */
static memprof_status_t create(const memprof_host_t *from, memprof_str_t config, void **plugin) {
    memprof_arg_t keys[] = {{"greeting", greeting, sizeof greeting, 0}};
    host = from;
    strcpy(greeting, "hello");
    atomic_store(&greeted, 0);
    *plugin = &host;
    return memprof_read_config(host, config, keys, 1);
}

static memprof_status_t greet(memprof_str_t args, const memprof_reply_t *reply) {
    char who[64] = "";
    memprof_arg_t list[] = {{"name", who, sizeof who, 0}};
    if (memprof_parse(args, list, 1, reply) != MEMPROF_OK) return MEMPROF_INVALID_ARGUMENT;
    if (!*who) return memprof_fail(reply, MEMPROF_INVALID_ARGUMENT, "send name=NAME", "the name is empty");
    atomic_fetch_add(&greeted, 1);
    memprof_log(host, MEMPROF_LOG_INFO, "greeting %s", who);
    return memprof_reply(reply, "%s, %s", greeting, who);
}

/* Called on several threads at once. */
static memprof_status_t handle_message(void *plugin, memprof_str_t name, memprof_str_t args,
                                       const memprof_reply_t *reply) {
    (void)plugin;
    if (memprof_is(name, "greet")) return greet(args, reply);
    if (!memprof_is(name, "count")) return memprof_unknown_message(reply, name);
    if (memprof_parse(args, NULL, 0, reply) != MEMPROF_OK) return MEMPROF_INVALID_ARGUMENT;
    return memprof_reply(reply, "%lu greeted", atomic_load(&greeted));
}

static void destroy(void *plugin) { (void)plugin; }

static const memprof_message_t greet_message = MEMPROF_MESSAGE("greet", "name=NAME", "Greets NAME.");
static const memprof_message_t count_message = MEMPROF_MESSAGE("count", "", "Says how many were greeted.");
MEMPROF_PLUGIN("greeter", "0.1.0", create, handle_message, destroy, &greet_message, &count_message);
