// Code with many inlined functions, of which each build has others.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

namespace shop {
namespace {
struct Item {
    std::string name;
    double price;
};
template <typename T> T twice(T value) { return value + value; }
double cheap(const std::vector<Item> &items) {
    double sum = 0;
    std::for_each(items.begin(), items.end(), [&](const Item &item) { sum += twice(item.price); });
    return sum;
}
} // namespace

struct Catalogue {
    std::map<std::string, std::vector<Item>> shelves;
    std::unordered_map<int, std::shared_ptr<Item>> index;
    void add(const std::string &shelf, Item item) {
        index[int(index.size())] = std::make_shared<Item>(item);
        shelves[shelf].push_back(std::move(item));
    }
    virtual double total() const {
        double sum = 0;
        for (auto &[name, items] : shelves)
            sum += cheap(items);
        return sum;
    }
    virtual ~Catalogue() = default;
};

int count_words(const std::string &text) {
    std::regex word("[a-z]+");
    return int(std::distance(std::sregex_iterator(text.begin(), text.end(), word), std::sregex_iterator()));
}
int same_one(int x) { return x * 3 + 1; }
int same_two(int x) { return x * 3 + 1; }
} // namespace shop

int main(int count, char **arguments) {
    shop::Catalogue catalogue;
    for (int i = 0; i < count; i++)
        catalogue.add(arguments[i], {std::to_string(i), double(i)});
    std::function<int(int)> choose = count > 1 ? shop::same_one : shop::same_two;
    std::vector<int> numbers(count + 10, choose(count));
    std::sort(numbers.begin(), numbers.end(), std::greater<>());
    printf("%f %d %d\n", catalogue.total(), shop::count_words(arguments[0]), numbers[0]);
}
