//! Real processes: planted leaks are found, and the processes run on unharmed.

mod arenas;
mod exits;
mod held;
mod holders;
mod hostile;
mod leaks;
mod moves;
mod python;
mod refusals;
mod scattered;
mod snapshots;
#[expect(dead_code, reason = "what memprof-ptrace's tests need besides")]
#[path = "../../../memprof-ptrace/tests/processes/target.rs"]
mod target;

use std::path::Path;
use std::process::Command;

use target::{Target, built};

/// Starts a program of this folder with arguments.
fn start(name: &str, mode: &[&str]) -> Target {
    Target::from_command(Command::new(compiled(name)).args(mode))
}

fn compiled(name: &str) -> std::path::PathBuf {
    built(name, |path: &Path| {
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        command.arg(format!("{name}.c")).arg("-o").arg(path);
        command
    })
}
