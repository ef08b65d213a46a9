//! `memprof agent`: takes profiles by the policy, writes them to the spool, and moves them to the store.

mod attach;
mod dump_requests;
mod maintenance;
mod no_host;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use memprof_host::{DiscoveryScope, RunningHost, UnreachableHost, discover_hosts};
use memprof_output::{NO_DATA, note, one_line, print_stderr, with_exit_code};
use memprof_report::{SampleType, format_amount};
use tokio::signal::unix::{SignalKind, signal};

use self::maintenance::Maintenance;
use crate::args::AgentArgs;
use crate::attachments::Attachments;
use crate::bus::{AgentEvent, serve_requests};
use crate::config::Config;
use crate::drain::drain_spool;
use crate::error_log::ErrorLog;
use crate::machine_info::MachineInfo;
use crate::metrics_server;
use crate::naming::Naming;
use crate::policy::{ServiceRule, rule_for};
use crate::schema::build_store_files;
use crate::spool::Spool;
use crate::store::ProfileStore;
use crate::take_profile::{TakenProfile, take_profile};
use crate::time::{Hour, Instant, Uptime};

/// Longest wait between two discoveries of hosts.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of profiles in the spool from which a batch is written early.
const BATCH_BYTES: u64 = 4 << 20;
/// Pause after a failure of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Prefix of the names of unreachable hosts.
const UNREACHABLE_PREFIX: &str = "not reached: ";

/// Runs `memprof agent`: once with `--once`, else until a signal ends it. Fails if the configuration is invalid, or the
/// spool or the store cannot be opened.
pub(crate) fn run(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.store)?.with_bus_args(&args.bus);
    let mut agent = Agent {
        spool: Spool::open(&config.spool)?,
        store: Arc::new(ProfileStore::open(&config.store)?),
        machine: MachineInfo::read(config.labels.clone()),
        config,
        attachments: Attachments::new(),
        naming: Naming::default(),
        stored_stacks: HashSet::new(),
        stored_in: None,
        last_dumps: HashMap::new(),
        errors: ErrorLog::default(),
    };
    match args.once {
        true => agent.run_once(),
        false => agent.run_until_signal(),
    }
}

/// State of a running agent.
struct Agent {
    config: Config,
    spool: Spool,
    store: Arc<ProfileStore>,
    machine: MachineInfo,
    attachments: Attachments,
    naming: Naming,
    /// Stacks that this agent has written to the store, by hour.
    stored_stacks: HashSet<(Hour, i64)>,
    /// Id of the store that has these stacks.
    stored_in: Option<Bytes>,
    /// Time of the last dump, or before it of the discovery, by process key.
    last_dumps: HashMap<String, Uptime>,
    errors: ErrorLog,
}

impl Agent {
    /// Takes a profile of each host that the policy selects, and moves all profiles to the store. Returns exit code 1
    /// if a host failed. Fails if there is no such host (exit code 5), or the spool or the store fails.
    fn run_once(&mut self) -> anyhow::Result<ExitCode> {
        let hosts = self.discover_selected_hosts();
        let mut failed = false;
        let mut profiles = 0;
        for (host, rule) in &hosts {
            match self.dump_to_spool(host, rule) {
                Ok(_) => profiles += 1,
                Err(error) => {
                    failed = true;
                    note(&format!("{}: {error:#}", self.describe_host(host)));
                }
            }
        }
        self.flush_batch()?;
        drain_spool(&self.spool, &self.store)?;
        if profiles == 0 && !failed {
            return Err(with_exit_code(NO_DATA, self.no_host_message()));
        }
        Ok(u8::from(failed).into())
    }

    /// Takes profiles by the policy, handles requests for dumps, and maintains the store until a signal ends the agent.
    /// Then detaches from the processes to which the agent has attached, and moves the profiles to the store. Errors of
    /// single hosts, of the spool and of the store are only reported until then. Fails if the threads cannot be
    /// started, or if the spool cannot be read or written at the end.
    fn run_until_signal(&mut self) -> anyhow::Result<ExitCode> {
        let (send, events) = channel();
        notify_on_signal(send.clone())?;
        if self.config.nats.url.is_some() {
            serve_requests(self.config.nats.clone(), self.machine.name.clone(), send)?;
        }
        metrics_server::serve_metrics(&self.config.http)?;
        print_stderr(&format!("memprof: profiles go to {}", self.store.url()));
        let mut pause_until = Uptime(0);
        let mut batched = Uptime::now();
        let mut store_retry_at = Uptime(0);
        let mut maintenance = Maintenance::new();
        loop {
            let now = Uptime::now();
            self.attach_to_programs();
            for (host, rule) in self.discover_selected_hosts() {
                if Uptime::now() >= pause_until && self.start_period_if_due(&host, &rule) {
                    let start = std::time::Instant::now();
                    let dump = self.dump_to_spool(&host, &rule);
                    pause_until = Uptime::now().plus(rule.pause_after(start.elapsed()));
                    self.report_outcome_change(self.describe_host(&host), dump.map(drop));
                }
            }
            if self.is_batch_due(batched, now) {
                let flushed = self.flush_batch();
                self.report_outcome_change("the spool".to_owned(), flushed);
                batched = now;
            }
            if store_retry_at <= now {
                let drained = drain_spool(&self.spool, &self.store);
                match &drained {
                    Ok(drained) if drained.clock_offset_ms.is_some() => {
                        self.machine.clock_offset_ms = drained.clock_offset_ms;
                    }
                    Ok(_) => {}
                    Err(_) => store_retry_at = Uptime::now().plus(STORE_RETRY_DELAY),
                }
                self.report_outcome_change("the store".to_owned(), drained.map(drop));
            }
            let (store, name) = (&self.store, &self.machine.name);
            if let Some(maintained) = maintenance.start_if_due(store, name, self.config.keep) {
                self.report_outcome_change("merging".to_owned(), maintained);
            }
            match events.recv_timeout(POLL_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(AgentEvent::DumpRequested(request)) => {
                    // Also handles the requests that have arrived since, with the same profiles.
                    if self.handle_dump_requests(request, &events) {
                        break;
                    }
                }
                Ok(AgentEvent::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.detach_all();
        let attempts = self.attachments.wait_for_attempts();
        self.report_attempts(attempts);
        // Once more, for the processes whose attempt to attach has ended since the first call.
        self.detach_all();
        // Profiles that do not reach the store now stay in the spool for the next agent.
        let flushed = self.flush_batch();
        if let Err(error) = drain_spool(&self.spool, &self.store) {
            note(&format!("{error:#}: what is in the spool stays there"));
        }
        flushed?;
        Ok(ExitCode::SUCCESS)
    }

    /// Returns whether a batch is to be written: the last one is as old as the configuration allows, or enough bytes
    /// wait. Also if the spool cannot be read, because writing the batch reports the reason.
    fn is_batch_due(&self, last: Uptime, now: Uptime) -> bool {
        let is_small = || {
            let bytes = self.spool.pending_profile_bytes();
            bytes.is_ok_and(|bytes| bytes < BATCH_BYTES)
        };
        now.since(last) >= self.config.batch || !is_small()
    }

    /// Discovers the hosts that the policy selects: a rule names the service, and the process is in the rule's share.
    /// Returns each with its rule. Reports unreachable hosts, and drops the state of hosts that have ended.
    fn discover_selected_hosts(&mut self) -> Vec<(RunningHost, ServiceRule)> {
        let found = discover_hosts(DiscoveryScope::AllProcesses, |_| ());
        let name = |one: &UnreachableHost| {
            let pid = one.pid.map(|pid| format!("{pid}, ")).unwrap_or_default();
            format!("{UNREACHABLE_PREFIX}{pid}{}", one.path.display())
        };
        let unreachable: HashSet<_> = found.unreachable.iter().map(name).collect();
        // Errors of hosts that have ended are dropped without a report.
        self.errors.retain(|subject| {
            !subject.starts_with(UNREACHABLE_PREFIX) || unreachable.contains(subject)
        });
        for one in &found.unreachable {
            let subject = name(one);
            self.report_outcome_change(subject, Err(anyhow::anyhow!("{}", one.reason)));
        }
        let hosts = found.hosts.into_iter().filter_map(|(host, ())| {
            let rule = rule_for(&self.config.service, &host.info.name)?;
            let is_selected = rule.includes_process(&self.machine.process_key(&host));
            is_selected.then(|| (host, rule.clone()))
        });
        let hosts: Vec<_> = hosts.collect();
        let running: HashSet<_> = hosts
            .iter()
            .map(|(host, _)| self.machine.process_key(host))
            .collect();
        self.last_dumps
            .retain(|instance, _| running.contains(instance));
        hosts
    }

    /// Returns whether a host is due for a dump by its rule; if so, starts the next period. A host that was discovered
    /// just now is not due: its first period starts.
    fn start_period_if_due(&mut self, host: &RunningHost, rule: &ServiceRule) -> bool {
        let instance = self.machine.process_key(host);
        let now = Uptime::now();
        let last = *self.last_dumps.entry(instance.clone()).or_insert(now);
        let is_due = rule.is_due(&instance, last, now);
        if is_due {
            self.last_dumps.insert(instance, now);
        }
        is_due
    }

    /// Takes a profile of a host, writes it to the spool, and prints a line about it. Returns the bytes in use. If
    /// functions cannot be named, reports that, and the profile has their offsets. Fails if more than `spool_limit`
    /// bytes wait in the spool, the host cannot be profiled, or the spool cannot be written.
    fn dump_to_spool(&mut self, host: &RunningHost, rule: &ServiceRule) -> anyhow::Result<i64> {
        let pending = self.spool.pending_bytes()?;
        anyhow::ensure!(
            pending <= self.config.spool_limit,
            "no profile was taken: {pending} bytes in {} wait for the store, more than `spool_limit` ({})",
            self.config.spool.display(),
            self.config.spool_limit
        );
        let TakenProfile {
            profile,
            symbolization,
        } = take_profile(host, rule, &self.machine, &mut self.naming)?;
        self.report_outcome_change(
            format!("the names of {}", self.describe_host(host)),
            symbolization,
        );
        self.spool.add(&profile)?;
        let [bytes, _] = profile.sum_inuse();
        print_stderr(&format!(
            "memprof: {}: {} in {}",
            self.describe_host(host),
            format_amount(bytes, SampleType::InuseSpace),
            profile.summary()
        ));
        Ok(bytes)
    }

    /// Returns the name of a host for messages: service, machine and process id, as `shop web1/42`.
    fn describe_host(&self, host: &RunningHost) -> String {
        format!(
            "{} {}/{}",
            one_line(&host.info.name),
            self.machine.name,
            host.pid
        )
    }

    /// Forgets which stacks are in the store if it was emptied or replaced since. Also forgets them if the store does
    /// not reply: stacks that are written twice are better than missing ones.
    fn forget_stacks_of_other_store(&mut self) {
        if self.stored_stacks.is_empty() {
            return;
        }
        let store = self.store.read_or_create_id().ok();
        if store.is_none() || store != self.stored_in {
            self.stored_stacks.clear();
            self.stored_in = store;
        }
    }

    /// Converts the profiles in the spool to files for the store, without stacks that this agent stored in the same
    /// hour. Fails if the spool cannot be read or written.
    fn flush_batch(&mut self) -> anyhow::Result<()> {
        self.forget_stacks_of_other_store();
        let new_stacks = RefCell::new(Vec::new());
        self.spool.convert_batch(|profiles| {
            let files = build_store_files(profiles, &self.stored_stacks)?;
            for profile in profiles {
                let hour = profile.context.time.hour();
                let stacks = profile
                    .stacks
                    .iter()
                    .map(|stack| (hour.clone(), stack.stack_id));
                new_stacks.borrow_mut().extend(stacks);
            }
            Ok(files)
        })?;
        // Only stacks in complete files count as stored.
        self.stored_stacks.extend(new_stacks.into_inner());
        // Only the stacks of this hour are kept, which bounds the set. At worst, a stack of a past hour is written
        // twice.
        let hour = Instant::now().hour();
        self.stored_stacks.retain(|(stored, _)| *stored == hour);
        Ok(())
    }

    /// Prints changes in the outcome of recurring work. `subject` is a text that names the work or its object, such as
    /// `the store`. An error is printed when it begins and, while it recurs, at doubling intervals; the first success
    /// after errors is printed, too.
    fn report_outcome_change(&mut self, subject: String, outcome: anyhow::Result<()>) {
        match outcome {
            Ok(()) if self.errors.clear(&subject) => note(&format!("{subject}: works again")),
            Ok(()) => {}
            Err(error) => {
                let line = self
                    .errors
                    .record_error(&subject, &format!("{error:#}"), Uptime::now());
                if let Some(line) = line {
                    note(&format!("{subject}: {line}"));
                }
            }
        }
    }
}

/// Starts a thread that sends [`AgentEvent::End`] on the first SIGTERM, SIGINT or SIGHUP. Fails if the signals cannot
/// be handled.
fn notify_on_signal(send: Sender<AgentEvent>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = runtime.block_on(async {
        anyhow::Ok([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ])
    });
    let [mut terminate, mut interrupt, mut hangup] =
        signals.context("failed to wait for signals")?;
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        // Sending fails only if the agent has ended.
        send.send(AgentEvent::End).unwrap_or_default();
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Creates an agent whose spool and store are in `directory`.
    fn agent_in(directory: &Path) -> Agent {
        let config = Config {
            spool: directory.join("spool"),
            store: format!("file://{}", directory.join("store").display()),
            ..Config::default()
        };
        Agent {
            spool: Spool::open(&config.spool).unwrap(),
            store: Arc::new(ProfileStore::open(&config.store).unwrap()),
            machine: MachineInfo::read(config.labels.clone()),
            config,
            attachments: Attachments::new(),
            naming: Naming::default(),
            stored_stacks: HashSet::new(),
            stored_in: None,
            last_dumps: HashMap::new(),
            errors: ErrorLog::default(),
        }
    }

    #[test]
    fn batch_is_due_when_it_is_old_or_large_or_unreadable() {
        let check = |change: fn(&Path), age: u64, expected: bool| {
            let directory = tempfile::tempdir().unwrap();
            let agent = agent_in(directory.path());
            let dumps = directory.path().join("spool/dumps");
            change(&dumps);
            let now = Uptime(0).plus(Duration::from_secs(age));
            let what = format!("{age} {:?}", fs::metadata(&dumps));
            assert_eq!(agent.is_batch_due(Uptime(0), now), expected, "{what}");
        };
        check(|_| (), 0, false);
        check(|_| (), 599, false);
        check(|_| (), 600, true);
        check(|dumps| add_profile(dumps, BATCH_BYTES - 1), 0, false);
        check(|dumps| add_profile(dumps, BATCH_BYTES), 0, true);
        // This stands for a lack of descriptors or of permission.
        check(make_unreadable, 0, true);
    }

    /// Creates a file of that many bytes.
    fn add_profile(dumps: &Path, bytes: u64) {
        let file = fs::File::create(dumps.join("0.json")).unwrap();
        file.set_len(bytes).unwrap();
    }

    /// Replaces a directory by a file.
    fn make_unreadable(directory: &Path) {
        fs::remove_dir(directory).unwrap();
        fs::write(directory, "").unwrap();
    }

    #[test]
    fn spool_that_was_unreadable_works_again() {
        let directory = tempfile::tempdir().unwrap();
        let dumps = directory.path().join("spool/dumps");
        let mut agent = agent_in(directory.path());
        make_unreadable(&dumps);
        assert!(agent.is_batch_due(Uptime(0), Uptime(0)));
        assert!(agent.flush_batch().is_err());
        fs::remove_file(&dumps).unwrap();
        agent.flush_batch().unwrap();
        assert!(!agent.is_batch_due(Uptime(0), Uptime(0)));
    }
}
