//! A command that runs on a process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::Serialize;

use super::action::Action;

/// Most bytes of a page.
pub(super) const MAX_PAGE_BYTES: u64 = 64 << 20;
/// Most bytes that a command writes to standard error.
const MAX_LOG_BYTES: u64 = 1 << 20;
/// Most bytes of a job's messages, the last ones: an error comes at the end.
const MAX_MESSAGE_BYTES: u64 = 16 << 10;
/// Time within which a cancelled command ends: it detaches from the process before.
const CANCEL_TIME: Duration = Duration::from_secs(30);

/// State of a job, as the page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum JobState {
    Running,
    /// It was cancelled, and still undoes what it changed.
    Cancelling,
    Done,
    Failed,
    Cancelled,
}

/// A job, as the page shows it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JobRow {
    pub(super) id: u64,
    pub(super) pid: u32,
    name: String,
    action: Action,
    state: JobState,
    elapsed_s: f64,
    /// Time for which it samples, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_s: Option<f64>,
    has_page: bool,
    /// Notes of the command, or its error.
    message: String,
}

/// A running or finished command.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) pid: u32,
    name: String,
    action: Action,
    child: Child,
    /// Standard output and standard error of the command.
    output: File,
    messages: File,
    start: Instant,
    cancelled: Option<Instant>,
    /// Limit that it exceeded, for which it was cancelled or killed.
    exceeds: Option<&'static str>,
    end: Option<(JobState, Duration)>,
}

impl Job {
    /// Starts the command of `action` on the process `pid`, whose name is `name`; `program` is memprof's executable.
    /// The command runs in a process group of its own, and writes its output and messages to files in memory.
    ///
    /// # Errors
    /// The program cannot be executed, or no memory, descriptor or process is left.
    pub(super) fn start(
        program: &Path,
        id: u64,
        pid: u32,
        name: String,
        action: Action,
    ) -> io::Result<Self> {
        let [output, messages] = [create_memory_file()?, create_memory_file()?];
        let child = Command::new(program)
            .args(action.arguments(pid))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(messages.try_clone()?)
            // Keeps the Ctrl-C of a terminal from the command: the server cancels its jobs itself.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            id,
            pid,
            name,
            action,
            child,
            output,
            messages,
            start: Instant::now(),
            cancelled: None,
            exceeds: None,
            end: None,
        })
    }

    /// Returns whether the command had not ended yet at the last [`poll`](Self::poll).
    pub(super) fn is_running(&self) -> bool {
        self.end.is_none()
    }

    /// Returns whether the command, if it is cancelled, undoes its changes to the process.
    pub(super) fn is_cancellable(&self) -> bool {
        self.action.is_cancellable()
    }

    /// Sends SIGTERM to a running command, once: the command detaches from the process, and ends. SIGINT would not do:
    /// `leaks --prove --for` would then still search the process.
    pub(super) fn cancel(&mut self) {
        if self.end.is_some() || self.cancelled.is_some() {
            return;
        }
        self.cancelled = Some(Instant::now());
        // The child is not reaped yet, so the pid is its own. It may have ended just now.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Checks whether the command has ended, and records its end. Cancels a running command that takes too long or
    /// writes too much, and kills it if it does not end then. Does not block.
    pub(super) fn poll(&mut self) {
        if self.end.is_some() {
            return;
        }
        match self.child.try_wait() {
            Ok(None) => self.enforce_limits(),
            Ok(Some(status)) => {
                // The command may have written more since the last check.
                self.drop_excessive_output();
                let state = match (self.exceeds, self.cancelled) {
                    // Also if cancelled: the command may have been done just before.
                    (None, _) if status.success() => JobState::Done,
                    (None, Some(_)) => JobState::Cancelled,
                    (_, _) => JobState::Failed,
                };
                self.end = Some((state, self.start.elapsed()));
            }
            // It was reaped elsewhere (waitpid(2), ECHILD): its pid may be another process's, which must not be killed.
            Err(_) => self.end = Some((JobState::Failed, self.start.elapsed())),
        }
    }

    /// Cancels a command that takes too long or writes too much. Kills a command that has not ended within
    /// [`CANCEL_TIME`] (30 s) after it was cancelled, with the processes that it started.
    fn enforce_limits(&mut self) {
        self.drop_excessive_output();
        if self.start.elapsed() > self.action.time_limit() {
            self.exceeds.get_or_insert("it took too long");
        }
        if self.exceeds.is_some() {
            self.cancel();
        }
        if self
            .cancelled
            .is_some_and(|time| time.elapsed() > CANCEL_TIME)
        {
            self.exceeds = Some(match self.action.can_leave_plugin() {
                // The lease of the plugin then ends what the command changed.
                true => {
                    "it was killed; the plugin may be in the process until its lease ends: Detach removes it now"
                }
                false => "it was killed; it had loaded nothing into the process",
            });
            // The child is not reaped yet, so the group is its own. It may have ended just now.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
    }

    /// Checks the lengths of the page and of the messages. If one is too long, records the exceeded limit and drops the
    /// text.
    fn drop_excessive_output(&mut self) {
        let limits = [
            (&self.output, MAX_PAGE_BYTES, "its page is too large"),
            (&self.messages, MAX_LOG_BYTES, "its messages are too long"),
        ];
        for (file, limit, words) in limits {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            if length > limit {
                self.exceeds.get_or_insert(words);
                // Otherwise, the memory stays in use for as long as the job is kept. If this fails, only memory is
                // lost.
                let _ = file.set_len(0);
            }
        }
    }

    /// Reads the page that the command wrote. `None` if the job is not done, or has no page, or the page is empty or
    /// cannot be read.
    pub(super) fn read_page(&self) -> Option<Vec<u8>> {
        let is_done = self.end.is_some_and(|(state, _)| state == JobState::Done);
        (is_done && self.action.has_page())
            .then(|| read_first_bytes(&self.output, MAX_PAGE_BYTES))
            .flatten()
            .filter(|page| !page.is_empty())
    }

    /// Returns the job's state, times and messages, as the page lists them.
    pub(super) fn row(&self) -> JobRow {
        let (state, elapsed) = match (self.end, self.cancelled) {
            (Some(end), _) => end,
            (None, Some(_)) => (JobState::Cancelling, self.start.elapsed()),
            (None, None) => (JobState::Running, self.start.elapsed()),
        };
        JobRow {
            id: self.id,
            pid: self.pid,
            name: self.name.clone(),
            action: self.action,
            state,
            elapsed_s: elapsed.as_secs_f64(),
            sampling_s: self.action.sampling_time().map(|time| time.as_secs_f64()),
            has_page: state == JobState::Done && self.action.has_page(),
            message: self.message_text(state),
        }
    }

    /// Returns the text that the web page shows for this job: the end of the command's messages, and the limit that it
    /// exceeded, if any. For a finished command whose result is no page of its own, the end of its standard output
    /// comes first. Phrases that only fit a terminal are removed.
    fn message_text(&self, state: JobState) -> String {
        let mut text = read_last_text(&self.messages);
        if !self.action.has_page() && state == JobState::Done {
            text.insert_str(0, &read_last_text(&self.output));
        }
        let lines = text.lines().map(strip_cli_phrases);
        let lines: Vec<_> = lines.chain(self.exceeds).collect();
        lines.join("\n")
    }
}

/// Returns a line of a command's messages as the page shows it: without `memprof: ` and `note: ` at its start, and
/// without the advice to pass an option, because the page has no options.
fn strip_cli_phrases(line: &str) -> &str {
    let line = line.strip_prefix("memprof: ").unwrap_or(line);
    let line = line.strip_prefix("note: ").unwrap_or(line);
    line.strip_suffix("; --sample-interval SIZE fixes that")
        .unwrap_or(line)
}

/// Creates an empty file that is only in memory and is closed in child processes, for the output of a command.
pub(super) fn create_memory_file() -> io::Result<File> {
    Ok(memfd_create("memprof-job", MemfdFlags::CLOEXEC)?.into())
}

/// Returns the last bytes of a file as text, up to [`MAX_MESSAGE_BYTES`] (16 KiB); empty if the file cannot be read.
pub(super) fn read_last_text(file: &File) -> String {
    let bytes = read_last_bytes(file, MAX_MESSAGE_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the last bytes of a file, at most `limit`. `None` if they cannot be read. Does not move the file's offset, at
/// which the command still writes.
fn read_last_bytes(file: &File, limit: u64) -> Option<Vec<u8>> {
    let length = file.metadata().ok()?.len();
    let read = length.min(limit);
    let mut bytes = vec![0; usize::try_from(read).ok()?];
    file.read_exact_at(&mut bytes, length - read).ok()?;
    Some(bytes)
}

/// Reads the first bytes of a file, at most `limit`. `None` if they cannot be read. Does not move the file's offset, at
/// which the command still writes.
pub(super) fn read_first_bytes(file: &File, limit: u64) -> Option<Vec<u8>> {
    let length = file.metadata().ok()?.len().min(limit);
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{PidfdFlags, pidfd_open};
    use tempfile::TempDir;

    use super::*;

    /// Starts a shell script as a job. Returns the job and the line that the script writes to `$ready` when it has
    /// started.
    fn start_script(directory: &TempDir, script: &str) -> (Job, String) {
        let path = |name: &str| directory.path().join(name);
        let ready = path("ready");
        rustix::fs::mkfifoat(rustix::fs::CWD, &ready, rustix::fs::Mode::RWXU).unwrap();
        let text = format!("#!/bin/sh\nready='{}'\n{script}\n", ready.display());
        // Written by another process: a child that a test forks meanwhile has the files that are open here, and a file
        // that is open for writing cannot be executed (ETXTBSY of execve(2)).
        let mut writer = Command::new("sh");
        writer.args(["-c", "printf %s \"$1\" >\"$0\" && chmod +x \"$0\""]);
        let written = writer.arg(path("memprof")).arg(text).status().unwrap();
        assert!(written.success());
        let job = Job::start(&path("memprof"), 1, 7, "cart".to_owned(), Action::Ledger).unwrap();
        let line = fs::read_to_string(&ready).unwrap();
        (job, line.trim().to_owned())
    }

    #[test]
    fn cancelled_job_is_done_if_its_command_succeeds() {
        let check = |script: &str, expected: JobState, page: Option<&[u8]>| {
            let directory = tempfile::tempdir().unwrap();
            let (mut job, _) = start_script(&directory, script);
            job.cancel();
            job.child.wait().unwrap();
            job.poll();
            assert_eq!(job.row().state, expected, "{script}");
            assert_eq!(job.read_page().as_deref(), page, "{script}");
        };
        let trap = |end: &str| {
            format!("trap 'kill -9 $!; echo page; {end}' TERM; sleep 1000 & echo >\"$ready\"; wait")
        };
        check(&trap("exit 0"), JobState::Done, Some(b"page\n"));
        check(&trap("exit 143"), JobState::Cancelled, None);
        let killed = "echo >\"$ready\"; exec sleep 1000";
        check(killed, JobState::Cancelled, None);
    }

    #[test]
    fn killed_job_ends_with_the_processes_that_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; sleep 1000 & echo $! >\"$ready\"; wait";
        let (mut job, started) = start_script(&directory, script);
        let started = Pid::from_raw(started.parse().unwrap()).unwrap();
        let started = pidfd_open(started, PidfdFlags::empty()).unwrap();
        job.cancel();
        job.cancelled = Instant::now().checked_sub(CANCEL_TIME + Duration::from_secs(1));
        job.poll();
        job.child.wait().unwrap();
        job.poll();
        assert_eq!(job.row().state, JobState::Failed);
        let mut events = [PollFd::new(&started, PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from_secs(10)).unwrap();
        assert_eq!(poll(&mut events, Some(&timeout)), Ok(1));
    }

    #[test]
    fn messages_have_no_words_for_the_shell() {
        let check = |line: &str, expected: &str| assert_eq!(strip_cli_phrases(line), expected);
        check(
            "memprof: note: one sample per 4.00KiB, 607 in a second; --sample-interval SIZE fixes that",
            "one sample per 4.00KiB, 607 in a second",
        );
        check(
            "memprof: 4711 (web): the profile is empty",
            "4711 (web): the profile is empty",
        );
    }
}
