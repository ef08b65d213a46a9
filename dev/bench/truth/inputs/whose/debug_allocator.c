/* An allocator that puts a header before each block and keeps a list of them, the functions that use it, and their callers. */
#include "h.h"
#include <pthread.h>
struct block {
    size_t size;
    const char *file;
    struct block *next;
};
static struct block *blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline)) void *counted_alloc(size_t size, const char *file) {
    struct block *block = malloc(size + sizeof *block);
    if (!block) abort();
    pthread_mutex_lock(&lock);
    block->size = size, block->file = file, block->next = blocks, blocks = block;
    pthread_mutex_unlock(&lock);
    return block + 1;
}
__attribute__((noinline)) void *debug_malloc(size_t size) { return memset(counted_alloc(size, __FILE__), 0xcd, size); }
__attribute__((noinline)) char *debug_strdup(const char *text) { return strcpy(debug_malloc(strlen(text) + 1), text); }
__attribute__((noinline)) void load_orders(void) { MB(4) KEEP(debug_malloc(1024)); }
__attribute__((noinline)) void load_names(void) {
    static char name[1025];
    memset(name, 'n', 1024);
    MB(3) KEEP(debug_strdup(name));
}
int main() { load_orders(); load_names(); ready(); }
