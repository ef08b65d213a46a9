//! Programs that export functions of their own under names of the C library's.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::artifact::nm;
use crate::attach::{attach, detach};
use crate::dist::dist;
use crate::fixture::{self, serves};
use crate::host::Host;

/// Names that stay with the program: `malloc`, and the functions that the C library itself calls beside it. Variables are
/// copied into programs. The others are of the compiler's start files, in the program as well.
const NOT_DEFINED: [&str; 7] = [
    "__cxa_finalize",
    "calloc",
    "environ",
    "free",
    "malloc",
    "realloc",
    "__gmon_start__",
];

/// Names that the plugin looks up by dlsym(3).
const LOOKED_UP: [&str; 2] = ["_dl_find_object", "__pthread_get_minstack"];

/// Functions that the plugin imports, and those that it imports with some linkers or profiles.
fn names() -> Vec<String> {
    let imports = nm(&["-D", "--undefined-only"], "plugins/memory_profile.so");
    let mut names: Vec<String> = imports
        .iter()
        .map(|name| name.split('@').next().unwrap().to_owned())
        .chain(LOOKED_UP.map(str::to_owned))
        .filter(|name| !NOT_DEFINED.contains(&name.as_str()) && !name.starts_with("_ITM_"))
        .collect();
    names.sort();
    names.dedup();
    assert!(names.len() > 60, "{names:?}");
    names
}

/// `own_names.c`, compiled with these options; its functions are those of the names.
fn build(names: &[String], options: &[&str]) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let mut list = String::new();
    for name in names {
        writeln!(list, "NAME({name})").unwrap();
    }
    let header = place.path().join("names.h");
    fs::write(&header, list).unwrap();
    let include = format!("-DNAMES=\"{}\"", header.display());
    let options = [&["-w", "-fno-builtin", "-rdynamic", &include], options].concat();
    fixture::build("own_names.c", &options)
}

/// Has the plugin do all that it does for messages.
fn is_profiled(host: &mut Host) {
    host.memprof("activate", &["sample_interval=1KiB"]).exits(0);
    serves(host, "profiled");
    host.memprof("dump", &[]).exits(0);
    for command in ["status", "stats", "doctor"] {
        let run = host.memprof(command, &[]);
        assert!(!run.stdout.is_empty(), "{command}: {run:?}");
    }
    host.memprof("deactivate", &[]).exits(0);
    serves(host, "after it");
}

#[test]
fn attached_plugin_calls_no_function_of_the_program() {
    let check = |options: &[&str]| {
        let (_place, program) = build(&names(), options);
        let mut host = fixture::start(Command::new(program));
        for _ in 0..2 {
            attach(&host, &[]).exits(0);
            is_profiled(&mut host);
            detach(&host, &[]).exits(0);
            serves(&mut host, "detached");
        }
    };
    check(&[]);
    check(&["-no-pie"]);
    check(&["-Wl,--hash-style=sysv", "-Wl,-z,now"]);
}

#[test]
fn preloaded_plugin_calls_no_function_of_the_program() {
    let (_place, program) = build(&names(), &[]);
    let mut command = Command::new(dist("bin/memprof"));
    command.arg("run").arg(program).env("MEMPROF_LOG", "info");
    let mut host = fixture::start(command);
    host.wait_for_log("control socket");
    is_profiled(&mut host);
}
