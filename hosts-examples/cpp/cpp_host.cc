// The example host in C++. It leaks steadily in grow_cache, and allocates and frees in
// handle_request, until SIGTERM.
//
//   c++ -I /usr/share/memprof/sdk/include cpp_host.cc /usr/lib/memprof/libmemprof_host.a -lpthread -ldl -lm -o cpp_host
//   LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true,prof_active:false cpp_host --config host.toml &
//   memprof activate && sleep 5 && memprof dump
#include <memprof_host.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

// 20 entries of 1 KiB every 10 ms are 2 MB/s.
constexpr int kEntriesPerTick = 20;
constexpr std::size_t kEntrySize = 1024;
constexpr int kRequestsPerTick = 200;
constexpr std::chrono::milliseconds kTick{10};

using Cache = std::vector<std::unique_ptr<std::array<char, kEntrySize>>>;

// Leaks: adds entries that are never removed.
__attribute__((noinline)) void grow_cache(Cache &cache) {
    for (int i = 0; i < kEntriesPerTick; i++) cache.emplace_back(new std::array<char, kEntrySize>);
}

// Allocates a string and frees it.
__attribute__((noinline)) void handle_request(int number) {
    volatile char last = std::string(256 + number % 4096, 'x').back();
    (void)last;
}

[[noreturn]] void work() {
    Cache cache;
    for (;;) {
        grow_cache(cache);
        for (int i = 0; i < kRequestsPerTick; i++) handle_request(i);
        std::this_thread::sleep_for(kTick);
    }
}

void log_line(void *, memprof_log_level_t level, memprof_str_t target, memprof_str_t message) {
    static const char *const names[] = {"?", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"};
    std::fprintf(stderr, "%-5s %.*s: %.*s\n", names[level <= MEMPROF_LOG_TRACE ? level : 0],
                 static_cast<int>(target.len), target.ptr, static_cast<int>(message.len),
                 message.ptr);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3 || std::strcmp(argv[1], "--config") != 0) {
        std::fprintf(stderr, "usage: cpp_host --config FILE\n");
        return 2;
    }
    sigset_t end_signals;
    sigemptyset(&end_signals);
    sigaddset(&end_signals, SIGTERM);
    sigaddset(&end_signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &end_signals, nullptr);

    memprof_host_options_t options{};
    options.struct_size = sizeof options;
    options.name = "cpp_host";
    options.version = "0.1.0";
    options.config_path = argv[2];
    options.log = log_line;
    memprof_running_host_t *host = nullptr;
    if (memprof_host_start(&options, &host) != MEMPROF_OK) return 1;

    std::thread(work).detach();
    int signal = 0;
    sigwait(&end_signals, &signal);
    memprof_host_stop(host);
    return 0;
}
