//! Every system call of a dump fails once, in every way, and once from there on.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::SuiteLength;
use super::dump_dir::{is_whole, survey};
use super::host::{Host, HostSetup, dump, send};
use super::strace::Tracer;

const ERRORS: [&str; 5] = ["EIO", "ENOSPC", "EMFILE", "EINTR", "EPERM"];

/// Waiting, memory (the resources suite takes it away), and calls that cannot fail (getuid(2), uname(2)).
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

/// At most so many calls of one name: a dump writes the same way a hundred times.
const CALLS_OF_A_NAME: usize = 12;

/// One fault: the `nth` call of that name fails, or each one from it on.
#[derive(Clone, Debug)]
struct Fault {
    call: String,
    nth: usize,
    error: &'static str,
    lasts: bool,
}

impl Fault {
    fn option(&self) -> String {
        let Self {
            call,
            nth,
            error,
            lasts,
        } = self;
        let on = if *lasts { "+" } else { "" };
        format!("inject={call}:error={error}:when={nth}{on}")
    }
}

/// What the faults came to.
#[derive(Debug, Default)]
struct Tally {
    injected: usize,
    absorbed: usize,
    named: usize,
    other_errno: Vec<String>,
}

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let mut host = HostSetup::with("allocate=2").start()?;
    let mut client = host.client()?;
    // So that there is a profile, and it stays as it is.
    while dump(&mut client)?["stacks"].as_u64().context("stacks")? < 100 {}
    send(&mut client, "deactivate", "")?;
    let calls = calls_of_a_dump(&host)?;
    let mut faults = faults(&calls);
    let step = form.pick(faults.len() / 25, 1).max(1);
    faults = faults.into_iter().step_by(step).collect();

    let mut tally = Tally::default();
    for fault in &faults {
        inject(&mut host, fault, &mut tally).with_context(|| fault.option())?;
    }
    ensure!(
        form == SuiteLength::Short || tally.injected >= 300,
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

/// The names of the calls that the dumper makes for one dump, in order.
fn calls_of_a_dump(host: &Host) -> Result<Vec<String>> {
    let tracer = Tracer::attach(host.thread("memprof-dumper")?, &[])?;
    let reply = dump(&mut host.client()?)?;
    ensure!(reply["status"] == "ok", "{reply}");
    let trace = tracer.detach()?;
    let names = trace
        .lines()
        .filter_map(|line| Some(line.split_once('(')?.0.to_owned()));
    Ok(names
        .filter(|name| !NOT_INJECTED.contains(&name.as_str()))
        .collect())
}

fn faults(calls: &[String]) -> Vec<Fault> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for call in calls {
        *counts.entry(call).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    let mut faults = Vec::new();
    for (call, count) in counts {
        for nth in (1..=count).step_by(count.div_ceil(CALLS_OF_A_NAME)) {
            for error in ERRORS {
                // Who retries an interrupted call may do so forever.
                let lasting: &[bool] = if error == "EINTR" {
                    &[false]
                } else {
                    &[false, true]
                };
                faults.extend(lasting.iter().map(|&lasts| Fault {
                    call: call.to_owned(),
                    nth,
                    error,
                    lasts,
                }));
            }
        }
    }
    faults
}

fn inject(host: &mut Host, fault: &Fault, tally: &mut Tally) -> Result<()> {
    let directory = host.place().dumps();
    let before = survey(&directory)?;
    let tracer = Tracer::attach(host.thread("memprof-dumper")?, &["-e", &fault.option()])?;
    let reply = dump(&mut host.client()?);
    let trace = tracer.detach()?;
    host.check_alive()?;
    let reply = reply?;
    let after = survey(&directory)?;
    ensure!(after.bad.is_empty(), "bad files: {:?}; {reply}", after.bad);
    if reply["status"] == "ok" {
        let path = reply["path"].as_str().context("path")?;
        ensure!(is_whole(Path::new(path))?, "a false success: {reply}");
        ensure!(
            Path::new(path).metadata()?.len() == reply["bytes"],
            "{reply}"
        );
    } else {
        // Retention may have taken an old one before.
        ensure!(
            after.whole <= before.whole,
            "an error though a dump was published: {reply}"
        );
    }
    if trace.contains("(INJECTED)") {
        tally.injected += 1;
        classify(&reply, fault, tally)?;
    }
    let status = send(&mut host.client()?, "status", "")?;
    ensure!(status["busy"] == false, "{status}");
    Ok(())
}

fn classify(reply: &Value, fault: &Fault, tally: &mut Tally) -> Result<()> {
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
            .push(format!("{}: {message}", fault.option()));
    } else {
        bail!("the error names no errno: {reply}");
    }
    Ok(())
}
