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
