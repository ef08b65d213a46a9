//! Names of a dump's functions, by a child process.
//!
//! They come out of files that other users may have made, of any size and form, on file systems that may never answer. The
//! child has a limit of memory and of time; where it passes one, the dump keeps numbers, and the agent goes on.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use memprof_report::Sources;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::args::NameArgs;
use crate::heap::{Heap, read};

/// How long the child has. The largest programs take some seconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// How much memory of its own it has, in bytes: less than the unit of the agent.
const MEMORY: u64 = 768 << 20;
/// The most that it may say, in bytes.
const ANSWER_LIMIT: u64 = 256 << 20;

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
    setrlimit(Resource::Data, limit(MEMORY))?;
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
    /// Why there are none.
    pub(crate) fn name(&mut self, instance: &str, pid: u32, dump: &[u8]) -> Result<Heap, String> {
        let mut child = Command::new("/proc/self/exe");
        child.arg("name").arg(pid.to_string());
        self.ask(instance, &mut child, dump, PATIENCE)
    }

    fn ask(
        &mut self,
        instance: &str,
        child: &mut Command,
        dump: &[u8],
        patience: Duration,
    ) -> Result<Heap, String> {
        // What has ended is waited for.
        self.stuck
            .retain(|_, child| child.try_wait().is_ok_and(|ended| ended.is_none()));
        if let Some(child) = self.stuck.get(instance) {
            return Err(format!(
                "process {} still waits for a file that it maps",
                child.id()
            ));
        }
        let failed = |error: io::Error| format!("failed to run a process that reads them: {error}");
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.stderr(Stdio::piped()).spawn().map_err(failed)?;
        let (send, answers) = channel();
        // Each thread ends with the child, or with this process.
        let (input, dump) = (child.stdin.take(), dump.to_owned());
        thread::spawn(move || input.map(|mut input| input.write_all(&dump)));
        let errors = child.stderr.take();
        let errors = thread::spawn(move || text(errors));
        let output = child.stdout.take();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = output.map(|output| output.take(ANSWER_LIMIT).read_to_end(&mut bytes));
            send.send(read.map(|_| bytes)).unwrap_or_default();
        });
        let Ok(answer) = answers.recv_timeout(patience) else {
            self.give_up(instance, child);
            return Err(format!("they are not read after {patience:?}"));
        };
        let ended = child.wait().map_err(failed)?;
        if !ended.success() {
            let errors = errors.join().unwrap_or_default();
            let errors = errors.trim().trim_start_matches("memprof: ");
            return Err(format!(
                "the process that reads them ended ({ended}): {errors}"
            ));
        }
        let heap = serde_json::from_slice(&answer.unwrap_or_default());
        heap.map_err(|error| format!("the process that reads them said no heap: {error}"))
    }

    fn give_up(&mut self, instance: &str, mut child: Child) {
        // It may have ended just now.
        let _ = child.kill();
        if !matches!(child.try_wait(), Ok(Some(_))) {
            self.stuck.insert(instance.to_owned(), child);
        }
    }
}

/// The beginning of what it says.
fn text(errors: Option<impl Read>) -> String {
    const LONGEST: u64 = 1000;
    let mut bytes = Vec::new();
    if let Some(errors) = errors {
        errors
            .take(LONGEST)
            .read_to_end(&mut bytes)
            .unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
    fn what_a_child_says_is_believed_if_it_is_whole() {
        let check = |script: &str, expected: Result<(), &str>| {
            let answer = Naming::default().ask("i", &mut shell(script), b"dump", PATIENCE);
            match expected {
                Ok(()) => assert_eq!(answer, Ok(Heap::default()), "{script}"),
                Err(text) => assert!(answer.as_ref().unwrap_err().contains(text), "{answer:?}"),
            }
        };
        let heap = serde_json::to_string(&Heap::default()).unwrap();
        check(&format!("[ \"$(cat)\" = dump ] && echo '{heap}'"), Ok(()));
        check("echo '{'", Err("said no heap"));
        check("echo 'memprof: x' >&2; exit 6", Err("(exit status: 6): x"));
        check("kill -ABRT $$", Err("signal: 6"));
    }

    #[test]
    fn a_child_that_does_not_end_is_killed_and_while_it_is_there_no_other_is_started() {
        let mut naming = Naming::default();
        let ask = |naming: &mut Naming, instance: &str| {
            naming.ask(
                instance,
                &mut shell("exec sleep 1000"),
                b"",
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
}
