//! Running other programs, in the project's root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the root directory of the project's sources from which this program was built.
pub fn project_root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("xtask lies in dev").to_owned()
}

/// Returns the directories of the workspace's crates, relative to the root. Fails if Cargo.toml lists them in another
/// form than one a line.
pub fn workspace_members() -> Result<Vec<String>> {
    let manifest = fs::read_to_string(project_root().join("Cargo.toml"))?;
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
pub fn cargo_command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(project_root());
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

/// Copies a program that is to be run. cp(1) writes the copy: a program that another thread starts meanwhile would
/// inherit a descriptor of this process, and a file that is open for writing cannot be run (`ETXTBSY`).
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
