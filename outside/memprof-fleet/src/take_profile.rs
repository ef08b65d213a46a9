//! A dump of one host, read and named on its machine, where its binaries are.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail, ensure};
use memprof_host::RunningHost;
use memprof_host::client::Client;
use memprof_messages::{ProfileKind, Profiling};

use crate::heap::{Heap, read};
use crate::naming::Naming;
use crate::policy::ServiceRule;
use crate::process_profile::{ProcessProfile, ProfileContext};
use crate::time::Instant;

/// How many periods an activation of ours outlives the agent.
const LEASE: u32 = 3;
/// The largest dump that is read, in bytes. One of the sampler's has some MiB.
const DUMP_LIMIT: u64 = 256 << 20;
/// The shortest one: the agent looks for hosts less often than some periods are long.
const LEAST_LEASE: Duration = Duration::from_secs(60);

/// What all dumps of an agent have in common.
#[derive(Clone, Debug)]
pub(crate) struct MachineInfo {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) clock_offset_ms: Option<i64>,
}

impl MachineInfo {
    pub(crate) fn new(labels: BTreeMap<String, String>) -> Self {
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Self {
            name,
            labels,
            clock_offset_ms: None,
        }
    }

    /// What no other process is called, here and elsewhere. Neither a step of the clock nor another
    /// attachment changes it.
    pub(crate) fn process_key(&self, host: &RunningHost) -> String {
        let start = start_ticks(host.pid).unwrap_or(host.info.started);
        self.process_key_of(host.pid, start)
    }

    /// The same of any process, by its start in ticks since the machine's.
    pub(crate) fn process_key_of(&self, pid: u32, start: u64) -> String {
        format!("{}/{pid}.{start}", self.name)
    }
}

/// A dump of a host.
pub(crate) struct TakenProfile {
    pub(crate) dumped: ProcessProfile,
    /// Why its functions are numbers, where they are.
    pub(crate) named: anyhow::Result<()>,
}

/// Takes a dump of a host, and reads all profiles in it.
pub(crate) fn take_profile(
    host: &RunningHost,
    rule: &ServiceRule,
    machine: &MachineInfo,
    naming: &mut Naming,
) -> anyhow::Result<TakenProfile> {
    let mut client = Client::connect(&host.socket)?;
    ensure_sampling(&mut client, rule)?;
    let report = client.dump("")?;
    let heaps = report
        .dumps
        .iter()
        .filter(|dump| dump.kind == ProfileKind::Heap);
    let mut sum = Heap::default();
    let mut interval = 0;
    let mut unnamed: Option<String> = None;
    let instance = machine.process_key(host);
    for dump in heaps {
        let mut bytes = Vec::new();
        let passed = client.fetch(&dump.id)?;
        passed.take(DUMP_LIMIT + 1).read_to_end(&mut bytes)?;
        ensure!(
            bytes.len() as u64 <= DUMP_LIMIT,
            "its dump is larger than {DUMP_LIMIT} bytes"
        );
        let bytes = Arc::new(bytes);
        interval = interval.max(dump.sample_interval);
        let named = match &unnamed {
            None => naming.name(&instance, host.pid, &bytes),
            Some(reason) => Err(reason.clone()),
        };
        let heap = match named {
            Ok(heap) => heap,
            Err(reason) => {
                unnamed = Some(reason);
                read(&bytes, None)?
            }
        };
        sum.add(heap);
    }
    let Heap {
        build_id,
        sampler,
        samples,
        stacks,
    } = sum;
    let dumped = ProcessProfile {
        context: ProfileContext {
            time: Instant::now(),
            start_time: Instant(host.info.started.saturating_mul(1000).cast_signed()),
            service: host.info.name.clone(),
            instance,
            host: machine.name.clone(),
            pid: host.pid,
            build_id,
            trigger: "agent".to_owned(),
            labels: machine.labels.clone(),
            sample_interval: i64::try_from(interval).unwrap_or(i64::MAX),
            rss_bytes: resident(host.pid),
            clock_offset_ms: machine.clock_offset_ms,
            sampler,
        },
        samples,
        stacks,
    };
    let named = match unnamed {
        None => Ok(()),
        Some(reason) => Err(anyhow!("its functions are numbers: {reason}")),
    };
    Ok(TakenProfile { dumped, named })
}

/// Switches sampling on, or keeps it on, where the rule says so.
fn ensure_sampling(client: &mut Client, rule: &ServiceRule) -> anyhow::Result<()> {
    let status = client.status()?;
    let lease = (rule.period * LEASE).max(LEAST_LEASE);
    let is_ending = expires_within(status.active_until.as_deref(), lease);
    match status.profiling.known() {
        Some(Profiling::Active) if !(is_ending && rule.activates()) => Ok(()),
        Some(Profiling::Unavailable) => {
            let reason = status.reason.unwrap_or_default();
            bail!(
                "it cannot be profiled: {reason}; {}",
                status.remedy.unwrap_or_default()
            )
        }
        _ if rule.activates() => {
            client.activate(&format!("for={}s", lease.as_secs()))?;
            Ok(())
        }
        _ => bail!(
            "sampling is off: run `memprof activate`, or set `activate = true` in its [[service]] rule"
        ),
    }
}

/// Whether an activation ends, and so soon.
fn expires_within(until: Option<&str>, time: Duration) -> bool {
    let until = until.and_then(|until| humantime::parse_rfc3339(until).ok());
    until.is_some_and(|until| until < SystemTime::now() + time)
}

/// When the process started, in ticks since the machine did (`starttime` of proc(5), stat).
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may hold anything; behind it comes the third field.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// The process's resident memory (proc(5), status).
pub(crate) fn resident(pid: u32) -> Option<i64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}
