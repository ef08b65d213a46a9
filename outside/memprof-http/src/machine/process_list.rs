//! The processes of the machine, as `memprof ps --all` lists them.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::job::{MAX_PAGE_BYTES, create_memory_file, read_first_bytes, read_last_text};
use crate::problem::{Problem, Result};

/// Age up to which a list is shown again: it costs some CPU time for each process.
const MAX_AGE: Duration = Duration::from_secs(2);
/// Time after which a list is given up. The command itself takes 35 s at most, on a machine that gives it a processor:
/// for hosts that do not answer, and for processes.
const MAX_TIME: Duration = Duration::from_secs(45);
/// Pause between two looks at whether the command has ended.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Lists the processes.
#[derive(Debug)]
pub(super) struct ProcessList {
    program: PathBuf,
    /// The last list, as JSON, or the reason why there is none, with its time. Locked while a list is made, so that
    /// requests share it.
    last: Mutex<Option<(Instant, Result<Vec<u8>>)>>,
}

impl ProcessList {
    /// Creates the list, which is empty until the first request; `program` is memprof's executable.
    pub(super) fn new(program: PathBuf) -> Self {
        Self {
            program,
            last: Mutex::default(),
        }
    }

    /// Returns the JSON of `memprof ps --all`, at most [`MAX_AGE`] (2 s) old. If the last result is older, runs the
    /// command, and requests that come meanwhile wait for the new result. A failure is also kept for that time.
    ///
    /// # Errors
    /// The command fails, with its message.
    pub(super) async fn list(&self) -> Result<Vec<u8>> {
        let mut last = self.last.lock().await;
        if let Some((time, list)) = &*last
            && time.elapsed() < MAX_AGE
        {
            return list.clone();
        }
        let mut command = Command::new(&self.program);
        command.args(["ps", "--all", "--json"]);
        let listed = spawn_blocking(move || run_list_command(&mut command, MAX_TIME)).await;
        let listed = listed.unwrap_or_else(|error| Err(Problem::internal(error.to_string())));
        *last = Some((Instant::now(), listed.clone()));
        listed
    }
}

/// Runs `command`, which lists the processes, and returns its output, at most [`MAX_PAGE_BYTES`]. Blocks.
///
/// # Errors
/// The command cannot be started, fails, or takes longer than `limit`; then the command is killed.
fn run_list_command(command: &mut Command, limit: Duration) -> Result<Vec<u8>> {
    let failed = |error: io::Error| Problem::internal(format!("failed to list processes: {error}"));
    let [output, messages] = [
        create_memory_file().map_err(failed)?,
        create_memory_file().map_err(failed)?,
    ];
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(failed)?)
        .stderr(messages.try_clone().map_err(failed)?)
        .spawn()
        .map_err(failed)?;
    let start = Instant::now();
    let status = loop {
        // Fails only if the child was reaped elsewhere (waitpid(2), ECHILD): its pid may be another process's, which must
        // not be killed.
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if start.elapsed() < limit => thread::sleep(POLL_PAUSE),
            None => {
                // A failure changes nothing: the thread below waits for the end anyway.
                let _ = child.kill();
                // Reaped by a thread: the kernel may hold the process in a read that does not return, even after
                // SIGKILL.
                thread::spawn(move || child.wait());
                return Err(Problem::internal(format!(
                    "the list of processes took longer than {} s",
                    limit.as_secs()
                ))
                .remedy("the machine is busy; try `memprof ps --all` in a terminal"));
            }
        }
    };
    match status.success() {
        true => read_first_bytes(&output, MAX_PAGE_BYTES)
            .ok_or_else(|| Problem::internal("failed to read the list of processes")),
        false => Err(Problem::internal(read_last_text(&messages).trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script in the place of memprof.
    fn check(script: &str, limit: Duration, expected: std::result::Result<&str, &str>) {
        let listed = run_list_command(Command::new("sh").args(["-c", script]), limit);
        let listed = listed.map(|bytes| String::from_utf8(bytes).unwrap());
        let listed = listed.map_err(|problem| format!("{problem:?}"));
        match expected {
            Ok(text) => assert_eq!(listed.unwrap(), text),
            Err(text) => assert!(listed.as_ref().unwrap_err().contains(text), "{listed:?}"),
        }
    }

    #[test]
    fn list_that_takes_too_long_is_given_up() {
        let long = Duration::from_secs(60);
        check("echo '{}'", long, Ok("{}\n"));
        check("echo no /proc >&2; exit 1", long, Err("no /proc"));
        check(
            "exec sleep 60",
            Duration::from_millis(50),
            Err("longer than"),
        );
    }
}
