//! `memprof record`: takes a profile over a time, and leaves the host as it was.

mod activation;
mod arguments;
mod early_profile;
mod exit_dump;
mod sample_interval;
mod sampling;
mod sampling_options;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use memprof_host::client::Client;
use memprof_messages::DumpReport;

use crate::analysis_summary::describe_process;
use crate::attach;
use crate::busy_retry::retry_while_busy;
use crate::detach::Leftovers;
use crate::exit::{NO_DATA, Outcome, UNREACHABLE, USAGE, with_exit_code};
use crate::export::export;
use crate::interrupts::{Interrupts, signal_exit_code};
use crate::message::{self, TakenDump};
use crate::program_kind::{ProgramKinds, unsampled_objects};
use crate::report_form::{FormArgs, open_input, show_live_report, write_live_page};
use crate::scratch::ScratchFile;
use crate::temporary_attachment::{AttachOptions, TemporaryAttachment};
use crate::{browser, exit, ledger, output, target};

pub(crate) use activation::{Activation, LEASE_GRACE};
pub(crate) use arguments::RecordArgs;
use arguments::Subject;
use early_profile::EarlyProfile;
use exit_dump::ExitDumpDir;
pub(crate) use sampling::{HostProcess, SamplingEnd, wait_for_end};
pub(crate) use sampling_options::SamplingOptions;

/// Rows of the table.
const TABLE_ROWS: usize = 20;

/// Runs `memprof record`: samples a process for a time, and shows the profile. A signal ends the sampling early, and
/// determines the exit code.
pub(crate) fn run(args: &RecordArgs) -> Outcome {
    if args.output_is_dump() && args.form.output.as_deref() == Some(Path::new("-")) {
        return Err(with_exit_code(
            USAGE,
            "standard output is for the table: give -o a file, or a --format",
        ));
    }
    // Before anything is sampled.
    args.view.add_to(args.form.to_options()?)?;
    if let Some(base) = &args.view.base {
        open_input(base)?;
    }
    let subject = args.subject()?;
    let interrupts = Interrupts::watch()?;
    let recorded = match subject {
        Subject::Host(target) => record(args, &mut target::connect(target)?, &interrupts, None),
        Subject::Process(pid) => record_attached(args, pid, &interrupts),
    };
    for change in interrupts.take_changes() {
        output::note(&change);
    }
    let interrupted = interrupts.signal().map(signal_exit_code);
    let shown = recorded.and_then(|recorded| recorded.show(args));
    match (interrupted, shown) {
        (Some(code), Ok(_)) => Ok(code.into()),
        (Some(code), Err(error)) => Err(with_exit_code(code, exit::error_chain(&error))),
        (None, shown) => shown,
    }
}

/// Result of a recording.
struct Recorded {
    pid: u32,
    profile: Option<ScratchFile>,
    warnings: Vec<String>,
    end: SamplingEnd,
    /// Part of the recording that the profile covers; `None` if it covers the whole.
    age: Option<Duration>,
    /// Error of detaching, if the process is not as it was before.
    detach_error: Option<anyhow::Error>,
}

impl Recorded {
    /// Shows the profile, if there is one. Fails if the process ended or does not reply, or if it could not be
    /// detached.
    fn show(self, args: &RecordArgs) -> Outcome {
        let shown = match &self.profile {
            Some(profile) => self.show_profile(args, &profile.path()),
            None => Ok(()),
        };
        let pid = self.pid;
        let reason = match self.end {
            SamplingEnd::Host(reason) => reason,
            SamplingEnd::Halt(halt) => format!("does not answer: {halt}"),
            SamplingEnd::Time | SamplingEnd::Interrupt => {
                shown?;
                return self.detach_error.map_or(Ok(ExitCode::SUCCESS), Err);
            }
        };
        let profile = match (shown, self.age) {
            (Err(error), _) => exit::error_chain(&error),
            (Ok(()), Some(age)) => format!("the profile is that of its first {age:.1?}"),
            (Ok(()), None) if self.profile.is_some() => {
                "the profile is that of its exit".to_owned()
            }
            (Ok(()), None) => "it left no profile".to_owned(),
        };
        Err(with_exit_code(
            UNREACHABLE,
            format!("{pid} {reason}; {profile}"),
        ))
    }

    /// Prints notes and writes the report; without a format, that is a table, beside the dump in `--output` and the page of
    /// `--open`.
    fn show_profile(&self, args: &RecordArgs, file: &Path) -> anyhow::Result<()> {
        let pid = self.pid;
        let form = &args.form;
        if args.output_is_dump()
            && let Some(output) = &form.output
        {
            let mut bytes = File::open(file).context("failed to read the dump again")?;
            export(&mut bytes, output)?;
        }
        for warning in &self.warnings {
            output::note(warning);
        }
        if self.end == SamplingEnd::Interrupt {
            output::note("interrupted: this is the profile until then");
        }
        let name = describe_process(pid);
        let shown = match args.output_is_dump() {
            true => {
                let table = FormArgs {
                    lines: form.lines,
                    top: form.top,
                    ..FormArgs::default()
                };
                show_live_report(file, &name, pid, &table, &args.view, Some(TABLE_ROWS))
            }
            false => show_live_report(file, &name, pid, form, &args.view, Some(TABLE_ROWS)),
        };
        shown.map_err(|error| self.explain_empty(error))?;
        if form.open && args.output_is_dump() {
            browser::open_or_print(&write_live_page(file, &name, pid)?)?;
        }
        Ok(())
    }

    /// Adds to the error of an empty profile what may help.
    fn explain_empty(&self, error: anyhow::Error) -> anyhow::Error {
        let pid = self.pid;
        match exit::code_number(&error) {
            NO_DATA => with_exit_code(
                NO_DATA,
                format!(
                    "{}{}; a longer recording samples more (`memprof record {pid} --for 5m`)",
                    exit::error_chain(&error)
                        .replace("`memprof ledger`", &format!("`memprof ledger {pid}`")),
                    unsampled_text(pid),
                ),
            ),
            _ => error,
        }
    }
}

/// Returns the text about objects of the process's language that are in no profile, after a semicolon; empty if there
/// are none, or the process has ended.
fn unsampled_text(pid: u32) -> String {
    let kind = ProgramKinds::default().kind_for_pid(pid);
    let text = kind.language.and_then(unsampled_objects);
    text.map_or_else(String::new, |text| {
        format!("; {}", text.replace("PID", &pid.to_string()))
    })
}

/// Records in a process. Attaches to it if necessary, and detaches afterwards.
fn record_attached(
    args: &RecordArgs,
    pid: u32,
    interrupts: &Interrupts,
) -> anyhow::Result<Recorded> {
    // The process then leaves a profile if it ends during the recording.
    let mut config = ScratchFile::new()?;
    config.append(&mut &b"[[watch]]\nat_exit = true\n"[..])?;
    let options = AttachOptions {
        lease: match args.keep_attached {
            true => attach::DEFAULT_LEASE,
            false => args.duration + 2 * LEASE_GRACE,
        },
        sampler: args.sampling().sampler,
        entries: args.entries,
        plugin: args.plugin.clone(),
        config: Some(config.path()),
        node_inspector: args.node_inspector,
        keep: args.keep_attached,
    };
    let mut attachment = TemporaryAttachment::open(pid, &options, interrupts)?;
    let leftovers = attachment.leftovers.as_ref();
    let recorded = record(args, &mut attachment.client, interrupts, leftovers);
    let has_ended = recorded
        .as_ref()
        .is_ok_and(|recorded| matches!(recorded.end, SamplingEnd::Host(_)));
    let detached = attachment.close(has_ended, interrupts);
    // The first error is the relevant one.
    recorded.map(|recorded| Recorded {
        detach_error: detached.err(),
        ..recorded
    })
}

/// Samples for the duration, and fetches the dump. Sampling that was active before stays so. If the process ends
/// meanwhile, the profile is that of its exit. If it left none, or was halted, the profile is the last one that was
/// fetched before.
///
/// `leftovers` is the root of a process that memprof detaches from, where no copy of the dump stays. If it is `None`, a
/// kept dump stays.
fn record(
    args: &RecordArgs,
    client: &mut Client,
    interrupts: &Interrupts,
    leftovers: Option<&Leftovers>,
) -> anyhow::Result<Recorded> {
    let pid = target::host_pid(client)?;
    let status = client.status()?;
    let exit_dumps = ExitDumpDir::new(pid, client.host()?.pid, &status);
    let process = HostProcess::from_client(client);
    let options = args.sampling();
    let dump_arguments: Vec<_> = options.allocator.clone().into_iter().collect();
    let mut activation = Activation::begin(client, &options, interrupts)?;
    let outside_before = ledger::bytes_outside_malloc(client);
    let mut early = EarlyProfile::new(&dump_arguments);
    let end = wait_for_end(args.duration, client, &process, interrupts, |client| {
        activation.adjust(client)?;
        early.fetch_if_due(client)
    })?;
    let mut recorded = Recorded {
        pid,
        profile: None,
        warnings: Vec::new(),
        end,
        age: None,
        detach_error: None,
    };
    if let SamplingEnd::Time | SamplingEnd::Interrupt = recorded.end {
        match finish_recording(client, &dump_arguments, &activation, interrupts, leftovers) {
            Ok((profile, warnings)) => {
                recorded.profile = Some(profile);
                let is_new = |warning: &String| !activation.warnings.contains(warning);
                recorded.warnings = warnings.into_iter().filter(is_new).collect();
                let outside = outside_before.zip(ledger::bytes_outside_malloc(client));
                recorded
                    .warnings
                    .extend(outside.and_then(|(before, after)| {
                        ledger::growth_outside_malloc_warning(pid, before, after)
                    }));
            }
            Err(error) => {
                recorded.end = process
                    .end_reason(client.is_connected(), interrupts)?
                    .ok_or(error)?;
            }
        }
    }
    match recorded.end {
        SamplingEnd::Halt(_) => {}
        SamplingEnd::Host(_) => {
            if activation.is_new() {
                interrupts.remove_last_change();
            }
            recorded.profile = exit_dumps.copy_exit_dump().unwrap_or_else(|error| {
                output::note(&format!("{error:#}"));
                None
            });
        }
        SamplingEnd::Time | SamplingEnd::Interrupt => return Ok(recorded),
    }
    if recorded.profile.is_none()
        && let Some((profile, age)) = early.into_last()
    {
        recorded.profile = Some(profile);
        recorded.age = Some(age);
    }
    Ok(recorded)
}

/// Fetches the dump, and ends the activation. Removes the dump from `leftovers`, the root of a process that memprof
/// detaches from; if that is `None`, a kept dump stays. Returns the profile and the host's warnings.
fn finish_recording(
    client: &mut Client,
    arguments: &[String],
    activation: &Activation,
    interrupts: &Interrupts,
    leftovers: Option<&Leftovers>,
) -> anyhow::Result<(ScratchFile, Vec<String>)> {
    let dumped = retry_while_busy(|| message::take_dump_or_receive(client, arguments));
    activation.end(client, interrupts)?;
    let mut profile = ScratchFile::new()?;
    let warnings = match dumped? {
        TakenDump::Kept(reply) => {
            let reply = reply.into_success()?;
            let report: DumpReport = reply.into_typed().context("the reply to dump")?;
            profile.append(&mut client.fetch(&report.largest.id)?)?;
            if let Some(leftovers) = leftovers {
                let dumps = report.dumps.iter();
                dumps.for_each(|dump| leftovers.remove_file(&dump.path));
            }
            report.warnings
        }
        TakenDump::Received(mut bytes) => {
            profile.append(&mut bytes)?;
            Vec::new()
        }
    };
    Ok((profile, warnings))
}
