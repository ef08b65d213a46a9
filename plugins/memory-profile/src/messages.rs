//! The messages of `memory_profile`, one function each.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use memprof_core::{
    ActivateOptions, Error, GdumpLimits, Profiler, Readers, SampleInterval, Settings, Trigger,
    Unsampled, require_calls,
};
use memprof_host::adapters::attached;
use memprof_messages::{
    Activation, Findings, Help, HelpOfMessage, KeptDumps, Kind, MESSAGES, Nothing, OfAllocators,
    PLUGIN, ProfileKind, Profiling, Severity, USAGES,
};
use memprof_plugin_abi::{Arguments, ErrorKind, Failure, Host, Message, Plugin, Reply};

use crate::arguments::{take_duration, take_number, take_switch, take_word};
use crate::config::Config;
use crate::exit::end_at_exit;
use crate::gdump;
use crate::process::Profilers;
use crate::reply::{failure, ok, refused};
use crate::shim::{host_mallctl, read_figures, read_report};
use crate::stats_format::StatsFormat;
use crate::text::{
    abilities_text, activation_text, background_text, dump_text, findings_text, gdump_text,
    kept_text, ledger_text, purged_text, stats_text, status_text,
};

/// The content type of jemalloc's dumps.
const JEMALLOC_PROFILE: &str = "application/x-jemalloc-heap-profile";
/// The content type of tcmalloc's, which begin with other words.
const TCMALLOC_PROFILE: &str = "application/x-tcmalloc-heap-profile";

/// The table of messages, as the ABI describes it.
const DESCRIPTORS: [Message; MESSAGES.len()] = {
    let mut all = [Message::new("", "", ""); MESSAGES.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = Message::new(MESSAGES[at].name, USAGES[at], MESSAGES[at].help);
        at += 1;
    }
    all
};

/// The plugin: the profiler of this process.
pub(crate) struct MemoryProfile {
    profilers: Profilers,
}

impl Plugin for MemoryProfile {
    const ID: &'static str = PLUGIN;
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const MESSAGES: &'static [Message] = &DESCRIPTORS;

    fn create(host: Host, config: &str) -> Result<Self, Failure> {
        let _unsampled = Unsampled::by_name();
        let config = Config::parse(config)?;
        let store = config.store(host.name());
        // At the start, where it can be mended: the first dump may be hours away.
        if let Err(error) = store.can_be_written() {
            log::warn!("{}", failure(error));
        }
        let interval = config.interval();
        let profilers = Profilers::new(Settings {
            interval: *interval.as_ref().unwrap_or(&None),
            program: host.name().to_owned(),
            host: host_mallctl(&host),
            own_image: read_figures as *const () as usize,
            store,
            readers: Readers {
                figures: read_figures,
                report: read_report,
            },
            unwinder: config.unwinder(),
            sampler: config.sampler,
        });
        let profiler = profilers.current();
        let status = profiler.status();
        if status.profiling == Profiling::Unavailable {
            let (reason, remedy) = (status.reason.unwrap_or_default(), status.remedy);
            log::warn!(
                "profiling is unavailable: {reason}; {}",
                remedy.unwrap_or_default()
            );
        } else if config.activate_at_start {
            // A host must start even when its profile cannot.
            let activate = |interval| {
                profiler.activate(ActivateOptions {
                    interval,
                    ..ActivateOptions::default()
                })
            };
            match interval.and_then(activate) {
                Ok(activation) => log::info!("{}", activation_text(&activation)),
                Err(error) => log::error!("activate_at_start: {}", failure(error)),
            }
        }
        if !config.watch().is_empty() {
            if let Err(error) = profiler.watch(config.watch()) {
                log::error!("watch: {}", failure(error));
            }
            end_at_exit(profiler);
        }
        Ok(Self { profilers })
    }

    fn handle_message(
        &self,
        name: &str,
        mut args: Arguments,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        // The thread may be the program's, as in Redis.
        let _unsampled = self.profiler().unsampled();
        require_calls().map_err(failure)?;
        match name {
            "activate" => {
                let options = take_activate_options(&mut args)?;
                args.finish()?;
                let activation = self.profiler().activate(options).map_err(failure)?;
                activated(reply, activation)
            }
            "deactivate" => {
                let allocator = take_allocator(&mut args)?;
                args.finish()?;
                activated(
                    reply,
                    self.profiler().deactivate(allocator).map_err(failure)?,
                )
            }
            "dump" => {
                let allocator = take_allocator(&mut args)?;
                let kind = take_word(&mut args, "kind")?.unwrap_or_default();
                let is_kept = take_switch(&mut args, "keep")?.unwrap_or(true);
                args.finish()?;
                if is_kept {
                    self.dump(allocator, kind, reply)
                } else {
                    self.hand_over(allocator, kind, reply)
                }
            }
            "purge" => {
                let allocator = take_allocator(&mut args)?;
                args.finish()?;
                self.purge(allocator, reply)
            }
            "reset" => {
                let allocator = take_allocator(&mut args)?;
                let interval = take_interval(&mut args)?;
                args.finish()?;
                activated(
                    reply,
                    self.profiler()
                        .reset(allocator, interval)
                        .map_err(failure)?,
                )
            }
            "background_thread" => {
                let on = take_switch(&mut args, "state")?;
                let max = take_number(&mut args, "max")?;
                args.finish()?;
                self.background_thread(on, max, reply)
            }
            "ledger" => {
                let smaps = take_switch(&mut args, "smaps")?;
                args.finish()?;
                self.ledger(smaps, reply)
            }
            "gdump" => {
                let limits = gdump::parse(args)?;
                self.gdump(limits, reply)
            }
            "recent" => {
                let max = take_number(&mut args, "max")?;
                args.finish()?;
                self.recent(max, reply)
            }
            "stats" => {
                let allocator = take_allocator(&mut args)?;
                let opts = args.take("opts");
                let format = args.take("format");
                let is_logged = take_switch(&mut args, "log")?.unwrap_or(true);
                args.finish()?;
                let format = StatsFormat::parse(opts.as_deref(), format.as_deref())?;
                self.stats(allocator, &format, is_logged, reply)
            }
            "fetch" => {
                let id = args.require("id")?;
                args.finish()?;
                self.fetch(&id, reply)
            }
            name => {
                args.finish()?;
                match name {
                    "detach" => self.detach(reply),
                    "doctor" => self.doctor(reply),
                    "status" => self.status(reply),
                    "list" => self.list(reply),
                    "help" => help(reply),
                    name => unreachable!("{name} is in the table but is not handled"),
                }
            }
        }
    }

    fn enter_thread(&self) {
        self.profiler().leave_this_thread_out();
    }
}

impl Drop for MemoryProfile {
    fn drop(&mut self) {
        // A forked child that ends has nothing to end.
        if let Some(profiler) = self.profilers.existing() {
            profiler.end();
        }
    }
}

impl MemoryProfile {
    fn profiler(&self) -> &Arc<Profiler> {
        self.profilers.current()
    }

    fn dump(
        &self,
        allocator: Option<Kind>,
        kind: ProfileKind,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let report = self.profiler().dump(allocator, kind, Trigger::Message);
        let report = report.map_err(not_dumped)?;
        let text = dump_text(&report);
        log::info!("{text}");
        ok(reply, &text, &report)
    }

    /// The bytes of a dump that is kept nowhere.
    fn hand_over(
        &self,
        allocator: Option<Kind>,
        kind: ProfileKind,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let dump = self.profiler().dump_unkept(allocator, kind);
        let dump = dump.map_err(not_dumped)?;
        log::info!("a dump of {} bytes is handed over and not kept", dump.bytes);
        let content_type = content_type(&dump.file).map_err(|error| {
            Failure::new(ErrorKind::Io, format!("failed to read the dump: {error}"))
        })?;
        reply.file(&dump.file, dump.bytes, content_type)
    }

    fn stats(
        &self,
        allocator: Option<Kind>,
        format: &StatsFormat,
        is_logged: bool,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let stats = self
            .profiler()
            .stats(allocator, format.options.as_ref())
            .map_err(failure)?;
        let text: String = stats.iter().map(stats_text).collect();
        if is_logged {
            text.lines().for_each(|line| log::info!("{line}"));
        }
        if format.is_plain {
            return reply.text(&text);
        }
        ok(reply, &text, OfAllocators { allocators: stats })
    }

    fn purge(&self, allocator: Option<Kind>, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let purged = self.profiler().purge(allocator).map_err(failure)?;
        let text = purged_text(&purged);
        log::info!("{text}");
        ok(reply, &text, purged)
    }

    fn background_thread(
        &self,
        on: Option<bool>,
        max: Option<u64>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let switched = self
            .profiler()
            .background_threads(on, max)
            .map_err(failure)?;
        let text = background_text(&switched);
        log::info!("{text}");
        ok(
            reply,
            &text,
            OfAllocators {
                allocators: switched,
            },
        )
    }

    fn gdump(&self, limits: Option<GdumpLimits>, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let gdumping = match limits {
            Some(limits) => self.profiler().gdump(limits),
            None => self.profiler().end_gdump(),
        };
        let gdumping = gdumping.map_err(failure)?;
        let text = gdump_text(&gdumping);
        log::info!("{text}");
        ok(reply, &text, gdumping)
    }

    fn recent(&self, max: Option<u64>, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let recent = self.profiler().recent(max).map_err(failure)?;
        let reports: Vec<_> = recent.iter().map(|recent| recent.report.trim()).collect();
        let text = reports.join("\n");
        ok(reply, &text, OfAllocators { allocators: recent })
    }

    fn ledger(&self, smaps: Option<bool>, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let ledger = match smaps {
            Some(true) => self.profiler().ledger_with_smaps(),
            Some(false) | None => self.profiler().ledger(),
        };
        let ledger = ledger.map_err(failure)?;
        ok(reply, &ledger_text(&ledger), ledger)
    }

    /// The socket closes behind the reply.
    fn detach(&self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        if !attached::is_attached() {
            let message = "the plugin was loaded with the program, not by memprof attach";
            let remedy = "send `deactivate`, which ends sampling";
            return Err(Failure::new(ErrorKind::Unsupported, message).remedy(remedy));
        }
        self.profiler().detach().map_err(failure)?;
        attached::leave();
        ok(reply, "detached: everything was given back", Nothing {})
    }

    /// An error only where profiling cannot be on: a script may wait for its end.
    fn doctor(&self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let findings = self.profiler().doctor();
        let text = findings_text(&findings);
        let worst = findings.first().filter(|f| f.severity == Severity::Error);
        let failure = worst.map(|worst| {
            Failure::new(ErrorKind::Unavailable, worst.message.clone()).remedy(worst.remedy.clone())
        });
        let fields = Findings {
            healthy: findings.is_empty(),
            findings,
        };
        match failure {
            None => ok(reply, &text, fields),
            Some(failure) => {
                refused(reply, &text, &failure, fields)?;
                Err(failure)
            }
        }
    }

    fn status(&self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let status = self.profiler().status();
        let text = status_text(&status) + &abilities_text(&status);
        ok(reply, &text, status)
    }

    fn list(&self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let kept = self.profiler().list().map_err(failure)?;
        let text = kept_text(&kept);
        ok(reply, &text, KeptDumps { dumps: kept })
    }

    fn fetch(&self, id: &str, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let dump = self.profiler().fetch(id).map_err(failure)?;
        let passed = content_type(&dump.file)
            .map_err(|error| {
                Failure::new(ErrorKind::Io, format!("failed to read dump {id}: {error}"))
            })
            .and_then(|content_type| reply.file(&dump.file, dump.bytes, content_type));
        passed.map_err(|failure| failure.remedy(format!("read {}", dump.path.display())))
    }
}

fn not_dumped(error: Error) -> Failure {
    // What the system refuses is for whoever runs the host, not only for who asked.
    if error.kind == ErrorKind::Io {
        log::warn!("{error}");
    }
    failure(error)
}

/// The content type of a dump, by its first words.
fn content_type(dump: &File) -> io::Result<&'static str> {
    const TCMALLOC: &[u8] = b"heap profile:";
    let mut start = [0; TCMALLOC.len()];
    match dump.read_exact_at(&mut start, 0) {
        Ok(()) if start == TCMALLOC => Ok(TCMALLOC_PROFILE),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        Ok(()) | Err(_) => Ok(JEMALLOC_PROFILE),
    }
}

fn help(reply: &mut Reply<'_>) -> Result<(), Failure> {
    let messages: Vec<_> = DESCRIPTORS
        .iter()
        .map(|message| HelpOfMessage {
            name: message.name().to_owned(),
            usage: message.usage().to_owned(),
            help: message.help().to_owned(),
        })
        .collect();
    let text = DESCRIPTORS
        .iter()
        .map(|m| format!("{:<43} {}", format!("{} {}", m.name(), m.usage()), m.help()))
        .collect::<Vec<_>>()
        .join("\n");
    ok(reply, &text, Help { messages })
}

/// Tells the state after a message that changed it, to the log too.
fn activated(reply: &mut Reply<'_>, activation: Activation) -> Result<(), Failure> {
    let text = activation_text(&activation);
    log::info!("{text}");
    ok(reply, &text, activation)
}

fn take_activate_options(args: &mut Arguments) -> Result<ActivateOptions, Failure> {
    let allocator = take_allocator(args)?;
    let interval = take_interval(args)?;
    let duration = take_duration(args)?;
    let unwinder = take_word(args, "unwinder")?;
    let sampler = take_word(args, "sampler")?;
    let ages = args.take("ages").filter(|word| word != "off");
    let ages = ages.map(|word| word.parse());
    let labels = args.take("labels").filter(|word| word != "off");
    let labels = labels.map(|word| word.parse());
    Ok(ActivateOptions {
        allocator,
        interval,
        duration,
        unwinder,
        sampler,
        ages: ages.transpose().map_err(failure)?,
        labels: labels.transpose().map_err(failure)?,
    })
}

fn take_allocator(args: &mut Arguments) -> Result<Option<Kind>, Failure> {
    take_word(args, "allocator")
}

/// `sample_interval` in bytes, or its log2, as jemalloc's own options give it.
fn take_interval(args: &mut Arguments) -> Result<Option<SampleInterval>, Failure> {
    let lg_sample = take_number(args, "lg_sample")?;
    let interval = match (args.take("sample_interval"), lg_sample) {
        (Some(_), Some(_)) => {
            let message = "sample_interval and lg_sample are the same; give one of them";
            return Err(Failure::new(ErrorKind::InvalidArgument, message));
        }
        (Some(size), None) => SampleInterval::parse(&size).map(Some),
        (None, lg_sample) => lg_sample.map(SampleInterval::from_lg).transpose(),
    };
    interval.map_err(failure)
}
