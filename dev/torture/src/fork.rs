//! A program forks while its threads allocate and talk to the plugin: what a child has of the
//! activation is off, and whole when it is switched on there. Another one forks in the moment when the plugin
//! begins: no child waits for a thread that it does not have.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use super::SuiteLength;
use super::host_dir::HostDir;
use xtask::dist::dist;
use xtask::run::output;

/// Whose children are looked at.
const ALLOCATORS: [(&str, &[(&str, &str)]); 2] = [
    (
        "jemalloc",
        &[
            ("LD_PRELOAD", "libjemalloc.so.2"),
            ("MALLOC_CONF", "prof:true,prof_active:false"),
        ],
    ),
    ("glibc, sampled by memprof", &[]),
];

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let at_work = fork_under_load(form)?;
    let begins = fork_while_it_begins(form)?;
    Ok(format!("{at_work}; {begins}"))
}

fn fork_under_load(form: SuiteLength) -> Result<String> {
    let children = form.pick(20, 200);
    for (name, env) in ALLOCATORS {
        let place = HostDir::new()?;
        let config = place.path().join("host.toml");
        let text = format!(
            "[control]\nsocket = {:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
            place.socket(),
            dist().join("plugins/memory_profile.so"),
            place.dumps()
        );
        fs::write(&config, text)?;
        let mut forker = Command::new(dist().join("torture/forker"));
        forker.arg(&config).arg(children.to_string());
        forker.env("MEMPROF_SOCKET_DIR", place.path().join("run"));
        let told = output(forker.envs(env.iter().copied()))?;
        let whole = told.lines().filter(|line| *line == "exit 0").count();
        ensure!(whole == children, "{name}: {whole} of {children}: {told}");
    }
    Ok(format!(
        "{} children of {} programs whose threads were at work: none sampled by itself, each did when \
         it was told to, and dumped",
        children * ALLOCATORS.len(),
        ALLOCATORS.len()
    ))
}

/// Allocators that are preloaded, which a fork prepares in different ways, and whether a seccomp filter is there to be
/// tried out.
const BEGINNINGS: [(&str, &str); 4] = [
    ("", "free"),
    ("", "filtered"),
    ("libjemalloc.so.2", "free"),
    ("libjemalloc.so.2", "filtered"),
];

fn fork_while_it_begins(form: SuiteLength) -> Result<String> {
    let programs = form.pick(3, 100);
    let place = HostDir::new()?;
    let mut children = 0;
    for (preloaded, filter) in BEGINNINGS {
        for _ in 0..programs {
            let mut beginner = Command::new(dist().join("torture/beginner"));
            beginner.arg(dist().join("plugins/memory_profile.so"));
            beginner.arg(filter).env("LD_PRELOAD", preloaded);
            beginner.env("MEMPROF_SOCKET_DIR", place.path().join("run"));
            beginner.env("MEMPROF_DUMP_DIR", place.dumps());
            let told = output(&mut beginner)?;
            let is_whole = |line: &str| line.starts_with("exit 0");
            ensure!(
                told.lines().all(is_whole),
                "{preloaded:?}, {filter}: {told}"
            );
            children += told.lines().count();
        }
    }
    Ok(format!(
        "{children} children that were forked while the plugin began: each was answered"
    ))
}
