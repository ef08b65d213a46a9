//! Suite `inject`: every system call of a dump fails with every error, once or from then on.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::SuiteLength;
use super::dump_dir::{is_complete_dump, scan_dump_dir};
use super::host::{HostSetup, REPLY_TIMEOUT, StressHost, dump, send_message, send_successfully};
use super::strace::Tracer;

const ERRORS: [&str; 5] = ["EIO", "ENOSPC", "EMFILE", "EINTR", "EPERM"];

/// Calls that wait, calls for memory (suite `resources`), and calls that cannot fail (getuid(2), uname(2)).
const NOT_INJECTED: [&str; 12] = [
    "futex",
    "restart_syscall",
    "sched_yield",
    "brk",
    "mmap",
    "munmap",
    "mprotect",
    "madvise",
    "geteuid",
    "getpid",
    "gettid",
    "uname",
];

/// Maximum number of faults in calls of one name, because a dump has a hundred equal writes.
const MAX_CALLS_PER_NAME: usize = 12;

/// A fault: the `nth` system call with this name fails, from 1.
#[derive(Clone, Debug)]
struct Fault {
    call: String,
    nth: usize,
    error: &'static str,
    /// Whether all later calls fail too.
    is_permanent: bool,
}

impl Fault {
    /// Returns the fault as a value of strace's option `-e`.
    fn strace_option(&self) -> String {
        let Self {
            call,
            nth,
            error,
            is_permanent,
        } = self;
        let on = if *is_permanent { "+" } else { "" };
        format!("inject={call}:error={error}:when={nth}{on}")
    }
}

/// Number of faults by their result.
#[derive(Debug, Default)]
struct Tally {
    injected: usize,
    /// Faults after which the dump succeeded.
    absorbed: usize,
    /// Faults that the error names.
    named: usize,
    /// Faults whose error names another errno.
    other_errno: Vec<String>,
}

/// Runs the suite `inject`, and returns its figures in one line. Fails if the host dies, if a dump is incomplete, or if
/// an error names no errno.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let mut host = HostSetup::with_options("allocate=2").start()?;
    let mut client = host.client()?;
    // The dumps need a profile with many stacks, which then does not change.
    let start = Instant::now();
    loop {
        let reply = send_successfully(&mut client, "dump", "")?;
        if reply["stacks"].as_u64().context("stacks")? >= 100 {
            break;
        }
        ensure!(
            start.elapsed() < REPLY_TIMEOUT,
            "too few stacks: {reply}; {}",
            host.log()
        );
    }
    send_successfully(&mut client, "deactivate", "")?;
    let calls = trace_dump(&host)?;
    let mut faults = faults_for_calls(&calls);
    let step = length.pick(faults.len() / 25, 1).max(1);
    faults = faults.into_iter().step_by(step).collect();

    let mut tally = Tally::default();
    for fault in &faults {
        dump_with_fault(&mut host, fault, &mut tally).with_context(|| fault.strace_option())?;
    }
    ensure!(
        tally.injected >= length.pick(1, 300),
        "only {} faults were injected",
        tally.injected
    );
    for line in &tally.other_errno {
        eprintln!("{line}");
    }
    Ok(format!(
        "{} faults in {} calls: 0 crashes, 0 partial files, 0 false successes; \
         {} whole dumps, {} errors that name it, {} that name another errno",
        tally.injected,
        calls.len(),
        tally.absorbed,
        tally.named,
        tally.other_errno.len()
    ))
}

/// Dumps once under strace(1). Returns the names of the system calls that the thread for dumps makes, in order, without
/// those in [`NOT_INJECTED`].
fn trace_dump(host: &StressHost) -> Result<Vec<String>> {
    let tracer = Tracer::attach(host.thread_id("memprof-dumper")?, &[])?;
    send_successfully(&mut host.client()?, "dump", "")?;
    let trace = tracer.detach()?;
    let names = trace
        .lines()
        .filter_map(|line| Some(line.split_once('(')?.0.to_owned()));
    Ok(names
        .filter(|name| !NOT_INJECTED.contains(&name.as_str()))
        .collect())
}

/// Returns faults for these calls, each with every error in [`ERRORS`], once and permanently. EINTR is not permanent:
/// code that retries would loop forever. Of a call that is made often, [`MAX_CALLS_PER_NAME`] at most get faults.
fn faults_for_calls(calls: &[String]) -> Vec<Fault> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for call in calls {
        *counts.entry(call).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    let mut faults = Vec::new();
    for (call, count) in counts {
        for nth in (1..=count).step_by(count.div_ceil(MAX_CALLS_PER_NAME)) {
            for error in ERRORS {
                // With a permanent EINTR, code that retries would loop forever.
                let permanence: &[bool] = if error == "EINTR" {
                    &[false]
                } else {
                    &[false, true]
                };
                faults.extend(permanence.iter().map(|&is_permanent| Fault {
                    call: call.to_owned(),
                    nth,
                    error,
                    is_permanent,
                }));
            }
        }
    }
    faults
}

/// Dumps while strace(1) injects a fault into the thread for dumps, and counts the result if the fault occurred. Fails
/// if the host dies, leaves a bad file, reports success without a whole dump or failure with a new one, or names no
/// errno in its error.
fn dump_with_fault(host: &mut StressHost, fault: &Fault, tally: &mut Tally) -> Result<()> {
    let directory = host.dir().dump_dir();
    let before = scan_dump_dir(&directory)?;
    let tracer = Tracer::attach(
        host.thread_id("memprof-dumper")?,
        &["-e", &fault.strace_option()],
    )?;
    let reply = dump(&mut host.client()?);
    let trace = tracer.detach()?;
    host.check_alive()?;
    let reply = reply?;
    let after = scan_dump_dir(&directory)?;
    ensure!(after.bad.is_empty(), "bad files: {:?}; {reply}", after.bad);
    if reply["status"] == "ok" {
        let path = reply["path"].as_str().context("path")?;
        ensure!(
            is_complete_dump(Path::new(path))?,
            "a false success: {reply}"
        );
        ensure!(
            Path::new(path).metadata()?.len() == reply["bytes"],
            "{reply}"
        );
    } else {
        // Retention may have deleted an old dump before.
        ensure!(
            after.complete <= before.complete,
            "an error though a dump was published: {reply}"
        );
    }
    if trace.contains("(INJECTED)") {
        tally.injected += 1;
        count_result(&reply, fault, tally)?;
    }
    let status = send_message(&mut host.client()?, "status", "")?;
    ensure!(status["busy"] == false, "{status}");
    Ok(())
}

/// Counts a fault by its result. Fails if the reply is an error without an errno.
fn count_result(reply: &Value, fault: &Fault, tally: &mut Tally) -> Result<()> {
    if reply["status"] == "ok" {
        tally.absorbed += 1;
        return Ok(());
    }
    let message = reply["error"]["message"].as_str().context("message")?;
    if message.contains(&format!("({})", fault.error)) {
        tally.named += 1;
    } else if message.contains("(E") {
        tally
            .other_errno
            .push(format!("{}: {message}", fault.strace_option()));
    } else {
        bail!("the error names no errno: {reply}");
    }
    Ok(())
}
