//! Running other programs, in the project's root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The project's root directory, in which this program was built.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("xtask lies in dev").to_owned()
}

/// The directories of the workspace's crates, from the root. Fails if Cargo.toml lists them in another form.
pub fn members() -> Result<Vec<String>> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let members = manifest.lines().filter_map(|line| {
        let member = line.trim().strip_prefix('"')?.strip_suffix("\",")?;
        Some(member.to_owned())
    });
    let members: Vec<_> = members.collect();
    // Fewer mean that the manifest lists them in another form, which the filter misses.
    ensure!(
        members.len() > 10,
        "the workspace's Cargo.toml names no members"
    );
    Ok(members)
}

/// Returns a command of the cargo that runs this program, or else of the one in `PATH`, in the project's root.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs a command to its end. Fails if it cannot be started, or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("failed to start {shown}"))?;
    ensure!(status.success(), "{shown}: {status}");
    Ok(())
}

/// Copies a program that is to be run. Another process writes the copy: what a second thread starts meanwhile would
/// inherit a descriptor of this one, and a file that is open for writing cannot be run (`ETXTBSY`).
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--").args([from, to]))
}

/// Runs a command to its end, and returns what it wrote to stdout. Fails if it cannot be started, does not succeed, or
/// writes no UTF-8.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command
        .output()
        .with_context(|| format!("failed to start {shown}"))?;
    let notes = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{shown}: {}\n{notes}",
        output.status
    );
    String::from_utf8(output.stdout).with_context(|| format!("{shown}: its output is not UTF-8"))
}
