//! Takes a profile of one host, and symbolizes it on the host's machine, where its binaries are.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail, ensure};
use memprof_host::RunningHost;
use memprof_host::client::Client;
use memprof_messages::{ProfileKind, Profiling};

use crate::heap::{Heap, read_heap};
use crate::machine_info::{MachineInfo, read_resident_bytes};
use crate::naming::Naming;
use crate::policy::ServiceRule;
use crate::process_profile::{ProcessProfile, ProfileContext};
use crate::time::Instant;

/// Number of the rule's periods after which an activation by the agent expires.
const LEASE_PERIODS: u32 = 3;
/// Most bytes of a dump that is read. A dump of memprof's sampler has some MiB.
const DUMP_LIMIT: u64 = 256 << 20;
/// Shortest lease: the agent discovers hosts less often than some periods are long.
const MIN_LEASE: Duration = Duration::from_secs(60);

/// Profile of a host, and whether it is symbolized.
pub(crate) struct TakenProfile {
    pub(crate) profile: ProcessProfile,
    /// Error if its functions are addresses, with the reason.
    pub(crate) symbolization: anyhow::Result<()>,
}

/// Takes a dump of a host, and sums the heap profiles of its allocators. If the rule says so, first enables sampling,
/// or extends its time limit. Blocks until the dump is read and symbolized. If functions cannot be symbolized, the
/// profile has offsets, and the result has the reason. Fails if the host does not answer, cannot be profiled, or does
/// not sample, or if a dump is malformed or too large.
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
    // After one failure the other dumps are not symbolized either: each attempt may take until its timeout.
    let mut unnamed: Option<String> = None;
    let instance = machine.process_key(host);
    for dump in heaps {
        let mut bytes = Vec::new();
        let passed = client.fetch_dump(&dump.id)?;
        // One byte above the limit shows that the dump is too large.
        passed.take(DUMP_LIMIT + 1).read_to_end(&mut bytes)?;
        ensure!(
            bytes.len() as u64 <= DUMP_LIMIT,
            "its dump is larger than {DUMP_LIMIT} bytes"
        );
        let bytes = Arc::new(bytes);
        // The profile has one interval: the longest of its dumps.
        interval = interval.max(dump.sample_interval);
        let symbolized = match &unnamed {
            None => naming.symbolize(&instance, host.pid, &bytes),
            Some(reason) => Err(reason.clone()),
        };
        let heap = match symbolized {
            Ok(heap) => heap,
            Err(reason) => {
                unnamed = Some(reason);
                read_heap(&bytes, None)?
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
    let profile = ProcessProfile {
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
            rss_bytes: read_resident_bytes(host.pid),
            clock_offset_ms: machine.clock_offset_ms,
            sampler,
        },
        samples,
        stacks,
    };
    let symbolization = match unnamed {
        None => Ok(()),
        Some(reason) => Err(anyhow!("its functions are numbers: {reason}")),
    };
    Ok(TakenProfile {
        profile,
        symbolization,
    })
}

/// Enables sampling for some periods, or extends the time limit, if the rule says so. Fails if the host cannot be
/// profiled, or if it does not sample and the rule does not say to enable it.
fn ensure_sampling(client: &mut Client, rule: &ServiceRule) -> anyhow::Result<()> {
    let status = client.status()?;
    let lease = (rule.period * LEASE_PERIODS).max(MIN_LEASE);
    let is_expiring = expires_within(status.active_until.as_deref(), lease);
    match status.profiling.known() {
        Some(Profiling::Active) if !(is_expiring && rule.enables_sampling()) => Ok(()),
        Some(Profiling::Unavailable) => {
            let reason = status.reason.unwrap_or_default();
            bail!(
                "it cannot be profiled: {reason}; {}",
                status.remedy.unwrap_or_default()
            )
        }
        _ if rule.enables_sampling() => {
            client.activate(&format!("for={}s", lease.as_secs()))?;
            Ok(())
        }
        _ => bail!(
            "sampling is off: run `memprof activate`, or set `activate = true` in its [[service]] rule"
        ),
    }
}

/// Returns whether an activation expires within `time` from now. `expiry` is a time in RFC 3339; false if it is `None`
/// (it never expires) or malformed.
fn expires_within(expiry: Option<&str>, time: Duration) -> bool {
    let expiry = expiry.and_then(|expiry| humantime::parse_rfc3339(expiry).ok());
    expiry.is_some_and(|expiry| expiry < SystemTime::now() + time)
}
