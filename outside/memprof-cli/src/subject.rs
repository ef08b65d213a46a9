//! Process that a command is about, with the plugin or without.

use std::fs;
use std::path::Path;

use memprof_host::client::Client;
use memprof_ptrace::Halt;
use memprof_ptrace::executable::has_plugin;

use crate::exit::{self, UNREACHABLE, USAGE, with_exit_code};
use crate::process_arg;
use crate::target::{TargetArgs, connect, connect_to_host, socket_path};

/// Process that a command is about.
pub(crate) enum Subject {
    /// Host: its plugin answers.
    Host(Client),
    /// Pid of a process without a plugin that answers, which is examined from outside.
    Process(u32),
}

/// Connects to the host that the arguments name, or finds the process of that name that is no host. `first` is a target
/// in front of the other arguments; `args` are the options, `None` for a command without them. If neither names a
/// target, the only running host is meant.
///
/// # Errors
/// As for [`connect_to_host`]; no process has the name, or several have it.
pub(crate) fn find_subject(
    args: Option<&TargetArgs>,
    first: Option<&str>,
) -> anyhow::Result<Subject> {
    let connected = match args {
        Some(args) => connect_to_host(args, first),
        None => connect(first),
    };
    let error = match connected {
        Ok(client) => return Ok(Subject::Host(client)),
        Err(error) => error,
    };
    let target = first.or_else(|| args?.target.as_deref());
    match target.filter(|target| socket_path(target).is_none()) {
        Some(target) if exit::code_number_of_error(&error) == UNREACHABLE => {
            match process_arg::parse_process(target) {
                // A halted host cannot answer now, but is no process without the plugin.
                Ok(pid) if Halt::for_pid(pid).is_some() && maps_plugin(pid) => Err(error),
                Ok(pid) if Path::new("/proc").join(pid.to_string()).exists() => {
                    Ok(Subject::Process(pid))
                }
                Ok(_) => Err(error),
                Err(error) => Err(with_exit_code(USAGE, error.to_string())),
            }
        }
        _ => Err(error),
    }
}

/// Returns whether the plugin is mapped in a process.
fn maps_plugin(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| has_plugin(&maps))
}
