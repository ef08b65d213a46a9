//! Profile of a running process that samples, for `memprof report`.

use std::path::Path;

use memprof_messages::Profiling;

use crate::exit::{NO_DATA, UNREACHABLE, USAGE, with_exit_code};
use crate::message::{self, TakenDump};
use crate::output::one_line;
use crate::process_arg;
use crate::process_names::{describe_process, host_display_name, pids_with_name};
use crate::scratch::ScratchFile;
use crate::slow_step::SlowStep;
use crate::subject::{Subject, find_subject};
use crate::target;

pub(crate) struct LiveProfile {
    pub(crate) file: ScratchFile,
    /// Pid and name of the process.
    pub(crate) name: String,
    pub(crate) pid: u32,
}

/// Returns whether a path is an existing file or `-` for stdin, and not the name of a process.
pub(crate) fn is_file_or_stdin(path: &Path) -> bool {
    path == Path::new("-") || path.exists()
}

/// Takes the profile of the running process that `target` names. `None` if no process has the name, so that the caller
/// reports a missing file.
///
/// # Errors
/// Several processes have the name, or the process has no plugin or samples nothing.
pub(crate) fn take_profile_if_process(target: &Path) -> anyhow::Result<Option<LiveProfile>> {
    let Some(target) = target.to_str() else {
        return Ok(None);
    };
    match process_arg::parse_process(target) {
        // Several processes have the name.
        Err(error) if !pids_with_name(target).is_empty() => {
            return Err(with_exit_code(USAGE, error.to_string()));
        }
        Err(_) => return Ok(None),
        Ok(_) => {}
    }
    take_profile(target).map(Some)
}

/// Takes the profile of the running process that `target` names.
///
/// # Errors
/// No process or several have the name, or the process has no plugin or samples nothing.
pub(crate) fn take_profile(target: &str) -> anyhow::Result<LiveProfile> {
    let mut client = match find_subject(None, Some(target))? {
        Subject::Host(client) => client,
        Subject::Process(pid) => {
            let message = format!(
                "{} runs without the plugin, so there is no profile of it: `memprof record {pid}` takes one, with the \
                 same options",
                describe_process(pid)
            );
            return Err(with_exit_code(UNREACHABLE, message));
        }
    };
    let pid = target::host_pid(&mut client)?;
    let name = client.host_info()?.name;
    let name = format!("{pid} ({})", one_line(&host_display_name(pid, name)));
    if client.status()?.profiling != Profiling::Active {
        let message = format!(
            "{name} samples nothing: `memprof activate {pid}` begins, `memprof record {pid}` samples for 30 s"
        );
        return Err(with_exit_code(NO_DATA, message));
    }
    let _step = SlowStep::begin(format!("{name}: taking a profile"));
    let mut file = ScratchFile::new()?;
    match message::take_dump(&mut client, &["keep=off".to_owned()])? {
        TakenDump::Received(mut bytes) => file.append(&mut bytes)?,
        // With `keep=off`, only an error comes without a dump.
        TakenDump::Kept(reply) => {
            reply.into_success()?;
        }
    }
    Ok(LiveProfile { file, name, pid })
}
