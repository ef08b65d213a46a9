/* exits [WORD]: leaks 50 single objects, a list of 60, a circle of 40 and a tree of 15, holds 1,000 and exits with 3;
   with a word it does not leak. */
#include <stdlib.h>
#include <string.h>

struct node { struct node *next, *other; };

static struct node *volatile held;

static void *make(size_t size) { return memset(malloc(size), 0, size); }

/* Overwrites what calls before left below this frame. */
__attribute__((noinline)) static void wipe(void) {
    volatile char rest[64 << 10];
    for (size_t i = 0; i < sizeof rest; i++) rest[i] = 0;
}

static struct node *tree(int depth) {
    if (!depth) return 0;
    struct node *node = make(168);
    node->next = tree(depth - 1);
    node->other = tree(depth - 1);
    return node;
}

__attribute__((noinline)) static void leak(void) {
    for (int i = 0; i < 50; i++) make(120);
    struct node *list = 0, *first = 0, *last = 0;
    for (int i = 0; i < 60; i++) {
        struct node *each = make(136);
        each->next = list;
        list = each;
    }
    for (int i = 0; i < 40; i++) {
        struct node *each = make(152);
        if (!first) first = last = each;
        each->next = first;
        last = last->next = each;
    }
    tree(4);
}

int main(int count, char **words) {
    (void)words;
    if (count == 1) leak();
    for (int i = 0; i < 1000; i++) {
        struct node *each = make(200);
        each->next = held;
        held = each;
    }
    wipe();
    return 3;
}
