//! What the plugin's file must and must not contain.

use std::process::Command;

use crate::dist::{dist, tool_text};

fn nm(options: &[&str], plugin: &str) -> Vec<String> {
    let output = tool_text(
        "binutils",
        Command::new("nm").args(options).arg(dist(plugin)),
    );
    let names = output
        .lines()
        .filter_map(|line| line.split_whitespace().last());
    names.map(str::to_owned).collect()
}

const PLUGINS: [&str; 2] = ["plugins/memory_profile.so", "plugins/hello_rust.so"];

#[test]
fn plugins_export_their_entry_and_nothing_else() {
    for plugin in PLUGINS {
        let mut exported = nm(&["-D", "--defined-only"], plugin);
        exported.sort();
        // The second one is abi_stable's description of the layouts.
        let expected = [
            "_1as_0lib_1header_0root_bmodule_bloader",
            "memprof_plugin_entry",
        ];
        assert_eq!(exported, expected, "{plugin}");
    }
}

#[test]
fn memory_profile_contains_no_jemalloc_of_its_own() {
    let symbols = nm(&["--defined-only"], "plugins/memory_profile.so");
    let jemalloc: Vec<_> = symbols.iter().filter(|name| name.contains("je_")).collect();
    assert!(jemalloc.is_empty(), "{jemalloc:?}");
    assert!(
        symbols.iter().any(|name| name == "_rjem_mallctl"),
        "the shim is missing"
    );
}

#[test]
fn plugins_can_be_loaded_late_and_stay_loaded() {
    for plugin in PLUGINS {
        let mut readelf = Command::new("readelf");
        let dynamic = tool_text("binutils", readelf.args(["-d", "-W"]).arg(dist(plugin)));
        assert!(dynamic.contains("NODELETE"), "{plugin}: {dynamic}");
        assert!(dynamic.contains("SYMBOLIC"), "{plugin}: {dynamic}");
        // A static TLS block is full once a program runs.
        assert!(!dynamic.contains("STATIC_TLS"), "{plugin}: {dynamic}");
    }
}
