//! A dump of one host, read and named on its machine, where its binaries are.

use std::collections::{BTreeMap, HashMap};
use std::io::BufReader;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use memprof_host::Running;
use memprof_host::client::Client;
use memprof_messages::{ProfileKind, Profiling};
use memprof_report::{
    Blame, Folded, Granularity, Input, Named, Options, Origin, SampleType, Sources, StringId,
    Whose, leave_out_memprof,
};

use crate::dumped::{Context, Dumped, Frame, Sample, SamplerCounts, Stack, stack_id};
use crate::policy::Rule;
use crate::time::Instant;

/// How many periods an activation of ours outlives the agent.
const LEASE: u32 = 3;
/// The shortest one: the agent looks for hosts less often than some periods are long.
const LEAST_LEASE: Duration = Duration::from_secs(60);

/// What all dumps of an agent have in common.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) clock_offset_ms: Option<i64>,
}

impl Machine {
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
    pub(crate) fn instance(&self, host: &Running) -> String {
        let start = start_ticks(host.pid).unwrap_or(host.info.started);
        self.instance_of(host.pid, start)
    }

    /// The same of any process, by its start in ticks since the machine's.
    pub(crate) fn instance_of(&self, pid: u32, start: u64) -> String {
        format!("{}/{pid}.{start}", self.name)
    }
}

/// Takes a dump of a host, and reads all profiles in it.
pub(crate) fn take(
    host: &Running,
    rule: &Rule,
    machine: &Machine,
    trigger: &str,
) -> anyhow::Result<Dumped> {
    let mut client = Client::connect(&host.socket)?;
    sample(&mut client, rule)?;
    let report = client.dump("")?;
    let heaps = report
        .dumps
        .iter()
        .filter(|dump| dump.kind == ProfileKind::Heap);
    let mut sums = Sums::default();
    let mut build_id = String::new();
    let mut interval = 0;
    let mut sampler: Option<SamplerCounts> = None;
    for dump in heaps {
        let mut bytes = BufReader::new(client.fetch(&dump.id)?);
        let input = Input {
            name: &dump.id,
            bytes: &mut bytes,
        };
        let sources = Sources::of_process(Some(host.pid));
        let options = Options::default();
        let mut named = memprof_report::read(input, Some(&sources), &options, &|_, _| ())?;
        leave_out_memprof(&mut named.profile, &named.names, &named.depths);
        let main = named.profile.main_file();
        build_id = main
            .and_then(|main| main.build_id.clone())
            .unwrap_or(build_id);
        interval = interval.max(dump.sample_interval);
        let counts = sampler_counts(&named.profile.origin);
        sampler = sampler
            .into_iter()
            .chain(counts)
            .reduce(SamplerCounts::plus);
        sums.add(&named);
    }
    let (samples, stacks) = sums.into_parts();
    Ok(Dumped {
        context: Context {
            time: Instant::now(),
            start_time: Instant(host.info.started.saturating_mul(1000).cast_signed()),
            service: host.info.name.clone(),
            instance: machine.instance(host),
            host: machine.name.clone(),
            pid: host.pid,
            build_id,
            trigger: trigger.to_owned(),
            labels: machine.labels.clone(),
            sample_interval: i64::try_from(interval).unwrap_or(i64::MAX),
            rss_bytes: resident(host.pid),
            clock_offset_ms: machine.clock_offset_ms,
            sampler,
        },
        samples,
        stacks,
    })
}

fn sampler_counts(origin: &Origin) -> Option<SamplerCounts> {
    let count = |count: Option<u64>| count.and_then(|count| i64::try_from(count).ok());
    SamplerCounts::new(count(origin.samples), count(origin.lost_samples))
}

/// Switches sampling on, or keeps it on, where the rule says so.
fn sample(client: &mut Client, rule: &Rule) -> anyhow::Result<()> {
    let status = client.status()?;
    let lease = (rule.period * LEASE).max(LEAST_LEASE);
    let is_ending = ends_within(status.active_until.as_deref(), lease);
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
fn ends_within(until: Option<&str>, time: Duration) -> bool {
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

/// Profiles of one process, summed by stack.
#[derive(Default)]
struct Sums {
    by_stack: HashMap<i64, (Sample, Stack)>,
}

impl Sums {
    fn add(&mut self, named: &Named) {
        let whose = whose(named);
        let profile = &named.profile;
        for sample in &profile.samples {
            let frames = frames(named, sample.stack);
            let id = stack_id(&frames);
            let [alloc_objects, alloc_bytes, inuse_objects, inuse_bytes] = sample.values.0;
            let alloc = [alloc_bytes, alloc_objects];
            let (sum, _) = self.by_stack.entry(id).or_insert_with(|| {
                let sample = Sample {
                    stack_id: id,
                    alloc: profile.has_alloc.then_some([0; 2]),
                    ..Sample::default()
                };
                let stack = Stack {
                    stack_id: id,
                    function: telling(&frames, &whose),
                    frames,
                };
                (sample, stack)
            });
            sum.inuse_bytes += inuse_bytes;
            sum.inuse_objects += inuse_objects;
            sum.alloc = match (sum.alloc, profile.has_alloc) {
                (Some(known), true) => Some([known[0] + alloc[0], known[1] + alloc[1]]),
                _ => None,
            };
        }
    }

    fn into_parts(self) -> (Vec<Sample>, Vec<Stack>) {
        let mut both: Vec<_> = self.by_stack.into_values().collect();
        both.sort_by_key(|(sample, _)| sample.stack_id);
        both.into_iter().unzip()
    }
}

/// Whose each function is.
fn whose(named: &Named) -> HashMap<String, Whose> {
    let blame = Blame::default();
    let functions = Granularity::Functions;
    let folded = Folded::new(named, None, SampleType::InuseSpace, functions, &blame);
    let name = |index: usize| folded.functions.get(StringId(index as u32)).to_owned();
    let whose = folded.whose.iter().enumerate();
    whose.map(|(index, whose)| (name(index), *whose)).collect()
}

/// The leaf-most function of the most telling kind.
fn telling(frames: &[Frame], whose: &HashMap<String, Whose>) -> String {
    let kind = |frame: &&Frame| whose.get(&frame.function).copied().unwrap_or_default();
    // The last one of equals.
    let frame = frames.iter().max_by_key(kind);
    frame
        .map(|frame| frame.function.clone())
        .unwrap_or_default()
}

/// A stack's functions, root first, without the allocator's.
fn frames(named: &Named, stack: memprof_report::StackId) -> Vec<Frame> {
    let profile = &named.profile;
    let depth = named.depths[stack.0 as usize] as usize;
    let addresses = &profile.stacks.frames(stack)[depth..];
    let mut frames = Vec::new();
    for &id in addresses {
        let mut call = profile.stacks.address(id);
        call.0 = call.0.wrapping_sub(1);
        let mapping = profile
            .mapping_of(call)
            .map(|index| &profile.mappings[index]);
        let module = mapping.map_or("", |mapping| mapping.file_name());
        frames.extend(named.names.frames(id).iter().map(|frame| Frame {
            function: named.names.strings.get(frame.function).to_owned(),
            module: module.to_owned(),
        }));
    }
    frames.reverse();
    frames
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// 400 bytes in use: 300 of `cart`, called by `libshop.so`, and 100 of that.
    pub(crate) fn two_stacks() -> Named {
        let text = "heap profile: 4: 400 [4: 400] @ heapprofile\n\
                    3: 300 [3: 300] @ 0x1001 0x2001\n1: 100 [1: 100] @ 0x2001\n\
                    \nMAPPED_LIBRARIES:\n1000-2000 r-xp 0 00:00 1 /bin/cart\n\
                    2000-3000 r-xp 0 00:00 2 /lib/libshop.so\n";
        let mut bytes = text.as_bytes();
        let input = Input {
            name: "t",
            bytes: &mut bytes,
        };
        let options = Options::default();
        memprof_report::read(input, None, &options, &|_, _| ()).unwrap()
    }

    #[test]
    fn a_profile_becomes_rows() {
        let named = two_stacks();
        let mut sums = Sums::default();
        sums.add(&named);
        let (samples, stacks) = sums.into_parts();
        assert_eq!(
            samples.iter().map(|sample| sample.inuse_bytes).sum::<i64>(),
            400
        );
        let deep = stacks.iter().find(|stack| stack.frames.len() == 2).unwrap();
        assert_eq!(deep.frames[0].module, "libshop.so");
        assert_eq!(deep.function, "cart+0x0");
        assert_eq!(deep.stack_id, stack_id(&deep.frames));
    }
}
