/* A host with a bus of its own: each line of standard input, PLUGIN MESSAGE ARGUMENTS, is sent to a plugin. */
#include <memprof_host.h>

#include <stdio.h>
#include <string.h>

static void log_line(void *ctx, memprof_log_level_t level, memprof_str_t target, memprof_str_t text) {
    (void)ctx;
    fprintf(stderr, "<%u> %.*s: %.*s\n", level, (int)target.len, target.ptr, (int)text.len, text.ptr);
}

static memprof_status_t write_body(void *ctx, memprof_str_t chunk) {
    return fwrite(chunk.ptr, 1, chunk.len, ctx) == chunk.len ? MEMPROF_OK : MEMPROF_IO;
}

/* Cuts the first word off a line. */
static memprof_str_t next_word(char **line) {
    memprof_str_t word = {*line, strcspn(*line, " \n")};
    *line += word.len + (word.ptr[word.len] == ' ');
    return word;
}

int main(int argc, char **argv) {
    char buffer[4096];
    memprof_running_host_t *host = NULL;
    memprof_host_options_t options = {0};
    const memprof_reply_t reply = {sizeof reply, 0, stdout, NULL, write_body};
    if (argc != 2) return fprintf(stderr, "usage: admin_host CONFIG\n"), 2;
    options.struct_size = sizeof options;
    options.name = "admin_host";
    options.config_path = argv[1];
    options.log = log_line;
    if (memprof_host_start(&options, &host) != MEMPROF_OK) return 1;
    while (fgets(buffer, sizeof buffer, stdin)) {
        char *line = buffer;
        memprof_str_t plugin = next_word(&line), message = next_word(&line);
        memprof_str_t args = {line, strcspn(line, "\n")};
        printf("\nstatus %d\n", memprof_host_message(host, plugin, message, args, &reply));
        fflush(stdout);
    }
    memprof_host_stop(host);
    return 0;
}
