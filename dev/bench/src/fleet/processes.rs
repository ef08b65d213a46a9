//! Profiles of a thousand synthetic processes with the stacks of real ones, as an agent keeps them in its spool.
//!
//! There are 20 services of 50 processes each. A service has the stacks of a program of memprof-report's corpus; the
//! number of sampled objects of a stack changes from time to time. Half of the services are deployed again in the
//! middle of the time: from then on a twentieth of their stacks has other functions, and one stack leaks.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::json;
use testkit::Random;

use crate::synthetic::SEED;

const SERVICES: usize = 20;
pub(super) const PROCESSES: usize = 1000;
/// Machines, with fifty processes each.
pub(super) const MACHINES: usize = 20;
/// Interval of a process's profiles, in milliseconds.
const PROFILE_INTERVAL: i64 = 80_000;
/// Maximum delay of a profile, in milliseconds.
const MAX_DELAY: i64 = 50;
const MILLIS_PER_HOUR: i64 = 3_600_000;
/// Mean bytes between samples.
const SAMPLE_INTERVAL: f64 = 524_288.0;

struct Stack {
    id: i64,
    /// Entry of the stack in a profile's `stacks`.
    json: String,
}

/// Mean memory of a stack in the processes of a service.
struct ServiceStack {
    /// Indices of the stack in [`Processes::stacks`], in the old build and in the new one.
    stacks: [usize; 2],
    /// Bytes of an object.
    object_bytes: f64,
    /// Bytes of all objects.
    mean_bytes: f64,
}

struct Service {
    name: String,
    builds: [String; 2],
    stacks: Vec<ServiceStack>,
    /// Whether its profiles have the bytes and objects allocated so far.
    accumulates: bool,
    is_deployed: bool,
}

/// Memory of a stack in a process.
struct StackLevel {
    /// Index in [`Service::stacks`].
    stack: usize,
    /// Mean number of sampled objects.
    samples: f64,
    /// Probability of a change between two profiles.
    change: f64,
    bytes: i64,
    objects: i64,
    /// Bytes and objects allocated so far.
    allocated: [i64; 2],
}

struct Process {
    service: usize,
    pid: usize,
    /// Delay of the profiles after the start of each interval, in milliseconds.
    offset: i64,
    /// Index of the build: 0 for the old one, 1 for the new one.
    build: usize,
    levels: Vec<StackLevel>,
}

/// All processes, with the profiles' totals.
pub(super) struct Processes {
    random: Random,
    stacks: Vec<Stack>,
    services: Vec<Service>,
    processes: Vec<Process>,
    /// Time of the first hour, in milliseconds since 1970.
    start: i64,
    hours: i64,
    pub(super) totals: Totals,
}

/// Sums over all profiles that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) profiles: i64,
    pub(super) samples: i64,
    pub(super) bytes: i64,
    pub(super) objects: i64,
}

impl Processes {
    /// Generates the services and processes from the stacks of programs, `ROOT;…;LEAF`. The profiles will be of `hours`
    /// hours from `start` on, which is in milliseconds since 1970.
    pub(super) fn new(programs: &[Vec<String>], start: i64, hours: i64) -> Self {
        let mut all = Self {
            random: Random(SEED),
            stacks: Vec::new(),
            services: Vec::new(),
            processes: Vec::new(),
            start,
            hours,
            totals: Totals::default(),
        };
        for number in 0..SERVICES {
            let service = all.new_service(number, &programs[number % programs.len()]);
            all.services.push(service);
        }
        for number in 0..PROCESSES {
            let service = number / (PROCESSES / SERVICES);
            let process = all.new_process(service);
            all.processes.push(process);
        }
        all
    }

    /// Next pseudo-random number, at least 0 and below 1.
    fn random_fraction(&mut self) -> f64 {
        self.random.next_below(1 << 30) as f64 / f64::from(1 << 30)
    }

    /// Generates a service with 30 to 360 stacks of a program, most often few. The sizes of objects (16 B to 64 KiB)
    /// and the memory of stacks are log-uniform. One stack in twenty has another name in the new build.
    fn new_service(&mut self, number: usize, program: &[String]) -> Service {
        let name = format!("service-{number:02}");
        let count = (30.0 + self.random_fraction().powi(2) * 330.0) as usize;
        let mut unused: Vec<&String> = program.iter().collect();
        let mut stacks = Vec::new();
        while stacks.len() < count && !unused.is_empty() {
            let stack = unused.swap_remove(self.random.next_below(unused.len()));
            let old = self.add_stack(stack);
            let new = match stacks.len() % 20 {
                3 => self.add_stack(&stack.replacen(';', ";v2::", 1)),
                _ => old,
            };
            let object_bytes = 2f64.powf(4.0 + self.random_fraction() * 12.0);
            let mean_bytes = SAMPLE_INTERVAL * 2f64.powf(self.random_fraction() * 8.0 - 1.0);
            stacks.push(ServiceStack {
                stacks: [old, new],
                object_bytes,
                mean_bytes: mean_bytes.max(object_bytes),
            });
        }
        let build = |build: usize| {
            format!(
                "{:040x}",
                (number + 1) * 0x1_0000_0001 + build * 0xabcd_ef00
            )
        };
        Service {
            name,
            builds: [build(1), build(2)],
            stacks,
            accumulates: number % 5 == 2,
            is_deployed: number.is_multiple_of(2),
        }
    }

    /// Adds a stack, `ROOT;…;LEAF`, and returns its index in [`Processes::stacks`].
    fn add_stack(&mut self, text: &str) -> usize {
        // The hash is FNV-1a; any id does that differs between stacks.
        let id = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let frames = text.split(';').map(|function| {
            let (module, _) = function.split_once("+0x").unwrap_or((function, ""));
            json!({ "function": function, "module": module })
        });
        let frames: Vec<_> = frames.collect();
        let function = text.rsplit(';').next().unwrap_or_default();
        let id = id.cast_signed();
        let json = json!({ "stack_id": id, "function": function, "frames": frames }).to_string();
        self.stacks.push(Stack { id, json });
        self.stacks.len() - 1
    }

    /// Generates a process of a service, with about nine tenths of the service's stacks.
    fn new_process(&mut self, service: usize) -> Process {
        let count = self.services[service].stacks.len();
        let mut levels = Vec::new();
        for stack in 0..count {
            if self.random.next_below(10) == 0 {
                continue;
            }
            let mean_bytes = self.services[service].stacks[stack].mean_bytes;
            levels.push(StackLevel {
                stack,
                samples: (mean_bytes / SAMPLE_INTERVAL * (0.5 + self.random_fraction())).max(0.3),
                change: self.random_fraction().powi(2),
                bytes: 0,
                objects: 0,
                allocated: [0; 2],
            });
        }
        Process {
            service,
            pid: 1000 + self.random.next_below(60_000),
            offset: self
                .random
                .next_below((PROFILE_INTERVAL - MAX_DELAY) as usize) as i64,
            build: 0,
            levels,
        }
    }

    /// Writes the profiles of a machine's processes in an hour to `spool`, a directory of the agent's spool. `hour`
    /// counts from 0. In the middle of all hours, each process of a service that is deployed is replaced by one of the
    /// new build.
    pub(super) fn write_hour(&mut self, machine: usize, hour: i64, spool: &Path) -> Result<()> {
        for number in (machine..PROCESSES).step_by(MACHINES) {
            let service = &self.services[self.processes[number].service];
            // The service is deployed again: a process of the new build replaces the old one.
            if service.is_deployed && hour == self.hours / 2 && self.processes[number].build == 0 {
                let fresh = self.new_process(self.processes[number].service);
                self.processes[number] = Process { build: 1, ..fresh };
            }
            let begin = self.start + hour * MILLIS_PER_HOUR + self.processes[number].offset;
            for index in 0..MILLIS_PER_HOUR / PROFILE_INTERVAL {
                let time = begin
                    + index * PROFILE_INTERVAL
                    + self.random.next_below(MAX_DELAY as usize) as i64;
                self.simulate_until_next_profile(number);
                let text = self.build_profile_json(number, machine, time, index == 0)?;
                fs::write(spool.join(format!("{time:015}.{number}.json")), text)?;
            }
        }
        Ok(())
    }

    /// Changes the memory of the stacks of a process as if it allocated and freed from one profile to the next.
    /// `process` is its index.
    fn simulate_until_next_profile(&mut self, process: usize) {
        let mut levels = std::mem::take(&mut self.processes[process].levels);
        let (service, build) = (
            self.processes[process].service,
            self.processes[process].build,
        );
        let accumulates = self.services[service].accumulates;
        for level in &mut levels {
            let object_bytes = self.services[service].stacks[level.stack].object_bytes;
            // Build 1 is the new build, which leaks in stack 3.
            if build == 1 && level.stack == 3 {
                level.samples += 0.2;
            }
            if level.objects == 0 || self.random_fraction() < level.change {
                let noise =
                    (self.random_fraction() - 0.5) * level.samples.sqrt() * 2.0 * level.change;
                let sampled = (level.samples + noise).round().max(0.0);
                // A sample stands for more than one object (jemalloc's `prof_unbias`).
                let objects = sampled / (1.0 - (-object_bytes / SAMPLE_INTERVAL).exp());
                level.objects = objects.round() as i64;
                level.bytes = (objects.round()
                    * object_bytes
                    * (0.99 + self.random_fraction() * 0.02)) as i64;
            }
            if accumulates {
                let sampled = (level.samples * level.change * 3.0 * self.random_fraction()).round();
                level.allocated[0] += (sampled * SAMPLE_INTERVAL) as i64;
                level.allocated[1] += (sampled * SAMPLE_INTERVAL / object_bytes) as i64;
            }
        }
        self.processes[process].levels = levels;
    }

    /// Returns a profile of a process in the format of the spool, and adds it to the totals. `time` is in milliseconds
    /// since 1970. Only the first profile of an hour (`is_first`) names the functions of the stacks, because the store
    /// keeps them once.
    fn build_profile_json(
        &mut self,
        number: usize,
        machine: usize,
        time: i64,
        is_first: bool,
    ) -> Result<String> {
        let process = &self.processes[number];
        let service = &self.services[process.service];
        let stack =
            |level: &StackLevel| &self.stacks[service.stacks[level.stack].stacks[process.build]];
        let mut samples = String::new();
        for level in process.levels.iter().filter(|level| level.objects > 0) {
            let StackLevel { bytes, objects, .. } = level;
            let comma = if samples.is_empty() { "" } else { "," };
            write!(
                samples,
                "{comma}{{\"stack_id\":{},\"inuse_bytes\":{bytes},\"inuse_objects\":{objects},\"alloc\":",
                stack(level).id
            )?;
            match service.accumulates {
                true => write!(samples, "[{},{}]}}", level.allocated[0], level.allocated[1])?,
                false => samples.push_str("null}"),
            }
            self.totals.samples += 1;
            self.totals.bytes += bytes;
            self.totals.objects += objects;
        }
        self.totals.profiles += 1;
        let host = format!("node-{machine:03}.example");
        let context = json!({
            "time": time,
            "start_time": self.start - MILLIS_PER_HOUR,
            "service": service.name,
            "instance": format!("{host}/{}.{number}", process.pid),
            "host": host,
            "pid": process.pid,
            "build_id": service.builds[process.build],
            "trigger": "agent",
            "labels": { "zone": format!("eu-{}", machine % 3), "team": format!("team-{}", process.service / 4) },
            "sample_interval": SAMPLE_INTERVAL as i64,
            "rss_bytes": 1 << 30,
            "clock_offset_ms": null,
        });
        let stacks = process.levels.iter().filter(|_| is_first);
        let stacks: Vec<_> = stacks.map(|level| &*stack(level).json).collect();
        let stacks = stacks.join(",");
        Ok(format!(
            "{{\"context\":{context},\"samples\":[{samples}],\"stacks\":[{stacks}]}}"
        ))
    }

    /// Name of the service with this index, and the ids of its old and new build.
    pub(super) fn service_and_builds(&self, service: usize) -> (&str, [&str; 2]) {
        let Service { name, builds, .. } = &self.services[service];
        (name, [&builds[0], &builds[1]])
    }
}
