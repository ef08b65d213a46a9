// Much to do for a compiler: what cc1plus is measured with.
#include <algorithm>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

template <int N>
struct Work {
    std::map<int, std::vector<std::string>> words;
    std::unordered_map<std::string, int> counts;
    std::regex pattern{"a+b|[0-9]{2,}"};

    int run(int seed) {
        words[seed + N].push_back("ab");
        for (auto &[key, list] : words) std::sort(list.begin(), list.end());
        std::function<int(int)> add = [&](int more) { return more + seed + N; };
        for (auto &word : words[seed + N]) counts[word] += std::regex_match(word, pattern);
        return add(static_cast<int>(counts.size()));
    }
};

int main(int argc, char **) {
    std::mt19937 random(argc);
    auto later = std::async([argc] { return Work<0>().run(argc); });
    std::cout << Work<1>().run(argc) + Work<2>().run(argc) + Work<3>().run(argc) + Work<4>().run(argc)
              << later.get() << random() << '\n';
}
