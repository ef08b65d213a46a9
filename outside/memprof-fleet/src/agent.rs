//! `memprof agent`: dumps by the policy, to the spool, to the store.

mod dump_requests;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use memprof_host::{DiscoveryScope, RunningHost, UnreachableHost, discover};
use memprof_report::{SampleType, amount};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::AgentArgs;
use crate::attachments::Attachments;
use crate::bus::{AgentEvent, answer};
use crate::compact::compact;
use crate::config::Config;
use crate::drain::drain;
use crate::metrics_server;
use crate::naming::Naming;
use crate::output::{NO_DATA, coded, in_line, note, print_stderr};
use crate::policy::{ServiceRule, elect, rule};
use crate::prune::prune;
use crate::query::writing_since;
use crate::schema::files;
use crate::spool::Spool;
use crate::store::Store;
use crate::take_profile::{MachineInfo, TakenProfile, take_profile};
use crate::time::{Hour, Instant, Uptime};

/// How often hosts are looked for.
const TURN: Duration = Duration::from_secs(5);
/// So many bytes of dumps make a file before its time.
const BATCH_BYTES: u64 = 4 << 20;
/// How long a store that failed is left alone.
const LEAVE: Duration = Duration::from_secs(10);
/// How often the store is merged and pruned.
const HOUSEKEEPING: Duration = Duration::from_secs(1800);
/// How long an agent takes profiles before it reads files of others: one that ends an agent must not do so
/// before each profile.
const SETTLING: Duration = Duration::from_secs(660);

/// How the name of a host begins that was not reached.
const UNREACHED: &str = "not reached: ";

pub(crate) fn run(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    let config = Config::read(&args.at)?.with(&args.bus);
    let mut agent = Agent {
        spool: Spool::open(&config.spool)?,
        store: Arc::new(Store::open(&config.store)?),
        machine: MachineInfo::new(config.labels.clone()),
        config,
        attached: Attachments::new(),
        naming: Naming::default(),
        known: HashSet::new(),
        known_by: None,
        seen: HashMap::new(),
        told: HashMap::new(),
    };
    match args.once {
        true => agent.run_once(),
        false => agent.serve(),
    }
}

struct Agent {
    config: Config,
    spool: Spool,
    store: Arc<Store>,
    machine: MachineInfo,
    attached: Attachments,
    naming: Naming,
    /// The stacks that this agent put into the store, by hour.
    known: HashSet<(Hour, i64)>,
    /// The id of the store that has them.
    known_by: Option<Bytes>,
    /// By process: when it was dumped last, or first seen.
    seen: HashMap<String, Uptime>,
    /// What was said last of each thing, so that it is not said each time.
    told: HashMap<String, String>,
}

impl Agent {
    fn run_once(&mut self) -> anyhow::Result<ExitCode> {
        let hosts = self.hosts();
        let mut failed = false;
        let mut taken = 0;
        for (host, rule) in &hosts {
            match self.dump(host, rule) {
                Ok(_) => taken += 1,
                Err(error) => {
                    failed = true;
                    note(&format!("{}: {error:#}", self.describe(host)));
                }
            }
        }
        self.flush_batch()?;
        drain(&self.spool, &self.store)?;
        if taken == 0 && !failed {
            return Err(coded(
                NO_DATA,
                "no process with the plugin is running that this user can profile: `memprof ps --all` shows why",
            ));
        }
        Ok(u8::from(failed).into())
    }

    fn serve(&mut self) -> anyhow::Result<ExitCode> {
        let (send, events) = channel();
        notify_on_signal(send.clone())?;
        if self.config.nats.url.is_some() {
            answer(self.config.nats.clone(), self.machine.name.clone(), send)?;
        }
        metrics_server::serve_metrics(&self.config.http)?;
        print_stderr(&format!("memprof: profiles go to {}", self.store.url()));
        let mut rest_until = Uptime(0);
        let mut batched = Uptime::now();
        let mut leave_until = Uptime(0);
        let mut keep_house_at = batched.after(SETTLING);
        loop {
            let now = Uptime::now();
            self.attach();
            for (host, rule) in self.hosts() {
                if Uptime::now() >= rest_until && self.is_due(&host, &rule) {
                    let begun = std::time::Instant::now();
                    let dumped = self.dump(&host, &rule);
                    rest_until = Uptime::now().after(rule.pause_after(begun.elapsed()));
                    self.report_change(self.describe(&host), dumped.map(drop));
                }
            }
            let is_time = now.since(batched) >= self.config.batch;
            if is_time || self.spool.dump_bytes()? >= BATCH_BYTES {
                let done = self.flush_batch();
                self.report_change("the spool".to_owned(), done);
                batched = now;
            }
            if leave_until <= now {
                let drained = drain(&self.spool, &self.store);
                match &drained {
                    Ok(drained) if drained.clock_offset_ms.is_some() => {
                        self.machine.clock_offset_ms = drained.clock_offset_ms;
                    }
                    Ok(_) => {}
                    Err(_) => leave_until = Uptime::now().after(LEAVE),
                }
                self.report_change("the store".to_owned(), drained.map(drop));
            }
            if keep_house_at <= now {
                let kept = self.compact_and_prune(Instant::now());
                self.report_change("merging".to_owned(), kept);
                keep_house_at = now.after(HOUSEKEEPING);
            }
            match events.recv_timeout(TURN) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(AgentEvent::Asked(asked)) => {
                    // Those who asked meanwhile get the same dumps.
                    if self.handle_dump_requests(asked, &events) {
                        break;
                    }
                }
                Ok(AgentEvent::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.detach();
        let attempts = self.attached.wait_for_attempts();
        self.report_attempts(attempts);
        self.detach();
        // What does not reach the store now does so the next time.
        self.flush_batch()?;
        if let Err(error) = drain(&self.spool, &self.store) {
            note(&format!("{error:#}: what is in the spool stays there"));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Attaches to what the policy names.
    fn attach(&mut self) {
        if self
            .config
            .service
            .iter()
            .all(|rule| rule.attach.is_empty())
        {
            return;
        }
        let hosts = discover(DiscoveryScope::AllProcesses, |_| ()).hosts;
        let hosts = hosts.into_iter().map(|(host, ())| host.pid).collect();
        let attempts = self
            .attached
            .attach(&self.config.service, &hosts, &self.machine);
        let attempts = match attempts {
            Ok(attempts) => attempts,
            Err(error) => return self.report_change("attaching".to_owned(), Err(error)),
        };
        self.report_attempts(attempts);
    }

    fn report_attempts(&mut self, attempts: Vec<(String, anyhow::Result<()>)>) {
        for (name, attempt) in attempts {
            if attempt.is_ok() {
                print_stderr(&format!("memprof: {}: attached", in_line(&name)));
            }
            self.report_change(name, attempt);
        }
    }

    fn detach(&mut self) {
        for (name, detached) in self.attached.detach(&self.machine) {
            match detached {
                Ok(()) => print_stderr(&format!("memprof: {}: detached", in_line(&name))),
                Err(error) => note(&format!("{name}: {error:#}")),
            }
        }
    }

    /// The hosts that the policy names and that belong to its share.
    fn hosts(&mut self) -> Vec<(RunningHost, ServiceRule)> {
        let found = discover(DiscoveryScope::AllProcesses, |_| ());
        let name = |one: &UnreachableHost| {
            let pid = one.pid.map(|pid| format!("{pid}, ")).unwrap_or_default();
            format!("{UNREACHED}{pid}{}", one.place.display())
        };
        let unreached: HashSet<_> = found.unreached.iter().map(name).collect();
        // Those that ended are nobody's business any more.
        self.told
            .retain(|what, _| !what.starts_with(UNREACHED) || unreached.contains(what));
        for one in &found.unreached {
            let what = name(one);
            self.report_change(what, Err(anyhow::anyhow!("{}", one.why)));
        }
        let hosts = found.hosts.into_iter().filter_map(|(host, ())| {
            let rule = rule(&self.config.service, &host.info.name)?;
            let is_taken = rule.includes(&self.machine.process_key(&host));
            is_taken.then(|| (host, rule.clone()))
        });
        let hosts: Vec<_> = hosts.collect();
        let running: HashSet<_> = hosts
            .iter()
            .map(|(host, _)| self.machine.process_key(host))
            .collect();
        self.seen.retain(|instance, _| running.contains(instance));
        hosts
    }

    fn is_due(&mut self, host: &RunningHost, rule: &ServiceRule) -> bool {
        let instance = self.machine.process_key(host);
        let now = Uptime::now();
        let last = *self.seen.entry(instance.clone()).or_insert(now);
        let is_due = rule.is_due(&instance, last, now);
        if is_due {
            self.seen.insert(instance, now);
        }
        is_due
    }

    /// Takes a dump, and keeps it in the spool. Returns the bytes in use.
    fn dump(&mut self, host: &RunningHost, rule: &ServiceRule) -> anyhow::Result<i64> {
        let waiting = self.spool.bytes()?;
        anyhow::ensure!(
            waiting <= self.config.spool_limit,
            "no profile was taken: {waiting} bytes in {} wait for the store, more than `spool_limit` ({})",
            self.config.spool.display(),
            self.config.spool_limit
        );
        let TakenProfile { dumped, named } =
            take_profile(host, rule, &self.machine, &mut self.naming)?;
        self.report_change(format!("the names of {}", self.describe(host)), named);
        self.spool.add(&dumped)?;
        let [bytes, _] = dumped.inuse();
        print_stderr(&format!(
            "memprof: {}: {} in {}",
            self.describe(host),
            amount(bytes, SampleType::InuseSpace),
            dumped.extent()
        ));
        Ok(bytes)
    }

    fn describe(&self, host: &RunningHost) -> String {
        format!(
            "{} {}/{}",
            in_line(&host.info.name),
            self.machine.name,
            host.pid
        )
    }

    /// Forgets the stacks that are in a store which was emptied or replaced since. One that does not answer may have
    /// been: frames that it gets twice are better than none.
    fn forget_other_store(&mut self) {
        if self.known.is_empty() {
            return;
        }
        let store = self.store.id().ok();
        if store.is_none() || store != self.known_by {
            self.known.clear();
            self.known_by = store;
        }
    }

    /// Makes files of what was dumped.
    fn flush_batch(&mut self) -> anyhow::Result<()> {
        self.forget_other_store();
        let put = RefCell::new(Vec::new());
        self.spool.batch(|dumped| {
            let files = files(dumped, &self.known)?;
            for one in dumped {
                let hour = one.context.time.hour();
                let stacks = one
                    .stacks
                    .iter()
                    .map(|stack| (hour.clone(), stack.stack_id));
                put.borrow_mut().extend(stacks);
            }
            Ok(files)
        })?;
        // Only what is in the spool's files is known.
        self.known.extend(put.into_inner());
        let hour = Instant::now().hour();
        self.known.retain(|(of, _)| *of == hour);
        Ok(())
    }

    /// Merges and prunes. Of the machines that write to a store that all share, one does in each hour.
    fn compact_and_prune(&self, now: Instant) -> anyhow::Result<()> {
        if !self.store.is_local() {
            let writing = writing_since(&self.store, now.before(Duration::from_secs(3600)))?;
            let turn = now.hour().directory();
            if elect(writing.iter().map(String::as_str), &turn) != Some(&self.machine.name) {
                return Ok(());
            }
        }
        compact(&self.store, now.before(crate::compact::GRACE))?;
        let deleted = prune(&self.store, self.config.keep, now)?;
        for (hour, files) in deleted {
            print_stderr(&format!(
                "memprof: {}: deleted {files} files of {}: older than `keep`",
                self.store.url(),
                hour.directory()
            ));
        }
        Ok(())
    }

    /// Says what went wrong, or goes well again, unless that was said last of it.
    fn report_change(&mut self, what: String, outcome: anyhow::Result<()>) {
        match outcome {
            Ok(()) => {
                if self.told.remove(&what).is_some() {
                    note(&format!("{what}: works again"));
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                if self.told.get(&what) != Some(&error) {
                    note(&format!("{what}: {error}"));
                    self.told.insert(what, error);
                }
            }
        }
    }
}

/// Sends a word when the agent is to end.
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
        // Who does not listen any more has ended.
        send.send(AgentEvent::End).unwrap_or_default();
    });
    Ok(())
}
