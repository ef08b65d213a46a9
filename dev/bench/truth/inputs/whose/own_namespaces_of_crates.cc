// Namespaces of the program with the names of Rust's crates and of libraries of C++.
#include "h.h"
#include <memory>
#include <vector>
#define NI __attribute__((noinline))
#define FILL(name, function, mib) \
  namespace name { struct Store { std::vector<std::unique_ptr<char[]>> v; NI void function() { MB(mib) v.emplace_back(new char[1024]); } }; }
FILL(tokio, spawn_all, 4)
FILL(serde, read_all, 4)
FILL(hyper, listen, 4)
FILL(toml, parse, 4)
FILL(rayon, join, 4)
FILL(v8, start_engine, 4)
FILL(asio, copy_audio, 4)
int main() {
  static tokio::Store a; a.spawn_all(); static serde::Store b; b.read_all(); static hyper::Store c; c.listen();
  static toml::Store d; d.parse(); static rayon::Store e; e.join(); static v8::Store f; f.start_engine();
  static asio::Store g; g.copy_audio(); ready();
}
