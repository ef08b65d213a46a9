//! Suite `machines`: agents of many machines, two of one name, share a NATS server and write to three stores, while
//! clocks are set, servers fail and are restarted, agents are killed, and a store is replaced. Each profile is in a
//! store once, and each process has one for each of its periods.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use testkit::s3::{BUCKET, S3, WriteFault};
use testkit::seaweedfs::SeaweedFs;

use super::fixture::FleetFixture;
use super::machine::{Machine, MachineOptions, PERIOD_SECONDS};
use super::nats::Nats;
use super::process::wait_until;
use crate::SuiteLength;

/// Steps by which clocks are set in turn: ahead, behind, back.
const CLOCK_STEPS: [i64; 4] = [3, -5, 0, 10];
/// Stores, of which each machine writes to one.
const STORES: u64 = 3;
/// Number of the store in `SeaweedFS`, which refuses requests of clocks that differ by more than 15 minutes.
const SEAWEED_STORE: u64 = 2;
/// Hours by which one clock is wrong all the time: an agent must not delete what others wrote.
const WRONG_CLOCK: i64 = 30 * 24;
/// Most lines of an agent about one error. Each fault gives one line at its start and one at its end; between them the
/// line is repeated at doubling intervals.
const MOST_LINES: usize = 40;

/// Size and length of a run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    agents: u64,
    /// Rounds of faults.
    rounds: usize,
    round_time: Duration,
    /// Longest time that a profile waits for others: 200 agents would be busy with smaller batches.
    batch: Duration,
}

const LONG: Plan = Plan {
    agents: 200,
    rounds: 43,
    round_time: Duration::from_secs(28),
    batch: Duration::from_secs(20),
};

const SHORT: Plan = Plan {
    agents: 12,
    rounds: 6,
    round_time: Duration::from_secs(6),
    batch: Duration::from_secs(2),
};

/// Runs the suite `machines`, and returns its figures in one line. Fails if a store lacks a profile or has it twice, if
/// a process has no profile of a period, or if an agent repeats an error too often.
pub(crate) fn run_machines(length: SuiteLength) -> Result<String> {
    let plan = length.pick(SHORT, LONG);
    let mut fleet = Fleet::start(plan)?;
    let start = Instant::now();
    let mut replaced = 0;
    for round in 0..plan.rounds {
        fleet.add_profiles()?;
        fleet.set_faults(round)?;
        fleet.set_clocks(round)?;
        if round == plan.rounds / 2 {
            fleet.replace_store()?;
            replaced += 1;
        }
        thread::sleep(plan.round_time);
    }
    fleet.end_faults()?;
    let agents = fleet.wait_for_all_agents()?;
    fleet.wait_until_drained()?;
    let elapsed = start.elapsed();
    let lines = fleet.check_errors()?;
    let taken = fleet.check_periods_and_kill_agents(elapsed)?;
    let added = fleet.check_added_profiles()?;
    Ok(format!(
        "{agents} agents for {} s, {replaced} store replaced, all answered: {added} profiles once each, 0 lost; \
         {taken} taken of running processes, no period without one; at most {lines} lines of an agent about one error",
        elapsed.as_secs()
    ))
}

/// The machines, the servers and the stores.
struct Fleet {
    machines: Vec<Machine>,
    nats: Nats,
    s3: S3,
    seaweed: SeaweedFs,
    /// Directories of the stores on disk: the current one, and the replaced one.
    dir: TempDir,
    /// Reads each store: on disk, with faults, `SeaweedFS`.
    readers: Vec<FleetFixture>,
}

impl Fleet {
    /// Starts the stores, the NATS server and the agents of all machines of a plan. The machines write to the stores in
    /// turn; two of ten run a process, and one of four has a clock that can be set.
    fn start(plan: Plan) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let s3 = S3::start()?;
        let seaweed = SeaweedFs::start()?;
        let bucket = format!("s3://{BUCKET}/prod");
        let stores = [
            (store_url(&dir.path().join("store")), Vec::new()),
            (bucket.clone(), s3.environment().to_vec()),
            (bucket, seaweed.environment().to_vec()),
        ];
        let reader = |(store, environment): &(String, Vec<_>)| {
            FleetFixture::create(store, environment, "service = []")
        };
        let readers = stores.iter().map(reader).collect::<Result<Vec<_>>>()?;
        let nats = Nats::start_debian_package(&readers[0])?;
        let machine = |number: u64| {
            let (store, environment) = &stores[(number % STORES) as usize];
            let options = MachineOptions {
                // The machines 0 and 1 have one name.
                name: number.max(1),
                has_process: number % 10 < 2,
                has_clock: number % 4 == 3,
            };
            Machine::start(
                number,
                options,
                store,
                environment,
                (&nats.url(), plan.batch),
            )
        };
        let machines = (0..plan.agents).map(machine).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            machines,
            nats,
            s3,
            seaweed,
            dir,
            readers,
        })
    }

    /// Adds one profile to the spool of each machine, with the current time and a new process key.
    fn add_profiles(&mut self) -> Result<()> {
        self.machines.iter_mut().try_for_each(Machine::add_profile)
    }

    /// Lets the next twelve writes to the S3 store fail, and kills, stops, resumes or restarts the `SeaweedFS` store
    /// and the NATS server, or leaves them alone. `round` selects the faults.
    fn set_faults(&mut self, round: usize) -> Result<()> {
        let faults: [WriteFault; 12] = std::array::from_fn(|index| {
            WriteFault::ALL[(index * 7 + round) % WriteFault::ALL.len()]
        });
        self.s3.set_faults(&faults);
        match round % 6 {
            1 => self.seaweed.kill()?,
            2 => self.seaweed.restart()?,
            3 => self.seaweed.stop()?,
            4 => self.seaweed.resume()?,
            _ => {}
        }
        match round % 4 {
            0 => self.nats.kill(),
            1 => self.nats.restart(&self.readers[0])?,
            _ => {}
        }
        Ok(())
    }

    /// Sets each clock that can be set: the first one to a wrong time, the others by a step that depends on the round.
    fn set_clocks(&self, round: usize) -> Result<()> {
        let machines = self
            .machines
            .iter()
            .filter(|machine| machine.options.has_clock);
        for (index, machine) in machines.enumerate() {
            let step = CLOCK_STEPS[(index + round) % CLOCK_STEPS.len()];
            machine.set_clock(&match index {
                0 => format!("{WRONG_CLOCK:+}h"),
                // SeaweedFS refuses requests of clocks that differ by more than 15 minutes.
                _ if machine.number % STORES == SEAWEED_STORE => format!("{step:+}m"),
                _ => format!("{step:+}h"),
            })?;
        }
        Ok(())
    }

    /// Moves the store on disk away while agents write to it, and creates an empty one in its place.
    fn replace_store(&self) -> Result<()> {
        let store = self.dir.path().join("store");
        fs::rename(&store, self.dir.path().join("replaced")).context("the store")?;
        fs::create_dir(&store).context("the store")
    }

    /// Lets writes succeed, restarts the servers, and sets the clocks right, except the one that is always wrong.
    fn end_faults(&mut self) -> Result<()> {
        self.s3.set_faults(&[]);
        // An earlier round may have killed the server already.
        drop(self.seaweed.kill());
        self.seaweed.restart()?;
        self.nats.kill();
        self.nats.restart(&self.readers[0])?;
        let machines = self
            .machines
            .iter()
            .filter(|machine| machine.options.has_clock);
        machines
            .skip(1)
            .try_for_each(|machine| machine.set_clock("+0"))
    }

    /// Runs `fleet ps` until all agents answer over the restarted NATS server, and its note says that two machines
    /// share a name. Returns the number of agents. Fails after the timeout of [`wait_until`].
    fn wait_for_all_agents(&self) -> Result<usize> {
        let ps = ["fleet", "ps", "--nats", &self.nats.url()].map(str::to_owned);
        let args: Vec<_> = ps.iter().map(String::as_str).collect();
        let expected = format!("{} agents answered", self.machines.len());
        let shared = "machine-1 is the name of more than one machine";
        wait_until("not every agent answers", || {
            let output = self.readers[0].fleet_command(&args).output();
            output.is_ok_and(|output| {
                let notes = String::from_utf8_lossy(&output.stderr);
                notes.contains(&expected) && notes.contains(shared)
            })
        })?;
        Ok(self.machines.len())
    }

    /// Waits until each spool was empty once, and so all added profiles are stored. The spools need not be empty at the
    /// same time, because agents go on to add profiles of processes. The error after a timeout has the last log line of
    /// each agent whose spool was never empty.
    fn wait_until_drained(&self) -> Result<()> {
        let mut waiting: Vec<_> = self.machines.iter().collect();
        let drained = wait_until("a spool is not drained", || {
            waiting.retain(|machine| !machine.is_drained());
            waiting.is_empty()
        });
        drained.with_context(|| {
            let lines = waiting.iter().map(|machine| {
                let log = machine.read_log_lines().unwrap_or_default();
                let last = log.last().map_or("no line", String::as_str);
                format!(
                    "machine {}, store {}: {last}",
                    machine.number,
                    machine.number % STORES
                )
            });
            lines.collect::<Vec<_>>().join("; ")
        })
    }

    /// Checks that no agent logs one error more than [`MOST_LINES`] times, as it would if it repeated the error at each
    /// attempt. Returns the largest number of lines of an agent with one error.
    fn check_errors(&self) -> Result<usize> {
        let mut most = 0;
        for machine in &self.machines {
            let log = machine.read_log_lines()?;
            let mut counts = BTreeMap::new();
            for line in &log {
                // What is in parentheses differs from attempt to attempt.
                let error = line.split(" (").next().unwrap_or(line);
                *counts.entry(error).or_insert(0) += 1;
            }
            // The other lines are the profiles that the agent took of the process `idle`.
            let error_count = |(line, count): (&str, usize)| {
                (!line.starts_with("memprof: idle ")).then_some(count)
            };
            let of_machine = counts
                .into_iter()
                .filter_map(error_count)
                .max()
                .unwrap_or(0);
            ensure!(
                of_machine <= MOST_LINES,
                "an error has {of_machine} lines: {log:#?}"
            );
            most = most.max(of_machine);
        }
        Ok(most)
    }

    /// Checks by the agents' logs that each process has a profile for each period of `elapsed`, then kills all agents.
    /// Returns the number of profiles that the agents took.
    fn check_periods_and_kill_agents(&mut self, elapsed: Duration) -> Result<usize> {
        // The process and its first period begin some seconds after the agent.
        let expected = (elapsed.as_secs() / PERIOD_SECONDS).saturating_sub(2) as usize;
        let mut taken = 0;
        for machine in &self.machines {
            let log = machine.read_log_lines()?;
            let profiles = log
                .iter()
                .filter(|line| line.starts_with("memprof: idle "))
                .count();
            let is_complete = !machine.options.has_process || profiles >= expected;
            ensure!(
                is_complete,
                "{profiles} profiles of a process in {} s: {log:#?}",
                elapsed.as_secs()
            );
            taken += profiles;
        }
        for machine in &mut self.machines {
            machine.kill_agent()?;
        }
        Ok(taken)
    }

    /// Checks that each profile that the suite added is in one of the stores once, and, by `fleet doctor`, that the
    /// current stores are complete. Returns the number of added profiles.
    fn check_added_profiles(&self) -> Result<usize> {
        let replaced = store_url(&self.dir.path().join("replaced"));
        let replaced = FleetFixture::create(&replaced, &[], "service = []")?;
        // The replaced store is not checked: it may lack names of stacks that an agent was about to write.
        for reader in &self.readers {
            reader.run_fleet(&["fleet", "doctor"])?;
        }
        let mut found = BTreeMap::new();
        for reader in self.readers.iter().chain([&replaced]) {
            for row in list_processes(reader)? {
                let instance = row["instance"]
                    .as_str()
                    .context("a row without a process")?;
                *found.entry(instance.to_owned()).or_insert(0) +=
                    row["profiles"].as_u64().unwrap_or(0);
            }
        }
        let added = self.machines.iter().flat_map(|machine| &machine.added);
        let wrong: Vec<_> = added
            .clone()
            .filter(|instance| found.get(*instance) != Some(&1))
            .collect();
        ensure!(wrong.is_empty(), "not in a store once: {wrong:?}");
        Ok(added.count())
    }
}

/// Lists the processes with profiles in a store in the last day, by the real clock. Fails unless `fleet ps` succeeds.
fn list_processes(reader: &FleetFixture) -> Result<Vec<Value>> {
    let mut command = reader.fleet_command(&["fleet", "ps", "--json"]);
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "fleet ps: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the URL by which `memprof-fleet` opens a directory as a store.
fn store_url(directory: &Path) -> String {
    format!("file://{}", directory.display())
}
