//! Suite `fork`: a program forks while its threads allocate and send messages to the plugin. Its children do not sample
//! until they are activated. Another program forks while the plugin starts; no child waits for a thread that it does
//! not have.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::limit_time;

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

/// Time limit of a program: some minutes more than its children have, which end themselves by an alarm.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(600);

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
        forker.envs(env.iter().copied());
        let output_text = output(&mut limit_time(&forker, PROGRAM_TIMEOUT)).context(name)?;
        check_exits(&output_text, children).context(name)?;
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

/// Children of beginner.c: 8 of each of its 3 threads that fork.
const BEGINNERS_CHILDREN: usize = 3 * 8;

/// Runs beginner.c, which forks while the plugin starts, a few times in each way of [`STARTS`]. Returns the figures as
/// text. Fails unless each child exits with 0.
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
            let output_text = output(&mut limit_time(&beginner, PROGRAM_TIMEOUT))?;
            check_exits(&output_text, BEGINNERS_CHILDREN)
                .with_context(|| format!("{preloaded:?}, {filter}"))?;
            children += BEGINNERS_CHILDREN;
        }
    }
    Ok(format!(
        "{children} children that were forked while the plugin started: each got a reply"
    ))
}

/// Checks what a program prints about its children: for each the line `exit 0`, after which a colon and more
/// may follow, and no other line.
fn check_exits(printed: &str, children: usize) -> Result<()> {
    let is_success = |line: &&str| line.split(':').next() == Some("exit 0");
    let succeeded = printed.lines().filter(is_success).count();
    ensure!(
        succeeded == children && printed.lines().count() == children,
        "{succeeded} of {children} children succeeded: {printed:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_exits;

    #[test]
    fn each_child_must_exit_with_success() {
        let check = |printed: &str, is_good| {
            assert_eq!(check_exits(printed, 2).is_ok(), is_good, "{printed:?}");
        };
        check("exit 0\nexit 0\n", true);
        check("exit 0: kind 0\nexit 0: kind 1\n", true);
        check("", false);
        check("exit 0\n", false);
        check("exit 0\nexit 4: kind 0\n", false);
        check("exit 0\nsignal 14\n", false);
        check("exit 0\nexit 0\nexit 2\n", false);
    }
}
