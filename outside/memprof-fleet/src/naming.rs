//! Names of a dump's functions, by a child process.
//!
//! They come out of files that other users may have made, of any size and form, on file systems that may never answer. The
//! child has a limit of memory and of time; where it passes one, the dump keeps numbers, and the agent goes on.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use memprof_report::Sources;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, setrlimit};

use crate::args::NameArgs;
use crate::heap::{Heap, read};

/// From the child's start to its end. The largest programs take some seconds.
const NAMING_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of the child's own memory, in bytes: less than that of the agent's unit.
const MEMORY_LIMIT: u64 = 768 << 20;
/// The largest heap that the child may write, in bytes.
const HEAP_LIMIT: u64 = 256 << 20;
/// The part of the child's errors that is read, in bytes.
const ERROR_LIMIT: u64 = 1000;

/// The children of an agent.
#[derive(Debug, Default)]
pub(crate) struct Naming {
    /// By instance: a child that was killed and has not ended, because it waits for a page of a file.
    stuck: HashMap<String, Child>,
}

/// The child: reads a dump from its input, and writes its [`Heap`] as JSON.
pub(crate) fn run(args: &NameArgs) -> anyhow::Result<ExitCode> {
    let limit = |bytes| Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Data, limit(MEMORY_LIMIT))?;
    // It holds what another user's process does.
    setrlimit(Resource::Core, limit(0))?;
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    let heap = read(&bytes, Some(&Sources::for_process(Some(args.pid))))?;
    serde_json::to_writer(io::stdout().lock(), &heap)?;
    Ok(ExitCode::SUCCESS)
}

impl Naming {
    /// Reads a dump of process `pid`, with names.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(crate) fn name(
        &mut self,
        instance: &str,
        pid: u32,
        dump: &Arc<Vec<u8>>,
    ) -> Result<Heap, String> {
        let mut child = Command::new("/proc/self/exe");
        child.arg("name").arg(pid.to_string());
        self.name_by(instance, &mut child, dump, NAMING_TIMEOUT)
    }

    fn name_by(
        &mut self,
        instance: &str,
        child: &mut Command,
        dump: &Arc<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Heap, String> {
        // Reaps those that have ended.
        self.stuck
            .retain(|_, child| child.try_wait().is_ok_and(|ended| ended.is_none()));
        if let Some(child) = self.stuck.get(instance) {
            return Err(format!(
                "process {} still waits for a file that it maps",
                child.id()
            ));
        }
        let failed = |error: io::Error| format!("failed to run a process that reads them: {error}");
        let begun = Instant::now();
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.stderr(Stdio::piped()).spawn().map_err(failed)?;
        let (send, heaps) = channel();
        // Each thread ends with the child, or with this process.
        let (input, dump) = (child.stdin.take(), Arc::clone(dump));
        thread::spawn(move || input.map(|mut input| input.write_all(&dump)));
        let errors = child.stderr.take();
        let errors = thread::spawn(move || read_up_to(errors, ERROR_LIMIT));
        let output = child.stdout.take();
        // Fails only where this function has returned.
        thread::spawn(move || drop(send.send(read_up_to(output, HEAP_LIMIT + 1))));
        let heap = heaps.recv_timeout(timeout).ok();
        // The last close(2) of a file may wait as long as a read of it, after the output was closed.
        let ended = match heap {
            Some(_) => wait(&mut child, timeout.saturating_sub(begun.elapsed())).map_err(failed)?,
            None => None,
        };
        let (Some(heap), Some(ended)) = (heap, ended) else {
            self.give_up(instance, child);
            return Err(format!("they are not read after {timeout:?}"));
        };
        if !ended.success() {
            // Without its errors, its status is what is known.
            let errors = errors.join().ok().and_then(Result::ok).unwrap_or_default();
            let errors = String::from_utf8_lossy(&errors);
            let errors = errors.trim().trim_start_matches("memprof: ");
            return Err(format!(
                "the process that reads them ended ({ended}): {errors}"
            ));
        }
        let heap = heap.map_err(failed)?;
        if heap.len() as u64 > HEAP_LIMIT {
            return Err(format!("they take more than {HEAP_LIMIT} bytes"));
        }
        serde_json::from_slice(&heap)
            .map_err(|error| format!("the process that reads them wrote no heap: {error}"))
    }

    fn give_up(&mut self, instance: &str, mut child: Child) {
        // It may have ended just now.
        let _ = child.kill();
        if !matches!(child.try_wait(), Ok(Some(_))) {
            self.stuck.insert(instance.to_owned(), child);
        }
    }
}

/// Waits until a child ends. `None` if it has not after `limit`.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut events = [PollFd::new(&process, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut events, Some(&limit)))?;
    child.try_wait()
}

fn read_up_to(from: Option<impl Read>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn heap_of_a_child_is_taken_if_it_is_whole() {
        let check = |script: &str, expected: Result<(), &str>| {
            let dump = Arc::new(b"dump".to_vec());
            let answer = Naming::default().name_by("i", &mut shell(script), &dump, NAMING_TIMEOUT);
            match expected {
                Ok(()) => assert_eq!(answer, Ok(Heap::default()), "{script}"),
                Err(text) => assert!(answer.as_ref().unwrap_err().contains(text), "{answer:?}"),
            }
        };
        let heap = serde_json::to_string(&Heap::default()).unwrap();
        check(&format!("[ \"$(cat)\" = dump ] && echo '{heap}'"), Ok(()));
        check("echo '{'", Err("wrote no heap"));
        check("echo 'memprof: x' >&2; exit 6", Err("(exit status: 6): x"));
        check("kill -ABRT $$", Err("signal: 6"));
    }

    #[test]
    fn child_that_does_not_end_is_killed_and_keeps_others_from_being_started() {
        let mut naming = Naming::default();
        let ask = |naming: &mut Naming, instance: &str| {
            naming.name_by(
                instance,
                &mut shell("exec sleep 1000"),
                &Arc::default(),
                Duration::from_millis(1),
            )
        };
        assert!(
            ask(&mut naming, "i")
                .unwrap_err()
                .contains("not read after")
        );
        // One that no signal ends.
        let stuck = shell("exec sleep 1000").spawn().unwrap();
        let pid = stuck.id().to_string();
        if let Some(mut killed) = naming.stuck.insert("i".to_owned(), stuck) {
            killed.wait().unwrap();
        }
        assert!(ask(&mut naming, "i").unwrap_err().contains(&pid));
        assert!(
            ask(&mut naming, "other")
                .unwrap_err()
                .contains("not read after")
        );
        for child in naming.stuck.values_mut() {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn child_that_closes_its_output_and_does_not_end_is_given_up() {
        let heap = serde_json::to_string(&Heap::default()).unwrap();
        let mut child = shell(&format!("echo '{heap}'; exec >&- 2>&-; exec sleep 1000"));
        let mut naming = Naming::default();
        let limit = Duration::from_millis(500);
        let named = naming.name_by("i", &mut child, &Arc::default(), limit);
        assert!(named.unwrap_err().contains("not read after"));
    }
}
