//! memprof's sampler in the command of `--at-exit`, so that its leaked objects have stacks.

use std::process::{self, Command};

use crate::run::{Program, find_plugin, preload_value};

/// Variable that lets the preloaded plugin sample a process (memprof-host, `adapters::preload`).
const SAMPLED_CHILD_VARIABLE: &str = "MEMPROF_SAMPLED_CHILD";

/// Preloads the sampler into a command, which then samples an allocation per `2^lg_sample` bytes. The processes that
/// the command starts are not sampled: an environment variable names this process as the parent of the sampled one.
///
/// # Errors
/// Nothing can be preloaded, with the reason; the command is unchanged.
pub(super) fn preload_sampler(command: &mut Command, lg_sample: u8) -> anyhow::Result<()> {
    Program::find(command.get_program())?;
    let plugin = find_plugin(None)?;
    let before = std::env::var_os("LD_PRELOAD");
    let preload = preload_value(before.as_deref(), [plugin.as_path()])?;
    command.env("LD_PRELOAD", preload);
    command.env(
        SAMPLED_CHILD_VARIABLE,
        format!("{}:{lg_sample}", process::id()),
    );
    Ok(())
}
