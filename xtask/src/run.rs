//! Running other programs, in the project's root.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The project's root.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the root").to_owned()
}

/// `cargo`, the one that runs this.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("failed to start {shown}"))?;
    ensure!(status.success(), "{shown}: {status}");
    Ok(())
}

/// Runs a command to its end and returns what it wrote to stdout.
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
