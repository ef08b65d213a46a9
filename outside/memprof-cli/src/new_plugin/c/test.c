/* Loads the plugin as a host does, and sends it messages. */
#define MEMPROF_NO_HELPERS
#include <memprof.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static char body[4096];
static int failed;

static int32_t log_enabled(void *ctx, memprof_log_level_t level) { return (void)ctx, level <= MEMPROF_LOG_INFO; }

static void log_line(void *ctx, memprof_log_level_t level, memprof_str_t target, memprof_str_t text) {
    (void)ctx, (void)level;
    fprintf(stderr, "%.*s: %.*s\n", (int)target.len, target.ptr, (int)text.len, text.ptr);
}

static memprof_status_t ignore_content_type(void *ctx, memprof_str_t content_type) {
    (void)ctx, (void)content_type;
    return MEMPROF_OK;
}

static memprof_status_t write_body(void *ctx, memprof_str_t chunk) {
    (void)ctx;
    if (strlen(body) + chunk.len >= sizeof body) return MEMPROF_IO;
    strncat(body, chunk.ptr, chunk.len);
    return MEMPROF_OK;
}

int main(int argc, char **argv) {
    static const struct { const char *message, *args, *text; memprof_status_t status; } cases[] = {
        {"greet", "name=\"Ada Lovelace\"", "hi, Ada Lovelace", MEMPROF_OK},
        {"greet", "name=", "the name is empty; send name=NAME", MEMPROF_INVALID_ARGUMENT},
        {"greet", "nmae=Ada", "unknown argument \\\"nmae\\\"; valid arguments: name", MEMPROF_INVALID_ARGUMENT},
        {"count", "", "1 greeted", MEMPROF_OK},
        {"leave", "", "valid messages: greet, count", MEMPROF_UNKNOWN_MESSAGE},
    };
    const memprof_host_t host = {sizeof host, MEMPROF_ABI_VERSION, 0, NULL, MEMPROF_STR_INIT("test"),
                                 MEMPROF_STR_INIT(""), log_enabled, log_line, NULL};
    const memprof_reply_t reply = {sizeof reply, 0, NULL, ignore_content_type, write_body};
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL, *plugin = NULL;
    const memprof_plugin_entry_t *entry = library ? dlsym(library, "memprof_plugin_entry") : NULL;
    if (!entry) return fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: test PLUGIN.so"), 1;
    if (entry->create(&host, MEMPROF_STR("greeting = \"hi\""), &plugin) != MEMPROF_OK) return 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const memprof_str_t message = {cases[i].message, strlen(cases[i].message)};
        const memprof_str_t args = {cases[i].args, strlen(cases[i].args)};
        body[0] = 0;
        if (entry->handle_message(plugin, message, args, &reply) == cases[i].status && strstr(body, cases[i].text)) continue;
        fprintf(stderr, "%s %s: %s\n", cases[i].message, cases[i].args, body);
        failed = 1;
    }
    entry->destroy(plugin);
    if (!failed) printf("all %d messages were answered as expected\n", (int)(sizeof cases / sizeof *cases));
    return failed; /* the library stays loaded: see memprof.h */
}
