//! Processes that nobody prepared and that the policy names: the agent has `memprof attach` put the plugin
//! into them, and takes it out again when it ends.

use std::collections::{HashMap, HashSet};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use crate::policy::ServiceRule;
use crate::take_profile::{MachineInfo, start_ticks};
use crate::time::Uptime;

/// How long the plugin stays where an agent was killed. A new attachment knows nothing of what was
/// allocated before, so a living agent should have to make none.
const LEASE: &str = "24h";
/// How many attempts run at the same time: a process may keep one waiting.
const AT_ONCE: usize = 4;
/// How long the end of the agent waits for them.
const ENDING: Duration = Duration::from_secs(30);

/// What this agent attached to, and what it tried.
#[derive(Debug)]
pub(crate) struct Attachments {
    /// By instance: the pid.
    held: HashMap<String, u32>,
    /// By instance: when it was tried last, in vain.
    refused: HashMap<String, Uptime>,
    /// By instance: what the processes are called whose attempts run, on threads of their own.
    under_way: HashMap<String, String>,
    /// The attempts that ended.
    ended: (Sender<AttemptResult>, Receiver<AttemptResult>),
}

/// A process to attach to.
#[derive(Debug)]
struct AttachCandidate {
    instance: String,
    pid: u32,
    name: String,
}

/// What came of an attempt.
type AttemptResult = (AttachCandidate, anyhow::Result<()>);

/// The same for people: what the process is called, and why not.
type Attempt = (String, anyhow::Result<()>);

impl Attachments {
    pub(crate) fn new() -> Self {
        Self {
            held: HashMap::new(),
            refused: HashMap::new(),
            under_way: HashMap::new(),
            ended: channel(),
        }
    }

    /// Begins to attach to every process that a rule names and that is none of `hosts`, pids; a few at a time. One
    /// that refuses is tried again after a period. Returns what came of attempts that ended since the last call.
    pub(crate) fn attach(
        &mut self,
        rules: &[ServiceRule],
        hosts: &HashSet<u32>,
        machine: &MachineInfo,
    ) -> anyhow::Result<Vec<Attempt>> {
        let candidates = self.candidates(rules, hosts, machine)?;
        // Only now: a process whose attempt has just ended may be none of `hosts` yet.
        let ended: Vec<_> = self.ended.1.try_iter().collect();
        let attempts = ended
            .into_iter()
            .map(|ended| self.record_result(ended))
            .collect();
        let room = AT_ONCE.saturating_sub(self.under_way.len());
        for candidate in candidates.into_iter().take(room) {
            self.start_attempt(candidate);
        }
        Ok(attempts)
    }

    fn candidates(
        &mut self,
        rules: &[ServiceRule],
        hosts: &HashSet<u32>,
        machine: &MachineInfo,
    ) -> anyhow::Result<Vec<AttachCandidate>> {
        let mut living = HashSet::new();
        let mut candidates = Vec::new();
        for (pid, program) in programs()? {
            // It may have ended meanwhile.
            let Some(start) = start_ticks(pid) else {
                continue;
            };
            let instance = machine.process_key_of(pid, start);
            living.insert(instance.clone());
            let rule = rules.iter().find(|rule| rule.attaches(&program));
            let Some(rule) = rule.filter(|rule| !hosts.contains(&pid) && rule.includes(&instance))
            else {
                continue;
            };
            let tried = self.refused.get(&instance);
            let is_resting = tried.is_some_and(|tried| Uptime::now().since(*tried) < rule.period);
            if !is_resting && !self.under_way.contains_key(&instance) {
                let name = format!("{program} {}/{pid}", machine.name);
                candidates.push(AttachCandidate {
                    instance,
                    pid,
                    name,
                });
            }
        }
        self.held.retain(|instance, _| living.contains(instance));
        self.refused.retain(|instance, _| living.contains(instance));
        Ok(candidates)
    }

    fn start_attempt(&mut self, candidate: AttachCandidate) {
        let AttachCandidate { instance, name, .. } = &candidate;
        self.under_way.insert(instance.clone(), name.clone());
        let ended = self.ended.0.clone();
        thread::spawn(move || {
            let attempt = memprof(&["attach", &candidate.pid.to_string(), "--for", LEASE]);
            // An agent that has ended does not listen.
            ended.send((candidate, attempt)).unwrap_or_default();
        });
    }

    fn record_result(&mut self, (candidate, attempt): AttemptResult) -> Attempt {
        let AttachCandidate {
            instance,
            pid,
            name,
        } = candidate;
        self.under_way.remove(&instance);
        match &attempt {
            Ok(()) => self.held.insert(instance, pid).map(drop),
            Err(_) => self.refused.insert(instance, Uptime::now()).map(drop),
        };
        (name, attempt)
    }

    /// Waits for the attempts that run, but not for long.
    pub(crate) fn wait_for_attempts(&mut self) -> Vec<Attempt> {
        let until = std::time::Instant::now() + ENDING;
        let mut attempts = Vec::new();
        while !self.under_way.is_empty() {
            let left = until.saturating_duration_since(std::time::Instant::now());
            match self.ended.1.recv_timeout(left) {
                Ok(ended) => attempts.push(self.record_result(ended)),
                Err(_) => break,
            }
        }
        let left = self.under_way.drain().map(|(_, name)| {
            let error = anyhow!("`memprof attach` still runs: its plugin leaves after {LEASE}");
            (name, Err(error))
        });
        attempts.extend(left);
        attempts
    }

    /// Takes the plugin out of every process that is still there. Returns what came of each.
    pub(crate) fn detach(&mut self, machine: &MachineInfo) -> Vec<Attempt> {
        let held = self.held.drain();
        let left = held.filter(|(instance, pid)| {
            start_ticks(*pid).is_some_and(|start| machine.process_key_of(*pid, start) == *instance)
        });
        let detached = left.map(|(_, pid)| {
            let name = format!("{}/{pid}", machine.name);
            (name, memprof(&["detach", &pid.to_string()]))
        });
        detached.collect()
    }
}

/// The processes of this machine, but for this one, by the names of their programs' files.
fn programs() -> anyhow::Result<Vec<(u32, String)>> {
    let entries = fs::read_dir("/proc").context("failed to read /proc")?;
    let pids = entries.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let programs = pids.filter_map(|pid| {
        // Another user's, or the kernel's, cannot be attached to.
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let name = program.file_name()?.to_str()?;
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        (pid != std::process::id()).then(|| (pid, name.to_owned()))
    });
    Ok(programs.collect())
}

/// Runs `memprof`, which is installed with this program.
fn memprof(args: &[&str]) -> anyhow::Result<()> {
    let own = env::current_exe().context("failed to find this program")?;
    let beside = own.with_file_name("memprof");
    let program = match beside.exists() {
        true => beside,
        false => PathBuf::from("memprof"),
    };
    let output = Command::new(&program).args(args).output();
    let output = output.with_context(|| format!("failed to run {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("memprof: ").to_owned();
        bail!("memprof {} failed: {said}", args[0]);
    }
    Ok(())
}
