//! A jemalloc without `experimental.hooks.install`, as 5.4 is to be: linked into a program, it is sampled by jumps alone.
//!
//! No registry has sources of 5.4 yet. This one is 5.3.1 of tikv-jemalloc-sys without the two entries in its table of
//! controls, which is all that jemalloc's development branch took away of what memprof uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::attach::{attach, detach};
use crate::attach_linked::Linked;
use crate::dist::{dist, tool_text};

const REMOVED: [&str; 2] = [
    "{NAME(\"install\"), CTL(experimental_hooks_install)},",
    "{NAME(\"remove\"), CTL(experimental_hooks_remove)},",
];

/// The crate's folder, as cargo keeps it.
fn crate_sources() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap());
    // Crates of other platforms are not there.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    cargo.args(["metadata", "--offline", "--format-version", "1"]);
    cargo.args(["--filter-platform", &platform]);
    let metadata: serde_json::Value =
        serde_json::from_str(&tool_text("cargo", &mut cargo)).unwrap();
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    let package = packages.find(|package| package["name"] == "tikv-jemalloc-sys");
    let manifest = package.unwrap()["manifest_path"].as_str().unwrap();
    Path::new(manifest).parent().unwrap().to_owned()
}

/// The library, built once a machine: it takes a minute.
fn library() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jemalloc-without-hooks");
    let library = place.join("lib/libjemalloc.a");
    if library.exists() {
        return library;
    }
    let sources = crate_sources();
    let copied = format!(
        "rm -rf '{0}' && cp -r '{1}/jemalloc' '{0}' && cp '{1}'/configure/* '{0}'",
        place.display(),
        sources.display()
    );
    tool_text("coreutils", Command::new("sh").args(["-c", &copied]));
    let table = place.join("src/ctl.c");
    let mut text = fs::read_to_string(&table).unwrap();
    for entry in REMOVED {
        assert!(text.contains(entry), "{entry}");
        text = text.replace(entry, "");
    }
    fs::write(&table, text).unwrap();
    let mut configure = Command::new("sh");
    configure.current_dir(&place).env("CFLAGS", "-O1 -g1");
    configure.args([
        "configure",
        "--disable-cxx",
        "--enable-doc=no",
        "--enable-prof",
    ]);
    tool_text("gcc", configure.arg("--with-version=5.4.0-0-g0"));
    let mut make = Command::new("make");
    tool_text(
        "make",
        make.current_dir(&place).args(["-j2", "lib/libjemalloc.a"]),
    );
    library
}

#[test]
fn jemalloc_without_hooks_is_sampled_after_attach_patched_it() {
    let library = library();
    let memprof = dist("bin/memprof");
    let linked = Linked {
        name: "jemalloc",
        options: &[],
        library: None,
    };
    let check = |conf: &str, has_profiler: bool| {
        let starter = ["/usr/bin/env", conf, memprof.to_str().unwrap(), "run", "--"];
        let mut program = linked.start_by(&starter, &[library.to_str().unwrap(), "-lm"]);
        program.host.wait_for_thread("memprof-control");
        let pid = program.host.pid();
        let way = format!("`memprof attach {pid} sampler=memprof`");
        let refused = program
            .host
            .memprof("activate", &["sampler=memprof"])
            .exits(4);
        for word in ["jemalloc 5.4.0", "experimental.hooks.install", &way] {
            assert!(refused.stderr.contains(word), "{refused:?}");
        }
        let doctor = program.host.memprof("doctor", &[]);
        assert_eq!(doctor.stdout.contains(&way), !has_profiler, "{doctor:?}");
        let ledger = program.host.memprof("ledger", &[]).exits(0);
        assert!(ledger.stdout.contains("jemalloc 5.4.0"), "{ledger:?}");

        let attached = attach(&program.host, &["sampler=memprof"]).exits(0).json();
        assert!(
            attached["entries"]["functions"].as_u64() >= Some(7),
            "{attached}"
        );
        let keys = ["sampler=memprof", "sample_interval=1KiB"];
        program.host.memprof("activate", &keys).exits(0);
        assert_eq!(program.own_malloc()["interception"], "entry_patches");
        program.does("keep malloc 100");
        assert!(
            (99..=100).contains(&program.counts()[1]),
            "{:?}",
            program.counts()
        );
        program.does("drop");
        assert_eq!(program.counts()[1], 0);
        detach(&program.host, &[]).exits(0);
        program.does("keep malloc 100");
    };
    check("MALLOC_CONF=prof:true,prof_active:false", true);
    check("MALLOC_CONF=prof:false", false);
}
