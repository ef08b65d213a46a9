/* For hosts that write no log, send messages to memory_profile and read its replies. */
#include <memprof_host.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static memprof_running_host_t *host;

struct text {
    char bytes[1 << 14];
    size_t length;
};

static void log_nothing(void *ctx, memprof_log_level_t level, memprof_str_t target,
                        memprof_str_t message) {
    (void)ctx, (void)level, (void)target, (void)message;
}

static memprof_status_t begin(void *ctx, memprof_str_t type) {
    (void)ctx, (void)type;
    return MEMPROF_OK;
}

static memprof_status_t append(void *ctx, memprof_str_t part) {
    struct text *text = ctx;
    size_t room = sizeof text->bytes - 1 - text->length;
    size_t length = part.len < room ? part.len : room;
    memcpy(text->bytes + text->length, part.ptr, length);
    text->length += length;
    text->bytes[text->length] = 0;
    return MEMPROF_OK;
}

static memprof_status_t start_host(const char *name, const char *config) {
    memprof_host_options_t options = {0};
    options.struct_size = sizeof options;
    options.name = name;
    options.config_path = config;
    options.log = log_nothing;
    return memprof_host_start(&options, &host);
}

static memprof_status_t send(const char *name, const char *args, struct text *text) {
    text->length = 0;
    text->bytes[0] = 0;
    memprof_reply_t reply = {sizeof reply, 0, text, begin, append};
    return memprof_host_message(host, MEMPROF_STR("memory_profile"),
                                (memprof_str_t){name, strlen(name)},
                                (memprof_str_t){args, strlen(args)}, &reply);
}

/* Sends a message; exits if the reply is an error. */
static void must_send(const char *name, const char *args, struct text *text) {
    memprof_status_t status = send(name, args, text);
    if (status != MEMPROF_OK) {
        fprintf(stderr, "%s %s: %d %s\n", name, args, (int)status, text->bytes);
        exit(1);
    }
}
