/* sessions COUNT: a map of so many sessions, each with orders, and a hundredth of them that nothing points to any
   more. Prints "ready PID" and echoes what it reads. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <string>
#include <unistd.h>

namespace shop {

struct Order {
    virtual ~Order() = default;
    std::string text = std::string(200, 'x');
};

struct Session {
    Session() { for (int i = 0; i < 3; i++) orders.push_back(new Order); }
    virtual ~Session() = default;
    std::list<Order *> orders;
};

}

static std::map<int, shop::Session *> sessions;

/* Overwrites what calls before left below this frame. */
__attribute__((noinline)) static void wipe() {
    char rest[64 << 10];
    memset(rest, 0, sizeof rest);
    __asm__ volatile("" : : "r"(rest) : "memory");
}

__attribute__((noinline)) static void make(int count) {
    for (int i = 0; i < count / 100; i++) new shop::Session;
    for (int i = 0; i < count; i++) sessions[i] = new shop::Session;
}

int main(int, char **words) {
    make(atoi(words[1]));
    wipe();
    printf("ready %d\n", getpid());
    fflush(stdout);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        fputs(line, stdout);
        fflush(stdout);
    }
}
