/* The smallest host: loads one plugin with only memprof.h, and sends it one message.
 *
 *   cc -I /usr/share/memprof/sdk/include c_minimal.c -ldl -o c_minimal
 *   LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true c_minimal memory_profile.so status
 *
 * It trusts the plugin's file: it makes none of the checks of memprof-host. */
#include <memprof.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int32_t log_enabled(void *ctx, memprof_log_level_t level) {
    (void)ctx;
    return level <= MEMPROF_LOG_INFO;
}

static void log_line(void *ctx, memprof_log_level_t level, memprof_str_t target,
                     memprof_str_t message) {
    (void)ctx, (void)level;
    fprintf(stderr, "%.*s: %.*s\n", (int)target.len, target.ptr, (int)message.len, message.ptr);
}

static memprof_status_t ignore_content_type(void *ctx, memprof_str_t content_type) {
    (void)ctx, (void)content_type;
    return MEMPROF_OK;
}

static memprof_status_t write_body(void *ctx, memprof_str_t chunk) {
    return fwrite(chunk.ptr, 1, chunk.len, ctx) == chunk.len ? MEMPROF_OK : MEMPROF_IO;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: c_minimal PLUGIN.so MESSAGE\n");
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    const memprof_plugin_entry_t *entry = library ? dlsym(library, "memprof_plugin_entry") : NULL;
    if (!entry) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (entry->abi_version >> 16 != MEMPROF_ABI_MAJOR ||
        entry->struct_size < sizeof *entry) {
        fprintf(stderr, "%s was built for another ABI than %d\n", argv[1], MEMPROF_ABI_MAJOR);
        return 1;
    }
    const memprof_host_t host = {
        sizeof host, MEMPROF_ABI_VERSION, 0, NULL, MEMPROF_STR_INIT("c_minimal"),
        MEMPROF_STR_INIT("0.1.0"), log_enabled, log_line, NULL};
    const memprof_reply_t reply = {sizeof reply, 0, stdout, ignore_content_type, write_body};
    const memprof_str_t message = {argv[2], strlen(argv[2])};
    memprof_plugin_t *plugin = NULL;
    if (entry->create(&host, MEMPROF_STR(""), &plugin) != MEMPROF_OK) return 1;
    memprof_status_t status = entry->handle_message(plugin, message, MEMPROF_STR(""), &reply);
    putchar('\n');
    entry->destroy(plugin);
    return status == MEMPROF_OK ? 0 : 1; /* the library stays loaded: see memprof.h */
}
