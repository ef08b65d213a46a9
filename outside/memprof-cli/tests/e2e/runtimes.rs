//! Language runtimes around the plugin: their own memory, native libraries that leak, runtimes that run already,
//! and those that only have it loaded.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::dist::{dist, preloadable, source, tool_text};
use crate::host::Host;
use crate::languages::{INACTIVE, LIBRARY, Languages, PYTHON, PYTHON_PATH, UNKNOWN};
use crate::memprof::memprof;

/// What a runtime hides comes first, and then the switch.
#[test]
fn doctor_names_hidden_runtime_memory() {
    let languages = Languages::new();
    let check =
        |package: &str, words: &[&str], env: &[(&str, &str)], expected: Option<[&str; 2]>| {
            let ran = languages.run(package, words, env);
            let mut lines = ran.output.lines();
            let is_as_expected = match expected {
                Some(parts) => parts
                    .iter()
                    .all(|part| lines.next().is_some_and(|line| line.contains(part))),
                None => !ran.output.contains("which no heap profile shows"),
            };
            assert!(ran.is_ok && is_as_expected, "{words:?}: {ran:?}");
        };
    let script = "import memory_profile; print(memory_profile.send('doctor'))";
    let python = [PYTHON, "-c", script];
    let pymalloc = ["pymalloc", "PYTHONMALLOC=malloc"];
    check("python3", &python, &[PYTHON_PATH], Some(pymalloc));
    check(
        "python3",
        &python,
        &[PYTHON_PATH, ("PYTHONMALLOC", "malloc")],
        None,
    );
    let php = ["php", "{examples}/ffi/memory.php", LIBRARY, "doctor"];
    let zend = ["Zend memory manager", "USE_ZEND_ALLOC=0"];
    check("php-cli", &php, &[], Some(zend));
    check("php-cli", &php, &[("USE_ZEND_ALLOC", "0")], None);
    let node = ["node", "{examples}/node/memory.js", LIBRARY, "doctor"];
    let v8 = ["V8's own heap", "v8.writeHeapSnapshot()"];
    check("nodejs", &node, &[], Some(v8));
    let java = [
        "java",
        "-Dmemprof={plugins}/memory_profile.so",
        "{examples}/java/MemoryProfile.java",
        "doctor",
    ];
    let jvm = ["the JVM's own heap", "GC.class_histogram"];
    check("default-jdk-headless", &java, &[], Some(jvm));
    let ruby = [
        "ruby",
        "-I",
        "{plugins}",
        "{examples}/ruby/memory.rb",
        "doctor",
    ];
    let slots = [
        "Ruby keeps its objects in pages",
        "ObjectSpace.count_objects",
    ];
    check("ruby", &ruby, &[], Some(slots));
    let luajit = ["luajit", "{examples}/lua/memory.lua", "doctor"];
    let objects = ["LuaJIT keeps the objects", "collectgarbage(\"count\")"];
    check(
        "luajit",
        &luajit,
        &[("LUA_CPATH", "{plugins}/?.so")],
        Some(objects),
    );
    let lua = ["lua5.4", "{examples}/lua/memory.lua", "doctor"];
    check("lua5.4", &lua, &[("LUA_CPATH", "{plugins}/?.so")], None);
}

/// Erlang loads no plugin, and is attached to.
#[test]
fn doctor_names_hidden_erlang_memory() {
    let first_line = |flags: &str| {
        let mut erl = Command::new("erl");
        erl.args([
            "-noinput",
            "-eval",
            "io:format(standard_error, \"idle~n\", [])",
        ]);
        erl.env("ERL_FLAGS", flags);
        let host = Host::spawn(erl, tempfile::tempdir().unwrap());
        host.wait_for_log("idle");
        let pid = host.pid().to_string();
        memprof(&host.socket_dir(), &["attach", &pid]).exits(0);
        host.memprof("doctor", &[]).stdout
    };
    let hidden = first_line("");
    let mut lines = hidden.lines();
    let mut has = |part: &str| lines.next().is_some_and(|line| line.contains(part));
    assert!(
        has("carriers of its own allocators") && has("+Mea min"),
        "{hidden}"
    );
    let reported = first_line("+Mea min");
    assert!(!reported.contains("carriers"), "{reported}");
}

/// The file and mapping that V8 writes for `perf inject` name functions of a script, also where V8's own functions,
/// which have no call frame information, run in node's file instead of a copy (`--no-short-builtin-calls`).
#[test]
fn script_function_is_named_by_jitdump() {
    let script = "
const memprof = { exports: {} }; process.dlopen(memprof, process.env.LIBRARY);
const held = [];
function keepForEver(size) { held.push(Buffer.alloc(size, 1)); }
function handleRequest() { for (let i = 0; i < 2000; i++) keepForEver(20000 + i % 10); }
memprof.exports.call('activate lg_sample=12');
for (let i = 0; i < 5; i++) handleRequest();
console.log(memprof.exports.call('dump').path);";
    let check = |options: &str| {
        let languages = Languages::new();
        std::fs::write(languages.path().join("leak.js"), script).unwrap();
        // A function that is compiled into its caller has no code of its own.
        let node = format!(
            "cd \"$PLACE\" && exec node --perf-prof --interpreted-frames-native-stack --no-turbo-inlining {options} \
             leak.js"
        );
        let env = [("LIBRARY", LIBRARY), ("PLACE", "{place}")];
        let ran = languages.run("nodejs", &["sh", "-c", &node], &env);
        let dump = ran.output.trim();
        assert!(ran.is_ok && dump.ends_with(".heap"), "{options}: {ran:?}");
        let report = memprof(languages.path(), &["report", dump]).exits(0).stdout;
        let mut rows = report
            .lines()
            .skip_while(|line| !line.trim_start().starts_with("flat"));
        let first = rows.nth(1).unwrap_or_default();
        assert!(
            first.contains("JS:") && first.contains("keepForEver"),
            "{options}: {report}"
        );
        let chain = memprof(languages.path(), &["report", "--format=collapsed", dump]).exits(0);
        assert!(
            chain.stdout.lines().any(|line| {
                let offset = |name| line.find(name);
                offset("handleRequest").is_some() && offset("handleRequest") < offset("keepForEver")
            }),
            "{options}: {}",
            chain.stdout
        );
    };
    check("");
    check("--no-short-builtin-calls");
}

/// A library that leaks in a program of each language, sampled by memprof in glibc's place.
#[test]
fn native_leak_is_named() {
    let languages = Languages::new();
    let leak = preloadable("native_leak.c", languages.path());
    std::fs::copy(&leak, languages.path().join("leak.node")).unwrap();
    let check = |package: &str, words: &[&str], env: &[(&str, &str)]| {
        let ran = languages.run(package, words, env);
        let dump = ran.output.trim();
        assert!(ran.is_ok && dump.ends_with(".heap"), "{words:?}: {ran:?}");
        let report = memprof(languages.path(), &["report", dump]).exits(0).stdout;
        let mut rows = report
            .lines()
            .skip_while(|line| !line.trim_start().starts_with("flat"));
        let first = rows.nth(1).unwrap_or_default();
        assert!(first.ends_with("planted_leak"), "{words:?}: {report}");
    };
    let script = "
import ctypes, memory_profile
library = ctypes.CDLL('PLACE/native_leak.so')
status = memory_profile.call('activate lg_sample=12')
assert status['allocators'][0]['sampler'] == 'memprof', status
library.planted_leak()
print(memory_profile.call('dump')['path'])";
    let script = script.replace("PLACE", languages.path().to_str().unwrap());
    check("python3", &[PYTHON, "-c", &script], &[PYTHON_PATH]);
    let script = "
const m = { exports: {} }; process.dlopen(m, process.env.LIBRARY);
const addon = () => process.dlopen({ exports: {} }, process.env.PLACE + '/leak.node');
addon();
const status = m.exports.call('activate lg_sample=12');
require('assert').equal(status.allocators[0].sampler, 'memprof');
addon();
console.log(m.exports.call('dump').path);";
    check(
        "nodejs",
        &["node", "-e", script],
        &[("LIBRARY", LIBRARY), ("PLACE", "{place}")],
    );
    let class = "
public class MemoryProfile {
    static native String send(String message);
    public static void main(String[] paths) {
        System.load(paths[0]);
        System.load(paths[1]);
        String status = send(\"activate lg_sample=12 format=json\");
        if (!status.contains(\"\\\"sampler\\\":\\\"memprof\\\"\")) throw new AssertionError(status);
        Leak.leak();
        System.out.println(send(\"dump\").replaceFirst(\"(?s).* to (\\\\S+\\\\.heap).*\", \"$1\"));
    }
}
class Leak { static native void leak(); }";
    std::fs::write(languages.path().join("MemoryProfile.java"), class).unwrap();
    let java = [
        "java",
        "{place}/MemoryProfile.java",
        LIBRARY,
        "{place}/native_leak.so",
    ];
    check("default-jdk-headless", &java, &[]);
}

/// A JVM with these options that waits for lines.
fn idle_jvm(options: &[&str]) -> Host {
    let place = tempfile::tempdir().unwrap();
    let class = "public class Idle { public static void main(String[] a) throws Exception {
        System.err.println(\"idle\"); while (System.in.read() > 0) System.err.println(\"alive\"); } }";
    let file = place.path().join("Idle.java");
    std::fs::write(&file, class).unwrap();
    let mut java = Command::new("java");
    java.args(options).arg(&file).stdin(Stdio::piped());
    let host = Host::spawn(java, place);
    host.wait_for_log("idle");
    host
}

/// The agent of `-agentpath` has a message, or none; the JVM starts also where it fails.
#[test]
fn jvm_starts_with_the_plugin() {
    let check = |options: &str, expected: Option<&str>| {
        let library = dist("plugins/memory_profile.so");
        let mut host = idle_jvm(&[&format!("-agentpath:{}{options}", library.display())]);
        if let Some(expected) = expected {
            host.wait_for_log(expected);
        }
        host.wait_for_thread("memprof-control");
        host.memprof("activate", &["lg_sample=12"]).exits(0);
        host.memprof("dump", &[]).exits(0);
        host.type_line("still");
        host.wait_for_log("alive");
    };
    check("", None);
    check("=activate lg_sample=12", Some("profiling is active"));
    check("=bogus", Some(UNKNOWN));
}

/// A JVM that runs gets the agent by jcmd, and by the protocol that jcmd speaks.
#[test]
fn running_jvm_loads_the_plugin() {
    let mut host = idle_jvm(&[]);
    let pid = host.pid().to_string();
    let library = dist("plugins/memory_profile.so");
    let jcmd = |message: &str| {
        let mut jcmd = Command::new("jcmd");
        jcmd.args([&pid, "JVMTI.agent_load"])
            .arg(&library)
            .arg(message);
        tool_text("default-jdk-headless", &mut jcmd)
    };
    assert!(jcmd("status").contains("return code: 0"));
    host.wait_for_log(INACTIVE);
    assert!(jcmd("bogus").contains("return code: 1"));
    host.wait_for_log(UNKNOWN);
    let mut attach = Command::new(PYTHON);
    attach
        .arg(source("hosts-examples/java/attach.py"))
        .args([&pid]);
    let answered = tool_text("python3", attach.arg(&library).arg("activate lg_sample=12"));
    assert!(
        answered.contains("return code: 0") || answered.ends_with("0\n"),
        "{answered}"
    );
    host.wait_for_log("profiling is active");
    host.wait_for_thread("memprof-control");
    host.memprof("dump", &[]).exits(0);
    host.type_line("still");
    host.wait_for_log("alive");
}

/// With the plugin preloaded and not asked for, programs write what they write without.
#[test]
fn programs_with_an_inactive_plugin_are_unchanged() {
    let languages = Languages::new();
    let check = |package: &str, words: &[&str]| {
        let alone = languages.run(package, words, &[]);
        let loaded = languages.run(package, words, &[("LD_PRELOAD", LIBRARY)]);
        assert!(alone.is_ok, "{words:?}: {alone:?}");
        assert_eq!(alone, loaded, "{words:?}");
    };
    check(
        "python3",
        &[
            PYTHON,
            "-c",
            "import os, sys, json, ssl, ctypes; print(sys.version, os.listdir('/proc/self/task') == [str(os.getpid())])",
        ],
    );
    check(
        "nodejs",
        &[
            "node",
            "-e",
            "console.log(process.version, require('zlib').gzipSync('x').length)",
        ],
    );
    check(
        "php-cli",
        &[
            "php",
            "-r",
            "echo PHP_VERSION, count(get_loaded_extensions());",
        ],
    );
    check(
        "ruby",
        &[
            "ruby",
            "-e",
            "require 'json'; require 'socket'; puts RUBY_VERSION, JSON.generate([1])",
        ],
    );
    check(
        "default-jdk-headless",
        &["java", "-Xshare:auto", "-version"],
    );
    check("openssl", &["openssl", "list", "-providers"]);
    check("openssl", &["openssl", "dgst", "-sha256", "/etc/hostname"]);
    check(
        "tcl",
        &[
            "sh",
            "-c",
            "echo 'puts [expr 6*7]; puts [package require http]' | tclsh",
        ],
    );
    for lua in ["lua5.1", "lua5.3", "lua5.4", "luajit"] {
        check(
            lua,
            &[lua, "-e", "print(_VERSION, pcall(require, 'no_such'))"],
        );
    }
    let started: Vec<PathBuf> = std::fs::read_dir(languages.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(started, [] as [PathBuf; 0]);
    let threads = "
import ctypes, os
ctypes.CDLL('LIBRARY')
print(os.listdir('/proc/self/task') == [str(os.getpid())])";
    let threads = threads.replace(
        "LIBRARY",
        dist("plugins/memory_profile.so").to_str().unwrap(),
    );
    let loaded = languages.run("python3", &[PYTHON, "-c", &threads], &[]);
    assert_eq!(loaded.output, "True\n", "{loaded:?}");
}
