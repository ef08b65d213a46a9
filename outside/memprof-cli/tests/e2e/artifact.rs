//! What the plugin's file must and must not contain.

use std::process::Command;

use crate::dist::{dist, tool_text};

/// The last words of nm's lines: names.
pub(crate) fn nm(options: &[&str], plugin: &str) -> Vec<String> {
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
        let name = plugin
            .trim_start_matches("plugins/")
            .trim_end_matches(".so");
        // One of them is abi_stable's description of the layouts; most others are what programs
        // look for, some by the name of the library.
        let mut expected = [
            "Agent_OnAttach",
            "Agent_OnLoad",
            "Init_{}",
            "JNI_OnLoad",
            "PyInit_{}",
            "Pg_magic_func",
            "RedisModule_OnLoad",
            "TSPluginInit",
            "_1as_0lib_1header_0root_bmodule_bloader",
            "_PG_init",
            "luaopen_{}",
            "memprof_adapter_instance",
            "memprof_adapter_lock",
            "memprof_attached",
            "memprof_plugin_entry",
            "mosquitto_plugin_cleanup",
            "mosquitto_plugin_init",
            "mosquitto_plugin_version",
            "napi_register_module_v1",
            "ngx_module_names",
            "ngx_modules",
            "pg_finfo_pg_{}",
            "pg_finfo_pg_{}_all",
            "pg_{}",
            "pg_{}_all",
            "{}",
            "{}_deinit",
            "{}_free",
            "{}_init",
            "{}_module",
            "{}_send",
        ]
        .map(|exported| exported.replace("{}", name));
        expected.sort();
        // Looked up by the sampler, which works under the loader's lock then, and by `memprof attach`.
        let looked_up = ["memprof_loader_is_locked", "memprof_entry_tables"];
        exported.retain(|name| !looked_up.contains(&&**name));
        assert_eq!(exported, expected, "{plugin}");
    }
}

#[test]
fn plugins_import_nothing_from_the_host() {
    for plugin in PLUGINS {
        let needed = nm(&["-D", "--undefined-only"], plugin);
        // The compiler's own, weak; resolved to null if no library defines them.
        let weak = ["_ITM_", "__gmon_start__"];
        let known = |name: &String| {
            name.contains("@GLIBC_") || weak.iter().any(|prefix| name.starts_with(prefix))
        };
        let strange: Vec<_> = needed.iter().filter(|name| !known(name)).collect();
        assert!(strange.is_empty(), "{plugin}: {strange:?}");
    }
}

#[test]
fn memory_profile_contains_no_jemalloc() {
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
        // A root may have nothing but the C library: no libgcc_s. libm's `expm1` differs from one version to the
        // next, and two pages of it are the host's own.
        let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
        let mut needed: Vec<_> = needed
            .filter_map(|line| line.split(['[', ']']).nth(1))
            .collect();
        needed.sort_unstable();
        assert_eq!(needed, ["ld-linux-x86-64.so.2", "libc.so.6"], "{plugin}");
    }
}

#[test]
fn sampler_probes_are_described_in_a_note() {
    let mut readelf = Command::new("readelf");
    let notes = readelf.args(["--notes", "--wide"]).arg(dist(PLUGINS[0]));
    let notes = tool_text("binutils", notes);
    let notes: Vec<&str> = notes.lines().map(str::trim).collect();
    for (probe, arguments) in [("alloc", "8@%rdi 8@%rsi 8@%rdx"), ("free", "8@%rdi")] {
        let name = format!("Name: {probe}");
        let mut found = notes.windows(4).filter(|lines| lines[1] == name).peekable();
        assert!(found.peek().is_some(), "{probe}: {notes:?}");
        for lines in found {
            assert!(lines[0].ends_with("Provider: otel_memory"), "{lines:?}");
            let (_, semaphore) = lines[2].split_once("Semaphore: 0x").unwrap();
            assert!(u64::from_str_radix(semaphore, 16).unwrap() > 0, "{lines:?}");
            assert_eq!(lines[3], format!("Arguments: {arguments}"));
        }
    }
}
