//! Symbolizes dumps in a child process.
//!
//! Names of functions come from files that other users may have written, of any size and form, on file
//! systems that may never answer. The child has limits of memory and time. If it exceeds one, the dump keeps
//! addresses, and the agent continues.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memprof_report::Sources;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::args::NameArgs;
use crate::heap::{Heap, read_heap};

/// Longest time from the child's start to its end. The largest programs take some seconds.
const NAMING_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two checks whether the child has ended, after it has closed its output.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Limit of the child's data memory, in bytes. It is below `MemoryMax` of the agent's unit.
const MEMORY_LIMIT: u64 = 768 << 20;
/// Most bytes of the heap that the child writes.
const HEAP_LIMIT: u64 = 256 << 20;
/// Most bytes that are read of the child's error output.
const ERROR_LIMIT: u64 = 1000;

/// Child processes of an agent.
#[derive(Debug, Default)]
pub(crate) struct Naming {
    /// Killed children that have not ended, because they wait for a page of a file, by process key.
    stuck: HashMap<String, Child>,
}

/// Runs the child process that symbolizes: reads a dump from stdin, and writes its [`Heap`] to stdout as JSON. First
/// limits this process's memory, and disables core files.
pub(crate) fn run_symbolizer_child(args: &NameArgs) -> anyhow::Result<ExitCode> {
    let limit = |bytes| Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Data, limit(MEMORY_LIMIT))?;
    // A core file would contain data of another user's process.
    setrlimit(Resource::Core, limit(0))?;
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    let heap = read_heap(&bytes, Some(&Sources::for_process(Some(args.pid))))?;
    memprof_output::write_to_stdout(|out| Ok(serde_json::to_writer(out, &heap)?))?;
    Ok(ExitCode::SUCCESS)
}

impl Naming {
    /// Symbolizes a dump of process `pid` in a child process, and waits for it up to [`NAMING_TIMEOUT`] (20 s).
    /// `instance` is the process key. An error is a sentence that says why there are no names.
    pub(crate) fn symbolize(
        &mut self,
        instance: &str,
        pid: u32,
        dump: &Arc<Vec<u8>>,
    ) -> Result<Heap, String> {
        // This link leads to the running executable even if an update has replaced its file.
        let mut child = Command::new("/proc/self/exe");
        child.arg("name").arg(pid.to_string());
        self.symbolize_by_child(instance, &mut child, dump, NAMING_TIMEOUT)
    }

    /// Starts `child`, which symbolizes a dump, and kills it after `timeout`. Fails if an earlier child for the same
    /// process is still stuck, or if `child` cannot be started, fails, or exceeds a limit.
    fn symbolize_by_child(
        &mut self,
        instance: &str,
        child: &mut Command,
        dump: &Arc<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Heap, String> {
        // Children that have ended are reaped here.
        self.stuck
            .retain(|_, child| child.try_wait().is_ok_and(|ended| ended.is_none()));
        if let Some(child) = self.stuck.get(instance) {
            return Err(format!(
                "process {} still waits for a file that it maps",
                child.id()
            ));
        }
        let failed = |error: io::Error| format!("failed to run a process that reads them: {error}");
        let start = Instant::now();
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.stderr(Stdio::piped()).spawn().map_err(failed)?;
        let (heaps, errors) = match start_pipe_threads(&mut child, dump) {
            Ok(served) => served,
            Err(error) => {
                self.kill_child(instance, child);
                return Err(failed(error));
            }
        };
        let heap = heaps.recv_timeout(timeout).ok();
        // The child may still run after it has closed its output: the last close(2) of a file can block as long as a
        // read of it.
        let ended = match heap {
            Some(_) => wait_for_exit(&mut child, timeout.saturating_sub(start.elapsed()))
                .map_err(failed)?,
            None => None,
        };
        let (Some(heap), Some(ended)) = (heap, ended) else {
            self.kill_child(instance, child);
            return Err(format!("they are not read after {timeout:?}"));
        };
        if !ended.success() {
            // If the error output cannot be read, the message has only the exit status.
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

    /// Kills a child. If it has not ended yet, stores it as stuck, so that no further child is started for the process
    /// `instance`.
    fn kill_child(&mut self, instance: &str, mut child: Child) {
        // This fails if the child has just ended.
        let _ = child.kill();
        if !matches!(child.try_wait(), Ok(Some(_))) {
            self.stuck.insert(instance.to_owned(), child);
        }
    }
}

/// Output of a child as far as it is read, or the error of reading it.
type Output = io::Result<Vec<u8>>;

/// Starts threads that write a dump to a child's input, and read its output and its errors. Returns the receiver of the
/// output, and the thread that returns the errors. Fails if a thread cannot be started.
fn start_pipe_threads(
    child: &mut Child,
    dump: &Arc<Vec<u8>>,
) -> io::Result<(Receiver<Output>, JoinHandle<Output>)> {
    let (send, heaps) = channel();
    // Each thread ends when the child does, or with this process. A failed write shows as a failure of the child.
    let (input, dump) = (child.stdin.take(), Arc::clone(dump));
    start_thread(move || input.map(|mut input| input.write_all(&dump)))?;
    let errors = child.stderr.take();
    let errors = start_thread(move || read_up_to(errors, ERROR_LIMIT))?;
    let output = child.stdout.take();
    // One byte above the limit shows that the heap is too large. Sending fails only after the timeout.
    start_thread(move || drop(send.send(read_up_to(output, HEAP_LIMIT + 1))))?;
    Ok((heaps, errors))
}

/// Starts a thread. Unlike `thread::spawn`, does not panic if there are too many threads: that passes, and must not end
/// the agent.
fn start_thread<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().spawn(run)
}

/// Waits until a child ends. `None` if it still runs after `timeout`. Polls every 5 ms, because kernels before 5.3 have
/// no `pidfd_open(2)`. Fails only if the child was reaped elsewhere.
fn wait_for_exit(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || start.elapsed() >= timeout {
            return Ok(ended);
        }
        thread::sleep(EXIT_POLL_INTERVAL);
    }
}

/// Reads at most `limit` bytes of a stream. Empty if the stream is `None`.
fn read_up_to(stream: Option<impl Read>, limit: u64) -> Output {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(limit).read_to_end(&mut bytes)?;
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
    fn complete_heap_of_child_is_returned() {
        let check = |script: &str, expected: Result<(), &str>| {
            let dump = Arc::new(b"dump".to_vec());
            let result = Naming::default().symbolize_by_child(
                "i",
                &mut shell(script),
                &dump,
                NAMING_TIMEOUT,
            );
            match expected {
                Ok(()) => assert_eq!(result, Ok(Heap::default()), "{script}"),
                Err(text) => assert!(result.as_ref().unwrap_err().contains(text), "{result:?}"),
            }
        };
        let heap = serde_json::to_string(&Heap::default()).unwrap();
        check(&format!("[ \"$(cat)\" = dump ] && echo '{heap}'"), Ok(()));
        check("echo '{'", Err("wrote no heap"));
        check("echo 'memprof: x' >&2; exit 6", Err("(exit status: 6): x"));
        check("kill -ABRT $$", Err("signal: 6"));
    }

    #[test]
    fn hanging_child_is_killed_and_blocks_next_one() {
        let mut naming = Naming::default();
        let name = |naming: &mut Naming, instance: &str| {
            naming.symbolize_by_child(
                instance,
                &mut shell("exec sleep 1000"),
                &Arc::default(),
                Duration::from_millis(1),
            )
        };
        assert!(
            name(&mut naming, "i")
                .unwrap_err()
                .contains("not read after")
        );
        // This child stands for one that ignores the kill.
        let stuck = shell("exec sleep 1000").spawn().unwrap();
        let pid = stuck.id().to_string();
        if let Some(mut killed) = naming.stuck.insert("i".to_owned(), stuck) {
            killed.wait().unwrap();
        }
        assert!(name(&mut naming, "i").unwrap_err().contains(&pid));
        assert!(
            name(&mut naming, "other")
                .unwrap_err()
                .contains("not read after")
        );
        for child in naming.stuck.values_mut() {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn child_that_hangs_after_its_output_is_killed() {
        let heap = serde_json::to_string(&Heap::default()).unwrap();
        let mut child = shell(&format!("echo '{heap}'; exec >&- 2>&-; exec sleep 1000"));
        let mut naming = Naming::default();
        let limit = Duration::from_millis(500);
        let named = naming.symbolize_by_child("i", &mut child, &Arc::default(), limit);
        assert!(named.unwrap_err().contains("not read after"));
    }
}
