//! Servers without the plugin: memprof attaches, samples and detaches, and leaves the process as before.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::processes::plugin_threads;
use testkit::{RunningServer, Server};

use super::Behaviour;
use super::sampled::{ACTIVATE_ARGS, SampleReport, sample};
use super::tools::Tools;
use crate::host::REPLY_TIMEOUT;
use crate::slots::Slots;

/// Result of the attachments to a server.
#[derive(Debug)]
pub(super) struct AttachReport {
    report: SampleReport,
    /// Attachments under load.
    pub(super) cycles: usize,
    /// Loads during these, after which the server replied as before.
    pub(super) answers: usize,
    stops: Vec<StopTime>,
}

/// Effect of an attachment on the server.
#[derive(Clone, Copy, Debug)]
struct StopTime {
    /// Time for which a thread was stopped.
    milliseconds: f64,
    /// Refusals before it, because all threads were busy.
    busy: usize,
}

impl fmt::Display for AttachReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut stops: Vec<_> = self.stops.iter().map(|stop| stop.milliseconds).collect();
        stops.sort_by(f64::total_cmp);
        let busy: usize = self.stops.iter().map(|stop| stop.busy).sum();
        write!(
            out,
            "{}; {} cycles with {} answers meanwhile; stops of {:.1} ms (median) and {:.1} ms \
             (max); {busy} times too busy",
            self.report,
            self.cycles,
            self.answers,
            stops[stops.len() / 2],
            stops[stops.len() - 1]
        )
    }
}

/// Attaches to the server, samples its load and detaches; once more together with a forked child; then `cycles` more
/// times under load. Fails if something of memprof is left after a detach, or if the server behaves differently from
/// `plain`.
pub(super) fn attach_and_sample(
    tools: &Tools,
    server: &Server,
    cycles: usize,
    plain: &Behaviour,
) -> Result<AttachReport> {
    let mut running = server.start()?;
    let pid = running.pid()?;
    let before = running.query()?;
    let slots = Slots::read(pid)?;
    let mut stops = vec![tools.attach(pid)?];
    ensure!(tools.is_listed(pid)?, "ps does not list {pid}");
    let report =
        sample(tools, server, &mut running).map_err(|error| running.error_with_log(&error))?;
    tools.detach(pid)?;
    check_unloaded(tools, pid, &slots)?;
    detach_with_child(tools, &mut running, &slots)
        .map_err(|error| running.error_with_log(&error))?;
    let after = running.query()?;
    let answers = run_under_load(&mut running, |is_alive| {
        for cycle in 0..cycles {
            if !is_alive() {
                break;
            }
            stops.push(run_cycle(tools, pid).with_context(|| format!("cycle {cycle}"))?);
        }
        Ok(())
    })
    .map_err(|error| running.error_with_log(&error))?;
    check_unloaded(tools, pid, &slots)?;
    let found = Behaviour {
        answers: [before, after],
        exit: running.terminate()?,
    };
    ensure!(found == *plain, "{found:?}, not attached to {plain:?}");
    Ok(AttachReport {
        report,
        cycles,
        answers,
        stops,
    })
}

/// Attaches to a server, samples it, lets it fork a child if it can, and detaches from both by `memprof detach --tree`.
/// Fails if one of them keeps the plugin or patched GOT slots.
fn detach_with_child(tools: &Tools, running: &mut RunningServer, slots: &Slots) -> Result<()> {
    let pid = running.pid()?;
    tools.attach(pid)?;
    tools.send(pid, "activate", &ACTIVATE_ARGS)?;
    let child = running.fork_child()?;
    if let Some(child) = child {
        tools.wait_for_reply(child)?;
    }
    tools.run_memprof(&["detach", "--tree", &pid.to_string()])?;
    let all = std::iter::once(pid).chain(child);
    all.into_iter()
        .try_for_each(|each| check_unloaded(tools, each, slots))
}

/// Checks that `memprof ps` does not list the process, that it has no thread of memprof, and that its GOT slots have
/// the values of `slots`, which were read before.
fn check_unloaded(tools: &Tools, pid: u32, slots: &Slots) -> Result<()> {
    ensure!(!tools.is_listed(pid)?, "ps lists {pid}, which was left");
    Slots::read(pid)?.check_equal(slots)?;
    let threads = plugin_threads(pid)?;
    ensure!(
        threads.is_empty(),
        "threads of memprof are left: {threads:?}"
    );
    Ok(())
}

/// Attaches to the process, activates sampling, and detaches. Returns the time for which the attachment stopped a
/// thread. Fails if sampling does not become active.
fn run_cycle(tools: &Tools, pid: u32) -> Result<StopTime> {
    let stopped = tools.attach(pid)?;
    let active = tools.send(pid, "activate", &ACTIVATE_ARGS)?;
    ensure!(active["profiling"] == "active", "{active}");
    tools.detach(pid)?;
    Ok(stopped)
}

/// Runs `work` while another thread loads and queries the server. `work` gets a function that returns whether this
/// thread still runs, which ends at an error. Returns the number of loads. Fails if a reply changes, or if `work`
/// fails.
fn run_under_load(
    running: &mut RunningServer,
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<()>,
) -> Result<usize> {
    let expected = running.query()?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let mut answers = 0;
            while !is_done.load(Ordering::Relaxed) {
                running.run_load()?;
                let answer = running.query()?;
                ensure!(answer == expected, "{answer:?}, not {expected:?}");
                answers += 1;
            }
            Ok(answers)
        });
        let worked = work(&|| !loading.is_finished());
        is_done.store(true, Ordering::Relaxed);
        let answers = loading.join().expect("it does not panic")?;
        worked?;
        Ok(answers)
    })
}

/// Whether an attachment was refused because all threads were busy.
fn is_busy(error: &anyhow::Error) -> bool {
    error
        .to_string()
        .contains("try again while it is less busy")
}

impl Tools {
    /// Attaches to a process. If all its threads are busy, tries again for [`REPLY_TIMEOUT`], as the error advises.
    /// Returns the time for which a thread was stopped, and the number of these refusals.
    fn attach(&self, pid: u32) -> Result<StopTime> {
        let start = Instant::now();
        let mut busy = 0;
        let reply = loop {
            match self.run_memprof(&["attach", &pid.to_string(), "--json"]) {
                Err(error) if is_busy(&error) && start.elapsed() < REPLY_TIMEOUT => busy += 1,
                reply => break reply?,
            }
        };
        let reply: Value = serde_json::from_str(&reply)?;
        let milliseconds = reply["stopped_ms"].as_f64().context("stopped_ms")?;
        ensure!(reply["thread"].is_u64(), "attach loaded no plugin: {reply}");
        Ok(StopTime { milliseconds, busy })
    }

    /// Detaches from a process; fails unless `memprof detach` succeeds.
    fn detach(&self, pid: u32) -> Result<()> {
        self.run_memprof(&["detach", &pid.to_string()]).map(drop)
    }

    /// Whether `memprof ps` lists a process, given by its pid.
    fn is_listed(&self, pid: u32) -> Result<bool> {
        let listing: Value = serde_json::from_str(&self.run_memprof(&["ps", "--json"])?)?;
        let hosts = listing["hosts"].as_array().context("hosts")?;
        Ok(hosts.iter().any(|host| host["pid"] == pid))
    }
}
