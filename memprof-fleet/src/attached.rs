//! Processes that nobody prepared and that the policy names: the agent has `memprof attach` put the plugin
//! into them, and takes it out again when it ends.

use std::collections::{HashMap, HashSet};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

use crate::policy::Rule;
use crate::take::{Machine, start_ticks};
use crate::time::Instant;

/// How long the plugin stays where an agent was killed. A new attachment knows nothing of what was
/// allocated before, so a living agent should have to make none.
const LEASE: &str = "24h";

/// What this agent attached to, and what it tried.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    /// By instance: the pid.
    held: HashMap<String, u32>,
    /// By instance: when it was tried last, in vain.
    refused: HashMap<String, Instant>,
}

/// What came of an attempt: what the process is called, and why not.
type Attempt = (String, anyhow::Result<()>);

impl Attached {
    /// Attaches to every process that a rule names and that is none of `hosts`, pids. One that refuses is tried again
    /// after a period.
    pub(crate) fn attach(
        &mut self,
        rules: &[Rule],
        hosts: &HashSet<u32>,
        machine: &Machine,
    ) -> anyhow::Result<Vec<Attempt>> {
        let mut living = HashSet::new();
        let mut attempts = Vec::new();
        for (pid, program) in programs()? {
            // It may have ended meanwhile.
            let Some(start) = start_ticks(pid) else {
                continue;
            };
            let instance = machine.instance_of(pid, start);
            living.insert(instance.clone());
            let rule = rules.iter().find(|rule| rule.attaches(&program));
            let Some(rule) = rule.filter(|rule| !hosts.contains(&pid) && rule.takes(&instance))
            else {
                continue;
            };
            let tried = self.refused.get(&instance);
            if tried.is_some_and(|tried| *tried > Instant::now().before(rule.period)) {
                continue;
            }
            let attempt = memprof(&["attach", &pid.to_string(), "--for", LEASE]);
            match &attempt {
                Ok(()) => self.held.insert(instance, pid).map(drop),
                Err(_) => self.refused.insert(instance, Instant::now()).map(drop),
            };
            attempts.push((format!("{program} {}/{pid}", machine.name), attempt));
        }
        self.held.retain(|instance, _| living.contains(instance));
        self.refused.retain(|instance, _| living.contains(instance));
        Ok(attempts)
    }

    /// Takes the plugin out of every process that is still there. Returns what came of each.
    pub(crate) fn detach(&mut self, machine: &Machine) -> Vec<Attempt> {
        let held = self.held.drain();
        let left = held.filter(|(instance, pid)| {
            start_ticks(*pid).is_some_and(|start| machine.instance_of(*pid, start) == *instance)
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
