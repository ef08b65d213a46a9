//! `memprof detach`: the plugin leaves a process into which `memprof attach` has put it.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use memprof_host::{DiscoveryScope, RunningHost, discover};
use memprof_ptrace::HaltWatch;
use serde_json::json;

use crate::exit::{FAILED, Outcome, UNREACHABLE, with_exit_code};
use crate::reply::send_request;
use crate::{output, patched_functions, target};

/// How long the socket may take to close.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

const LEFT: &str = "the hooks, threads and socket are gone; the plugin's code stays mapped";
const STAYS: &str = "its functions are as before, without a profile; the plugin stays, which was loaded with the program";

/// What has left a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetachOutcome {
    /// The plugin, and with it all that leads to it.
    Plugin,
    /// The jumps that `memprof attach` wrote for a plugin that was there already.
    Entries,
}

/// Remove the plugin from a process that memprof attached to
///
/// Ends sampling, restores the calls of malloc, and ends the plugin's threads and its socket. Dumps are kept. The
/// plugin's code stays mapped and does nothing.
#[derive(clap::Args, Debug)]
pub(crate) struct DetachArgs {
    /// The process to detach from
    #[arg(value_parser = crate::pid_arg::parse)]
    pid: u32,

    /// Also detach from its descendants, because forked children are attached to as well
    #[arg(long)]
    tree: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DetachArgs) -> Outcome {
    let pids = match args.tree {
        false => vec![args.pid],
        true => hosts_below(args.pid),
    };
    if pids.is_empty() {
        // Says why there is none.
        target::connect(Some(&args.pid.to_string()))?;
    }
    let mut left = DetachOutcome::Plugin;
    for pid in &pids {
        left = detach(*pid)?;
    }
    let text = match pids.as_slice() {
        [pid] if left == DetachOutcome::Entries => format!("detached from {pid}: {STAYS}"),
        [pid] => format!("detached from {pid}: {LEFT}"),
        pids => {
            let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
            format!("detached from {}: {LEFT}", pids.join(", "))
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

/// Has the plugin leave, gives the program its instructions back, and waits until the plugin has left.
pub(crate) fn detach(pid: u32) -> anyhow::Result<DetachOutcome> {
    let mut client = match target::connect(Some(&pid.to_string())) {
        Ok(client) => client,
        // The plugin left when its time was over: it cannot change code that threads execute.
        Err(_) if patched_functions::restore(pid)? => return Ok(DetachOutcome::Plugin),
        Err(error) => return Err(error),
    };
    let detached = send_request(&mut client, "detach", "")?.ok();
    let was_led = patched_functions::restore(pid)?;
    if let Err(refused) = detached {
        if !was_led {
            return Err(refused);
        }
        for message in ["deactivate", "reset"] {
            send_request(&mut client, message, "")?.ok()?;
        }
        return Ok(DetachOutcome::Entries);
    }
    drop(client);
    let begun = Instant::now();
    let mut halts = HaltWatch::new(pid);
    while has_memprof_threads(pid) {
        if let Some(halt) = halts.poll().filter(|halt| !halt.has_ended()) {
            let message = format!("{pid} detaches when it goes on: {halt}");
            return Err(with_exit_code(UNREACHABLE, message));
        }
        if begun.elapsed() > PATIENCE {
            let message = format!("{pid} has detached, but a thread of the plugin's still runs");
            return Err(with_exit_code(FAILED, message));
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(DetachOutcome::Plugin)
}

/// All of them are called so (memprof-own). A thread that loads the plugin for a killed `memprof attach` is called
/// otherwise.
fn has_memprof_threads(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let name = fs::read(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with(b"memprof-"))
    })
}

/// The hosts among a process and its descendants.
fn hosts_below(pid: u32) -> Vec<u32> {
    let hosts = discover(DiscoveryScope::AllProcesses, |_| ()).hosts;
    let parents = parents();
    let is_below = |host: &u32| {
        let mut at = *host;
        // A process is never its own ancestor; pids that were reused meanwhile may make it seem so.
        for _ in 0..parents.len() {
            if at == pid {
                return true;
            }
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => return false,
            }
        }
        false
    };
    let pids = hosts.into_iter().map(|(RunningHost { pid, .. }, ())| pid);
    pids.filter(is_below).collect()
}

/// Each process's parent.
fn parents() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Some((pid, line.trim().parse().ok()?))
    };
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(parent).collect()
}
