//! Attachments to unmodified programs that the policy names: the agent runs `memprof attach` for them, and
//! detaches the plugin when the agent ends.

use std::collections::{HashMap, HashSet};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use crate::machine_info::{MachineInfo, read_start_ticks};
use crate::policy::ServiceRule;
use crate::time::Uptime;

/// Time after which an attached plugin detaches by itself if the agent was killed. It is long, because a new attachment
/// does not know allocations before it; a running agent should never need one.
const ATTACH_LEASE: &str = "24h";
/// Most attempts that run at the same time. Each may take long, because it waits for its process.
const MAX_ATTEMPTS: usize = 4;
/// Longest time that the agent's end waits for running attempts.
const ATTEMPTS_TIMEOUT: Duration = Duration::from_secs(30);

/// Attachments of this agent, and its attempts.
#[derive(Debug)]
pub(crate) struct Attachments {
    /// Process id of each attached process, by process key.
    attached: HashMap<String, u32>,
    /// Time of the last failed attempt, by process key.
    failed: HashMap<String, Uptime>,
    /// Names of the processes with a running attempt, by process key. Each attempt runs on a thread of its own.
    running: HashMap<String, String>,
    /// Channel for results of attempts.
    results: (Sender<AttemptResult>, Receiver<AttemptResult>),
}

/// Process to attach to.
#[derive(Clone, Debug)]
struct AttachCandidate {
    /// Process key.
    instance: String,
    pid: u32,
    name: String,
}

/// Candidate, and the result of its attempt.
type AttemptResult = (AttachCandidate, anyhow::Result<()>);

/// Name of a process, and the result of attaching or detaching.
type Attempt = (String, anyhow::Result<()>);

impl Attachments {
    /// Creates the state of an agent that has not attached to any process.
    pub(crate) fn new() -> Self {
        Self {
            attached: HashMap::new(),
            failed: HashMap::new(),
            running: HashMap::new(),
            results: channel(),
        }
    }

    /// Starts to attach to every process that a rule names, at most [`MAX_ATTEMPTS`] at a time. `hosts` are the ids of
    /// processes that have the plugin already. After a failure, a process is tried again after the rule's period.
    /// Returns the results of attempts that ended since the last call. Fails if /proc cannot be read.
    pub(crate) fn start_attempts(
        &mut self,
        rules: &[ServiceRule],
        hosts: &HashSet<u32>,
        machine: &MachineInfo,
    ) -> anyhow::Result<Vec<Attempt>> {
        let candidates = self.list_candidates(rules, hosts, machine)?;
        // Results are recorded after the candidates are listed: a process whose attempt has just ended may
        // not be among `hosts` yet.
        let results: Vec<_> = self.results.1.try_iter().collect();
        let attempts = results
            .into_iter()
            .map(|result| self.record_attempt_result(result))
            .collect();
        let free = MAX_ATTEMPTS.saturating_sub(self.running.len());
        for candidate in candidates.into_iter().take(free) {
            self.start_attempt(candidate);
        }
        Ok(attempts)
    }

    /// Lists the processes to attach to now: those that a rule names. Leaves out processes that have the plugin
    /// (`hosts`), are outside the rule's share, are being attached to, or failed less than the rule's period ago. Drops
    /// the state of processes that have ended. Fails if /proc cannot be read.
    fn list_candidates(
        &mut self,
        rules: &[ServiceRule],
        hosts: &HashSet<u32>,
        machine: &MachineInfo,
    ) -> anyhow::Result<Vec<AttachCandidate>> {
        let mut running = HashSet::new();
        let mut candidates = Vec::new();
        for (pid, program) in list_programs()? {
            // The process may have ended meanwhile.
            let Some(start) = read_start_ticks(pid) else {
                continue;
            };
            let instance = machine.process_key_from_start(pid, start);
            running.insert(instance.clone());
            let rule = rules.iter().find(|rule| rule.attaches_to(&program));
            let Some(rule) =
                rule.filter(|rule| !hosts.contains(&pid) && rule.includes_process(&instance))
            else {
                continue;
            };
            let tried = self.failed.get(&instance);
            let is_pausing = tried.is_some_and(|tried| Uptime::now().since(*tried) < rule.period);
            if !is_pausing && !self.running.contains_key(&instance) {
                let name = format!("{program} {}/{pid}", machine.name);
                candidates.push(AttachCandidate {
                    instance,
                    pid,
                    name,
                });
            }
        }
        self.attached
            .retain(|instance, _| running.contains(instance));
        self.failed.retain(|instance, _| running.contains(instance));
        Ok(candidates)
    }

    /// Starts `memprof attach` for a candidate, on a thread that sends the result. If no thread can be started, sends
    /// that as the result.
    fn start_attempt(&mut self, candidate: AttachCandidate) {
        let AttachCandidate { instance, name, .. } = &candidate;
        self.running.insert(instance.clone(), name.clone());
        let (results, attempted) = (self.results.0.clone(), candidate.clone());
        let started = thread::Builder::new().spawn(move || {
            let attempt =
                run_memprof(&["attach", &attempted.pid.to_string(), "--for", ATTACH_LEASE]);
            // Sending fails only if the agent has ended.
            results.send((attempted, attempt)).unwrap_or_default();
        });
        if let Err(error) = started {
            let failed = Err(anyhow!("failed to start a thread: {error}"));
            // Sending cannot fail: the receiver is in `self`.
            self.results.0.send((candidate, failed)).unwrap_or_default();
        }
    }

    /// Records the result of an attempt, so that a failed attempt is repeated only after a period. Returns the result
    /// with the process's name.
    fn record_attempt_result(&mut self, (candidate, attempt): AttemptResult) -> Attempt {
        let AttachCandidate {
            instance,
            pid,
            name,
        } = candidate;
        self.running.remove(&instance);
        match &attempt {
            Ok(()) => self.attached.insert(instance, pid).map(drop),
            Err(_) => self.failed.insert(instance, Uptime::now()).map(drop),
        };
        (name, attempt)
    }

    /// Waits for running attempts, up to [`ATTEMPTS_TIMEOUT`] (30 s). Returns the results of all. An attempt that still
    /// runs at the timeout has an error as its result, and is forgotten.
    pub(crate) fn wait_for_attempts(&mut self) -> Vec<Attempt> {
        let deadline = std::time::Instant::now() + ATTEMPTS_TIMEOUT;
        let mut attempts = Vec::new();
        while !self.running.is_empty() {
            let remaining = deadline.saturating_duration_since(std::time::Instant::now());
            match self.results.1.recv_timeout(remaining) {
                Ok(result) => attempts.push(self.record_attempt_result(result)),
                // This is the timeout: `self` has a sender, so the channel cannot be closed.
                Err(_) => break,
            }
        }
        let unfinished = self.running.drain().map(|(_, name)| {
            let error =
                anyhow!("`memprof attach` still runs: its plugin leaves after {ATTACH_LEASE}");
            (name, Err(error))
        });
        attempts.extend(unfinished);
        attempts
    }

    /// Runs `memprof detach` for every attached process that still runs, one after the other, and forgets all attached
    /// processes. Returns the results.
    pub(crate) fn detach_all(&mut self, machine: &MachineInfo) -> Vec<Attempt> {
        let attached = self.attached.drain();
        // Another process may have got the pid since.
        let running = attached.filter(|(instance, pid)| {
            read_start_ticks(*pid)
                .is_some_and(|start| machine.process_key_from_start(*pid, start) == *instance)
        });
        let detached = running.map(|(_, pid)| {
            let name = format!("{}/{pid}", machine.name);
            (name, run_memprof(&["detach", &pid.to_string()]))
        });
        detached.collect()
    }
}

/// Lists the process ids and the file names of the programs of all processes on this machine, except this process and
/// those that this user cannot inspect. Fails if /proc cannot be read.
fn list_programs() -> anyhow::Result<Vec<(u32, String)>> {
    let entries = fs::read_dir("/proc").context("failed to read /proc")?;
    let pids = entries.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let programs = pids.filter_map(|pid| {
        // The link is unreadable for other users' processes and kernel threads, to which this user cannot
        // attach.
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let name = program.file_name()?.to_str()?;
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        (pid != std::process::id()).then(|| (pid, name.to_owned()))
    });
    Ok(programs.collect())
}

/// Runs `memprof`, preferably the one beside this program, and waits for its end. Fails with its error output if it
/// cannot be started or fails.
fn run_memprof(args: &[&str]) -> anyhow::Result<()> {
    let own = env::current_exe().context("failed to find this program")?;
    let sibling = own.with_file_name("memprof");
    let program = match sibling.exists() {
        true => sibling,
        false => PathBuf::from("memprof"),
    };
    let output = Command::new(&program).args(args).output();
    let output = output.with_context(|| format!("failed to run {}", program.display()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = stderr.trim().trim_start_matches("memprof: ").to_owned();
        bail!("memprof {} failed: {message}", args[0]);
    }
    Ok(())
}
