//! A thousand processes that hold what real ones held: their profiles, as an agent keeps them in its spool.
//!
//! There are 20 services of 50 processes each. A service has the stacks of a program of memprof-report's corpus, those
//! that a sampler would find; each of them holds a number of sampled objects that changes now and then. Half of the
//! services are deployed again in the middle of the time: from then on a twentieth of their stacks has new names, and
//! one of them leaks.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::synthetic::Random;

const SERVICES: usize = 20;
pub(super) const PROCESSES: usize = 1000;
/// Each runs fifty processes.
pub(super) const MACHINES: usize = 20;
/// Between two profiles of a process.
const PERIOD: i64 = 80_000;
/// The longest time that one takes.
const DELAY: i64 = 50;
const HOUR: i64 = 3_600_000;
/// Mean bytes between samples.
const INTERVAL: f64 = 524_288.0;

/// A stack: its id, and the rest of it as JSON.
struct Stack {
    id: i64,
    json: String,
}

/// What a stack of a service holds where it is in balance.
struct ServiceStack {
    /// Index of its stack in the old build and in the new one.
    stacks: [usize; 2],
    /// Bytes of an object.
    size: f64,
    /// Bytes in all.
    level: f64,
}

struct Service {
    name: String,
    builds: [String; 2],
    places: Vec<ServiceStack>,
    /// Whether its allocator counts what was allocated.
    accumulates: bool,
    is_deployed: bool,
}

/// What a process holds at a place.
struct StackLevel {
    place: usize,
    /// Sampled objects.
    samples: f64,
    /// How probably it changes between two profiles.
    change: f64,
    bytes: i64,
    objects: i64,
    allocated: [i64; 2],
}

struct Process {
    service: usize,
    pid: usize,
    /// When it takes its profiles, after each period's beginning.
    offset: i64,
    /// 1 once it is of the new build.
    build: usize,
    held: Vec<StackLevel>,
}

/// All of them.
pub(super) struct Processes {
    random: Random,
    stacks: Vec<Stack>,
    services: Vec<Service>,
    processes: Vec<Process>,
    /// When the time begins, in milliseconds since 1970.
    start: i64,
    hours: i64,
    pub(super) totals: Totals,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) profiles: i64,
    pub(super) samples: i64,
    pub(super) bytes: i64,
    pub(super) objects: i64,
}

impl Processes {
    /// `programs` are stacks, `ROOT;…;LEAF`.
    pub(super) fn new(programs: &[Vec<String>], start: i64, hours: i64) -> Self {
        let mut all = Self {
            random: Random::new(),
            stacks: Vec::new(),
            services: Vec::new(),
            processes: Vec::new(),
            start,
            hours,
            totals: Totals::default(),
        };
        for number in 0..SERVICES {
            let service = all.service(number, &programs[number % programs.len()]);
            all.services.push(service);
        }
        for number in 0..PROCESSES {
            let service = number / (PROCESSES / SERVICES);
            let process = all.process(service);
            all.processes.push(process);
        }
        all
    }

    /// From 0 to 1.
    fn fraction(&mut self) -> f64 {
        self.random.below(1 << 30) as f64 / f64::from(1 << 30)
    }

    fn service(&mut self, number: usize, program: &[String]) -> Service {
        let name = format!("service-{number:02}");
        let count = (30.0 + self.fraction().powi(2) * 330.0) as usize;
        let mut left: Vec<&String> = program.iter().collect();
        let mut places = Vec::new();
        while places.len() < count && !left.is_empty() {
            let stack = left.swap_remove(self.random.below(left.len()));
            let old = self.stack(stack);
            let new = match places.len() % 20 {
                3 => self.stack(&stack.replacen(';', ";v2::", 1)),
                _ => old,
            };
            let size = 2f64.powf(4.0 + self.fraction() * 12.0);
            let level = INTERVAL * 2f64.powf(self.fraction() * 8.0 - 1.0);
            places.push(ServiceStack {
                stacks: [old, new],
                size,
                level: level.max(size),
            });
        }
        let build = |of: usize| format!("{:040x}", (number + 1) * 0x1_0000_0001 + of * 0xabcd_ef00);
        Service {
            name,
            builds: [build(1), build(2)],
            places,
            accumulates: number % 5 == 2,
            is_deployed: number.is_multiple_of(2),
        }
    }

    /// The index of a stack.
    fn stack(&mut self, text: &str) -> usize {
        // FNV-1a: any id does that is another one for another stack.
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

    fn process(&mut self, service: usize) -> Process {
        let count = self.services[service].places.len();
        let mut held = Vec::new();
        for place in 0..count {
            if self.random.below(10) == 0 {
                continue;
            }
            let level = self.services[service].places[place].level;
            held.push(StackLevel {
                place,
                samples: (level / INTERVAL * (0.5 + self.fraction())).max(0.3),
                change: self.fraction().powi(2),
                bytes: 0,
                objects: 0,
                allocated: [0; 2],
            });
        }
        Process {
            service,
            pid: 1000 + self.random.below(60_000),
            offset: self.random.below((PERIOD - DELAY) as usize) as i64,
            build: 0,
            held,
        }
    }

    /// Writes the profiles of a machine's processes in an hour to the directory of a spool.
    pub(super) fn write(&mut self, machine: usize, hour: i64, spool: &Path) -> Result<()> {
        for number in (machine..PROCESSES).step_by(MACHINES) {
            let service = &self.services[self.processes[number].service];
            if service.is_deployed && hour == self.hours / 2 && self.processes[number].build == 0 {
                let fresh = self.process(self.processes[number].service);
                self.processes[number] = Process { build: 1, ..fresh };
            }
            let begin = self.start + hour * HOUR + self.processes[number].offset;
            for at in 0..HOUR / PERIOD {
                let time = begin + at * PERIOD + self.random.below(DELAY as usize) as i64;
                self.step(number);
                let text = self.dump(number, machine, time, at == 0)?;
                fs::write(spool.join(format!("{time:015}.{number}.json")), text)?;
            }
        }
        Ok(())
    }

    /// Lets a process run until its next profile.
    fn step(&mut self, number: usize) {
        let mut held = std::mem::take(&mut self.processes[number].held);
        let (service, build) = (self.processes[number].service, self.processes[number].build);
        let accumulates = self.services[service].accumulates;
        for one in &mut held {
            let size = self.services[service].places[one.place].size;
            if build == 1 && one.place == 3 {
                one.samples += 0.2;
            }
            if one.objects == 0 || self.fraction() < one.change {
                let noise = (self.fraction() - 0.5) * one.samples.sqrt() * 2.0 * one.change;
                let sampled = (one.samples + noise).round().max(0.0);
                // A sample stands for so many objects (`prof_unbias`).
                let objects = sampled / (1.0 - (-size / INTERVAL).exp());
                one.objects = objects.round() as i64;
                one.bytes = (objects.round() * size * (0.99 + self.fraction() * 0.02)) as i64;
            }
            if accumulates {
                let sampled = (one.samples * one.change * 3.0 * self.fraction()).round();
                one.allocated[0] += (sampled * INTERVAL) as i64;
                one.allocated[1] += (sampled * INTERVAL / size) as i64;
            }
        }
        self.processes[number].held = held;
    }

    /// A file of the spool. The stacks' names are in the first one of an hour: the store would keep them once anyway.
    fn dump(&mut self, number: usize, machine: usize, time: i64, is_first: bool) -> Result<String> {
        let process = &self.processes[number];
        let service = &self.services[process.service];
        let stack =
            |one: &StackLevel| &self.stacks[service.places[one.place].stacks[process.build]];
        let mut samples = String::new();
        for one in process.held.iter().filter(|one| one.objects > 0) {
            let StackLevel { bytes, objects, .. } = one;
            let comma = if samples.is_empty() { "" } else { "," };
            write!(
                samples,
                "{comma}{{\"stack_id\":{},\"inuse_bytes\":{bytes},\"inuse_objects\":{objects},\"alloc\":",
                stack(one).id
            )?;
            match service.accumulates {
                true => write!(samples, "[{},{}]}}", one.allocated[0], one.allocated[1])?,
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
            "start_time": self.start - HOUR,
            "service": service.name,
            "instance": format!("{host}/{}.{number}", process.pid),
            "host": host,
            "pid": process.pid,
            "build_id": service.builds[process.build],
            "trigger": "agent",
            "labels": { "zone": format!("eu-{}", machine % 3), "team": format!("team-{}", process.service / 4) },
            "sample_interval": INTERVAL as i64,
            "rss_bytes": 1 << 30,
            "clock_offset_ms": null,
        });
        let stacks = process.held.iter().filter(|_| is_first);
        let stacks: Vec<_> = stacks.map(|one| &*stack(one).json).collect();
        let stacks = stacks.join(",");
        Ok(format!(
            "{{\"context\":{context},\"samples\":[{samples}],\"stacks\":[{stacks}]}}"
        ))
    }

    pub(super) fn builds(&self, service: usize) -> (&str, [&str; 2]) {
        let Service { name, builds, .. } = &self.services[service];
        (name, [&builds[0], &builds[1]])
    }
}
