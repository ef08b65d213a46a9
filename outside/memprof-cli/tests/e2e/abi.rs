//! What was compiled for version 0.1, and what is compiled now, with each other.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::dist::{dist, source, tool_text};
use crate::host::Setup;
use crate::memprof::memprof;
use crate::plugins::{out_of_tree, panicky};

/// One file of version 0.1, compiled with the header of that version.
fn compiled(name: &str, options: &[&str], place: &Path) -> PathBuf {
    let sources = source("outside/memprof-cli/tests/fixtures/abi_0_1");
    let built = place.join(name).with_extension("so");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(&sources);
    cc.arg("-o")
        .arg(&built)
        .arg(sources.join(name))
        .args(options);
    tool_text("gcc", &mut cc);
    built
}

const PLUGIN: &[&str] = &["-shared", "-fPIC", "-Wl,-z,nodelete"];

#[test]
fn plugin_of_0_1_replies_in_current_hosts() {
    let place = tempfile::tempdir().unwrap();
    let plugin = compiled("hello_c.c", PLUGIN, place.path());
    memprof(place.path(), &["check", plugin.to_str().unwrap()]).exits(0);
    let mut host = Command::new(dist("examples/c_minimal"));
    let reply = tool_text("gcc", host.arg(&plugin).arg("hello"));
    assert_eq!(reply, "hello from C\n");
}

#[test]
fn host_of_0_1_loads_current_plugins() {
    let place = tempfile::tempdir().unwrap();
    let host = compiled("c_minimal.c", &["-ldl"], place.path());
    let reply = |plugin: &str, message: &str| {
        let mut host = Command::new(&host);
        host.arg(dist(plugin)).arg(message);
        tool_text("gcc", host.env("XDG_STATE_HOME", place.path()))
    };
    let status: Value =
        serde_json::from_str(&reply("plugins/memory_profile.so", "status")).unwrap();
    assert_eq!(status["status"], "ok", "{status}");
    assert_eq!(reply("plugins/hello_c.so", "hello"), "hello from C\n");
    assert!(reply("plugins/hello_rust.so", "hello").starts_with("hello"));
}

#[test]
fn plugin_and_host_of_0_1_still_compile_and_fit() {
    let place = tempfile::tempdir().unwrap();
    let plugin = compiled("hello_c.c", PLUGIN, place.path());
    let host = compiled("c_minimal.c", &["-ldl"], place.path());
    let reply = tool_text("gcc", Command::new(host).arg(plugin).arg("hello"));
    assert_eq!(reply, "hello from C\n");
}

/// Compilers of plugins in C, with the name that the plugin gets.
pub(crate) const COMPILERS: &[(&str, &str, &[&str])] = &[
    ("by_c99", "gcc", &["-std=c99"]),
    ("by_clang", "clang", &["-std=c11"]),
    ("by_cpp20", "g++", &["-std=c++20", "-x", "c++"]),
];

/// Hosts that load plugins by a config.
const HOSTS: &[&str] = &["c_host", "c_host_static", "cpp_host", "rust_host"];

/// hello_c.c by one of [`COMPILERS`], with an id of its own, linked with `libraries`.
pub(crate) fn compiled_hello(
    row: &(&str, &str, &[&str]),
    place: &Path,
    libraries: &[String],
) -> PathBuf {
    let hello = std::fs::read_to_string(source("plugins/hello-c/hello_c.c")).unwrap();
    compiled_plugin(&hello.replace("hello_c", row.0), row, place, libraries)
}

/// A plugin by one of [`COMPILERS`], linked with `libraries`, in a file with the compiler's name.
pub(crate) fn compiled_plugin(
    text: &str,
    (id, compiler, options): &(&str, &str, &[&str]),
    place: &Path,
    libraries: &[String],
) -> PathBuf {
    let (code, plugin) = (
        place.join(id).with_extension("c"),
        place.join(id).with_extension("so"),
    );
    std::fs::write(&code, text).unwrap();
    let mut compiler = Command::new(compiler);
    compiler.args(*options).args([
        "-Wall",
        "-Wextra",
        "-pedantic",
        "-Werror",
        "-fvisibility=hidden",
    ]);
    compiler
        .args(["-shared", "-fPIC", "-Wl,-z,nodelete,-Bsymbolic", "-I"])
        .arg(dist("include"));
    compiler.arg("-o").arg(&plugin).arg(&code).args(libraries);
    tool_text("clang and g++", &mut compiler);
    plugin
}

/// Words that link memprof's adapters for foreign servers into a plugin in C.
pub(crate) fn adapter_libraries() -> Vec<String> {
    let lib = |name: &str| dist("lib").join(name).display().to_string();
    let archive = lib("libmemprof_adapters.a");
    let libraries = [
        format!("-Wl,--whole-archive,{archive},--no-whole-archive"),
        format!("-Wl,--gc-sections,--version-script={}", lib("adapters.map")),
    ];
    let system = ["-static-libgcc", "-lpthread", "-ldl", "-lm"].map(str::to_owned);
    [&libraries[..], &system].concat()
}

/// A plugin with memprof's adapters for foreign servers in it, which greets.
pub(crate) struct ServerPlugin {
    pub(crate) id: &'static str,
    pub(crate) file: PathBuf,
    /// The reply to `hello`.
    pub(crate) hello: &'static str,
    /// Start of the reply to `hello` with a name, which follows.
    pub(crate) greeting: &'static str,
}

/// hello_c.c by each of [`COMPILERS`], and plugins of the SDK in a debug and in a release build.
pub(crate) fn server_plugins(place: &Path) -> Vec<ServerPlugin> {
    let libraries = adapter_libraries();
    let compiled = |row: &(&'static str, _, _)| ServerPlugin {
        id: row.0,
        file: compiled_hello(row, place, &libraries),
        hello: "hello from C",
        greeting: "hello from ",
    };
    let in_rust = [
        ("hello_rust", dist("plugins/hello_rust.so"), "hello, world"),
        ("out_of_tree", out_of_tree().to_owned(), "hello"),
    ];
    let in_rust = in_rust.map(|(id, file, hello)| ServerPlugin {
        id,
        file,
        hello,
        greeting: "hello, ",
    });
    COMPILERS.iter().map(compiled).chain(in_rust).collect()
}

/// Plugins of each compiler, of the SDK in debug and release builds, and of version 0.1, with what they reply to `hello`.
fn plugins(place: &Path) -> Vec<(&'static str, PathBuf, &'static str)> {
    let by_compilers = COMPILERS
        .iter()
        .map(|row| (row.0, compiled_hello(row, place, &[]), "hello from C"));
    let others = [
        ("panicky", panicky().to_owned(), "hello"),
        ("hello_rust", dist("plugins/hello_rust.so"), "hello, world"),
        ("out_of_tree", out_of_tree().to_owned(), "hello"),
        (
            "hello_c",
            compiled("hello_c.c", PLUGIN, place),
            "hello from C",
        ),
    ];
    by_compilers.chain(others).collect()
}

#[test]
fn plugins_of_every_compiler_reply_in_every_host() {
    let place = tempfile::tempdir().unwrap();
    let plugins = plugins(place.path());
    let tables = plugins
        .iter()
        .map(|(_, path, _)| format!("[[plugin]]\npath = {path:?}\n"));
    let tables: String = tables.collect();
    for name in HOSTS {
        let host = Setup::of(name).more(&tables).start();
        let mut client = host.client();
        for (id, _, expected) in &plugins {
            let reply = client.message(id, "hello", "", None).unwrap();
            let text = String::from_utf8(reply.into_bytes().unwrap()).unwrap();
            assert_eq!(text, *expected, "{id} in {name}");
        }
    }
    let minimal = [
        dist("examples/c_minimal"),
        compiled("c_minimal.c", &["-ldl"], place.path()),
    ];
    for host in minimal {
        for (id, path, expected) in &plugins {
            let reply = tool_text("gcc", Command::new(&host).arg(path).arg("hello"));
            assert_eq!(reply.trim_end(), *expected, "{id} in {}", host.display());
        }
    }
}
