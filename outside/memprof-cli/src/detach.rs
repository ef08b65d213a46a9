//! `memprof detach`: unloads the plugin from a process that `memprof attach` has loaded it into.

mod leftovers;

use std::collections::HashSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use memprof_host::{DiscoveryScope, RunningHost, discover_hosts};
use memprof_ptrace::HaltWatch;
use serde_json::json;

pub(crate) use self::leftovers::Leftovers;
use crate::busy_retry::retry_while_busy;
use crate::exit::{FAILED, Outcome, UNREACHABLE, with_exit_code};
use crate::process_tree::descendants;
use crate::reply::send_request;
use crate::slow_step::SlowStep;
use crate::{output, patched_functions, target};

/// Timeout for the plugin's threads to end.
const THREADS_EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Ends of the command's text: after detaching, and if only patches were restored.
const DETACHED_TEXT: &str =
    "the hooks, threads and socket are gone; the plugin's code stays mapped";
const RESTORED_TEXT: &str = "its functions are as before, without a profile; the plugin stays, which was loaded with the program";

/// Parts that were removed from a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetachOutcome {
    /// The plugin and all patches.
    Plugin,
    /// The patches only, because the plugin was preloaded.
    Patches,
}

/// Remove the plugin from a process that memprof attached to
///
/// Ends sampling, restores the calls of malloc, and ends the plugin's threads and its socket. Dumps are kept. The
/// plugin's code stays mapped and does nothing.
#[derive(clap::Args, Debug)]
pub(crate) struct DetachArgs {
    /// The process: a pid, a name or container:NAME
    #[arg(value_name = "TARGET", value_parser = crate::process_arg::parse_process)]
    pid: u32,

    /// Also detach from those of its descendants that have the plugin
    #[arg(long)]
    tree: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `memprof detach`: unloads the plugin from a process, with `--tree` also from its descendants. Fails if there is
/// nothing to detach.
pub(crate) fn run(args: &DetachArgs) -> Outcome {
    let pids = match args.tree {
        false => vec![args.pid],
        true => hosts_in_tree(args.pid),
    };
    if pids.is_empty() {
        // Fails with the reason why there is no host.
        target::connect(Some(&args.pid.to_string()))?;
    }
    let mut outcome = DetachOutcome::Plugin;
    for pid in &pids {
        outcome = detach(*pid)?;
    }
    let text = match pids.as_slice() {
        [pid] if outcome == DetachOutcome::Patches => {
            format!("detached from {pid}: {RESTORED_TEXT}")
        }
        [pid] => format!("detached from {pid}: {DETACHED_TEXT}"),
        pids => {
            let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
            format!("detached from {}: {DETACHED_TEXT}", pids.join(", "))
        }
    };
    if args.json {
        let reply = json!({ "status": "ok", "text": text, "pids": pids });
        output::print(&reply.to_string());
    } else {
        output::print(&text);
    }
    Ok(0.into())
}

/// Detaches the plugin from a process, restores the functions whose code was patched, waits until the plugin's threads
/// have ended, and removes the empty directories that the plugin leaves in a container.
///
/// A plugin that was loaded with the program refuses to detach. If functions were patched for it, only the patches and
/// the samples are removed, and the outcome is `Patches`. If the plugin has ended already but has left patched
/// functions, these are restored.
///
/// # Errors
/// The process cannot be reached, refuses, or is halted, or a thread of the plugin still runs after
/// [`THREADS_EXIT_TIMEOUT`].
pub(crate) fn detach(pid: u32) -> anyhow::Result<DetachOutcome> {
    let _step = SlowStep::begin(format!("detaching from {pid}"));
    let mut client = match target::connect(Some(&pid.to_string())) {
        Ok(client) => client,
        // The plugin was detached at the end of its time, but cannot restore code that threads may execute.
        Err(_) if patched_functions::restore_functions(pid)? => return Ok(DetachOutcome::Plugin),
        Err(error) => return Err(error),
    };
    let leftovers = Leftovers::for_process(pid, &mut client);
    let detached = retry_while_busy(|| send_request(&mut client, "detach", ""))?.into_success();
    let was_patched = patched_functions::restore_functions(pid)?;
    if let Err(error) = detached {
        // A plugin that was loaded with the program refuses; then only the patches are removed.
        if !was_patched {
            return Err(error);
        }
        // The plugin stays, but must keep nothing that was sampled through the patches.
        for message in ["deactivate", "reset"] {
            send_request(&mut client, message, "")?.into_success()?;
        }
        return Ok(DetachOutcome::Patches);
    }
    drop(client);
    let start = Instant::now();
    let mut halts = HaltWatch::new(pid);
    while has_memprof_threads(pid) == Some(true) {
        if let Some(halt) = halts.poll().filter(|halt| !halt.has_ended()) {
            let message = format!("{pid} detaches when it goes on: {halt}");
            return Err(with_exit_code(UNREACHABLE, message));
        }
        if start.elapsed() > THREADS_EXIT_TIMEOUT {
            let message = format!("{pid} has detached, but a thread of the plugin's still runs");
            return Err(with_exit_code(FAILED, message));
        }
        thread::sleep(POLL_INTERVAL);
    }
    if let Some(leftovers) = leftovers {
        leftovers.remove_empty_directories();
    }
    Ok(DetachOutcome::Plugin)
}

/// Returns whether a thread of the plugin runs in a process, by the names of the threads: those of the plugin begin
/// with "memprof-" (crate memprof-own). A thread that loads the plugin for a killed `memprof attach` has another name.
/// `None` if the threads cannot be listed, as when the process has ended.
pub(crate) fn has_memprof_threads(pid: u32) -> Option<bool> {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    Some(tasks.any(|task| {
        let name = fs::read(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with(b"memprof-"))
    }))
}

/// Lists the pids of the hosts among a process and its descendants.
fn hosts_in_tree(pid: u32) -> Vec<u32> {
    let hosts = discover_hosts(DiscoveryScope::AllProcesses, |_| ()).hosts;
    let below: HashSet<u32> = descendants(pid).into_iter().collect();
    let pids = hosts.into_iter().map(|(RunningHost { pid, .. }, ())| pid);
    pids.filter(|host| *host == pid || below.contains(host))
        .collect()
}
