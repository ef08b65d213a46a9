//! `memprof check PLUGIN.so`: would a host take it?
//!
//! Loading runs the file's constructors, so it happens in a child: a plugin that crashes there
//! is a finding, not the end.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::exit::{FAILED, Outcome, code_of_status, coded};
use crate::output;

pub(crate) fn run(plugin: &Path) -> Outcome {
    let own = std::env::current_exe().context("failed to find this program")?;
    let status = Command::new(own)
        .arg("check")
        .arg("--in-child")
        .arg(std::path::absolute(plugin)?)
        .status()
        .context("failed to start the child that loads the plugin")?;
    if let Some(signal) = status.signal() {
        let message = format!(
            "{}: loading it ended the process by signal {signal}",
            plugin.display()
        );
        return Err(coded(FAILED, message));
    }
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(FAILED);
    Ok(code.into())
}

pub(crate) fn in_child(plugin: &Path) -> Outcome {
    let (info, warning) = memprof_host::check(plugin, None)
        .map_err(|refused| coded(code_of_status(refused.status()), refused.to_string()))?;
    output::print(&format!(
        "{}: plugin {} {}, messages: {}",
        plugin.display(),
        info.id,
        info.version,
        info.messages.join(", ")
    ));
    if let Some(warning) = warning {
        output::note(&format!("{}: {warning}", plugin.display()));
    }
    Ok(0.into())
}
