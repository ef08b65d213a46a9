//! What was compiled for version 0.1, and what is compiled now, with each other.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::dist::{dist, source, tool_text};
use crate::memprof::memprof;

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
