//! Programs in C of tests/fixtures, which say `ready` and then answer each line with `served LINE`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::dist::{source, tool_text};
use crate::host::Host;

/// Compiles one, with these options besides warnings as errors. It lies in the directory.
pub(crate) fn build(file: &str, options: &[&str]) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("program");
    let mut command = Command::new("cc");
    command
        .args(["-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(source("outside/memprof-cli/tests/fixtures").join(file))
        .args(options)
        .arg("-o")
        .arg(&program);
    tool_text("gcc", &mut command);
    (place, program)
}

/// Starts one, or another program that does the same.
pub(crate) fn start(mut command: Command) -> Host {
    command.stdin(Stdio::piped());
    let host = Host::spawn(command, tempfile::tempdir().unwrap());
    host.wait_for_log("ready");
    host
}

/// Sends a line, with a number that no other one has, and waits for its answer.
pub(crate) fn serves(host: &mut Host, line: &str) {
    static LINES: AtomicU32 = AtomicU32::new(0);
    let line = format!("{line} {}.", LINES.fetch_add(1, Ordering::Relaxed));
    host.type_line(&line);
    host.wait_for_log(&format!("served {line}"));
}
