//! Suite `fork`: a program forks while its threads allocate and send messages to the plugin. Its children do not sample
//! until they are activated. Another program forks while the plugin starts; no child waits for a thread that it does
//! not have.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use super::SuiteLength;
use super::host_dir::HostDir;
use xtask::dist::dist_dir;
use xtask::run::output;

/// Allocators of the forking program, with their environment.
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

/// Runs the suite `fork`, and returns its figures in one line. Fails if a child fails or hangs.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let under_load = fork_under_load(length)?;
    let starts = fork_during_start(length)?;
    Ok(format!("{under_load}; {starts}"))
}

/// Runs forker.c, which forks while its threads allocate, with each allocator. Returns the figures as text. Fails
/// unless the program prints `exit 0` for each child.
fn fork_under_load(length: SuiteLength) -> Result<String> {
    let children = length.pick(20, 200);
    for (name, env) in ALLOCATORS {
        let dir = HostDir::new()?;
        let config = dir.path().join("host.toml");
        let text = format!(
            "[control]\nsocket = {:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
            dir.socket_path(),
            dist_dir().join("plugins/memory_profile.so"),
            dir.dump_dir()
        );
        fs::write(&config, text)?;
        let mut forker = Command::new(dist_dir().join("torture/forker"));
        forker.arg(&config).arg(children.to_string());
        forker.env("MEMPROF_SOCKET_DIR", dir.path().join("run"));
        let output_text = output(forker.envs(env.iter().copied()))?;
        let succeeded = output_text.lines().filter(|line| *line == "exit 0").count();
        ensure!(
            succeeded == children,
            "{name}: {succeeded} of {children}: {output_text}"
        );
    }
    Ok(format!(
        "{} children of {} programs under load: none sampled before it was activated, each did \
         afterwards, and dumped",
        children * ALLOCATORS.len(),
        ALLOCATORS.len()
    ))
}

/// Preloaded allocators, which prepare for a fork in different ways, and whether the program has a seccomp filter,
/// which the plugin then probes.
const STARTS: [(&str, &str); 4] = [
    ("", "free"),
    ("", "filtered"),
    ("libjemalloc.so.2", "free"),
    ("libjemalloc.so.2", "filtered"),
];

/// Runs beginner.c, which forks while the plugin starts, a few times in each way of [`STARTS`]. Returns the figures as
/// text. Fails if a child does not exit with 0.
fn fork_during_start(length: SuiteLength) -> Result<String> {
    let programs = length.pick(3, 100);
    let dir = HostDir::new()?;
    let mut children = 0;
    for (preloaded, filter) in STARTS {
        for _ in 0..programs {
            let mut beginner = Command::new(dist_dir().join("torture/beginner"));
            beginner.arg(dist_dir().join("plugins/memory_profile.so"));
            beginner.arg(filter).env("LD_PRELOAD", preloaded);
            beginner.env("MEMPROF_SOCKET_DIR", dir.path().join("run"));
            beginner.env("MEMPROF_DUMP_DIR", dir.dump_dir());
            let output_text = output(&mut beginner)?;
            let is_success = |line: &str| line.starts_with("exit 0");
            ensure!(
                output_text.lines().all(is_success),
                "{preloaded:?}, {filter}: {output_text}"
            );
            children += output_text.lines().count();
        }
    }
    Ok(format!(
        "{children} children that were forked while the plugin started: each got a reply"
    ))
}
