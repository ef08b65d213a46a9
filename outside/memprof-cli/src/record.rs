//! `memprof record`: takes a profile over a time, and leaves the host as it was.

mod arguments;
mod early_profile;
mod exit_dump;
mod sampling;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use memprof_attach::{AttachOutcome, InspectorPort};
use memprof_host::client::Client;
use memprof_messages::{DumpReport, Profiling};
use memprof_ptrace::ProgramWatch;

use crate::analysis_summary::describe_process;
use crate::attach::{self, AttachArgs};
use crate::detach::{self, Leftovers};
use crate::exit::{NO_DATA, Outcome, UNREACHABLE, USAGE, with_exit_code};
use crate::export::export;
use crate::interrupts::{Interrupts, signal_exit_code};
use crate::message::{self, TakenDump};
use crate::patched_functions::{self, PatchOptions};
use crate::report_form::{FormArgs, show_live_report, write_live_page};
use crate::scratch::ScratchFile;
use crate::{browser, exit, ledger, output, target};

pub(crate) use arguments::RecordArgs;
use arguments::{SAMPLER, Subject};
use early_profile::EarlyProfile;
use exit_dump::ExitDumpDir;
use sampling::{HostProcess, SamplingEnd};

/// Time by which the activation outlasts the recording, so that it ends if this program is killed.
const LEASE_GRACE: Duration = Duration::from_secs(60);
/// Rows of the table.
const TABLE_ROWS: usize = 20;

/// Runs `memprof record`.
pub(crate) fn run(args: &RecordArgs) -> Outcome {
    if args.keeps_dump() && args.form.output.as_deref() == Some(Path::new("-")) {
        return Err(with_exit_code(
            USAGE,
            "standard output is for the table: give -o a file, or a --format",
        ));
    }
    // An invalid form is reported before anything is sampled.
    args.form.format()?;
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
        if args.keeps_dump()
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
        let shown = match args.keeps_dump() {
            true => {
                let table = FormArgs {
                    lines: form.lines,
                    top: form.top,
                    ..FormArgs::default()
                };
                show_live_report(file, &name, pid, &table, Some(TABLE_ROWS))
            }
            false => show_live_report(file, &name, pid, form, Some(TABLE_ROWS)),
        };
        shown.map_err(|error| self.explain_empty(error))?;
        if form.open && args.keeps_dump() {
            browser::open_or_print(&write_live_page(file, &name, pid)?)?;
        }
        Ok(())
    }

    /// Adds to the error of an empty profile what may help.
    fn explain_empty(&self, error: anyhow::Error) -> anyhow::Error {
        let pid = self.pid;
        match exit::code(&error) {
            NO_DATA => with_exit_code(
                NO_DATA,
                format!(
                    "{}; a longer recording samples more (`memprof record {pid} --for 5m`)",
                    exit::error_chain(&error)
                        .replace("`memprof ledger`", &format!("`memprof ledger {pid}`"))
                ),
            ),
            _ => error,
        }
    }
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
    // Longer than the activation, which starts later.
    let lease = match args.keep_attached {
        true => attach::DEFAULT_LEASE,
        false => args.duration + 2 * LEASE_GRACE,
    };
    interrupts.add_change(format!(
        "the plugin may be in {pid} for up to {}; `memprof detach {pid}` removes it now",
        humantime::format_duration(lease)
    ));
    let program = ProgramWatch::open(pid);
    let attached = attach::connect_or_attach(&AttachArgs {
        pid,
        lease,
        entries: args.entries,
        max_pause: attach::DEFAULT_MAX_PAUSE,
        children: false,
        plugin: args.plugin.clone(),
        config: Some(config.path()),
        node_inspector: args.node_inspector,
        json: false,
        args: Vec::new(),
    });
    let (mut client, attached) = attached.inspect_err(|_| interrupts.remove_last_change())?;
    let Some(attached) = attached else {
        interrupts.remove_last_change();
        return record(args, &mut client, interrupts, None);
    };
    if let AttachOutcome::ByThread { handled, .. } = &attached
        && let Some(line) = attach::handlers_note(handled)
    {
        output::note(&line);
    }
    if let AttachOutcome::ByNode {
        address,
        port: InspectorPort::StillOpen,
    } = attached
    {
        output::note(&format!("its inspector ({address}) {}", attach::STILL_OPEN));
    }
    let options = PatchOptions {
        sampler: args.sampler(),
        entries: args.entries,
        max_pause: attach::DEFAULT_MAX_PAUSE,
    };
    // If the status fails, the following requests fail too and report it.
    if let Ok(status) = client.status() {
        let patched = patched_functions::patch_malloc(pid, &status, options);
        patched.notes().for_each(|note| output::note(&note));
    }
    let leftovers = match args.keep_attached {
        true => None,
        false => Leftovers::for_process(pid, &mut client),
    };
    let recorded = record(args, &mut client, interrupts, leftovers.as_ref());
    drop(client);
    // A process that has ended or executed another program has no plugin to detach.
    let detached = match &recorded {
        _ if program.end().is_some() => Ok(()),
        Ok(recorded) if matches!(recorded.end, SamplingEnd::Host(_)) => Ok(()),
        _ if args.keep_attached => Ok(()),
        _ => detach::detach(pid).map(drop),
    };
    if detached.is_ok() {
        // Detaching has ended the sampling too.
        interrupts.take_changes();
    }
    // The first error is the relevant one.
    recorded.map(|recorded| Recorded {
        detach_error: detached.err(),
        ..recorded
    })
}

/// Samples for the duration, and fetches the dump, which does not stay in `leftovers`. Sampling that was active before stays
/// so.
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
    let arguments = &*args.dump_args();
    let was_active = status.profiling == Profiling::Active;
    let mut activation_warnings = Vec::new();
    if !was_active {
        // A lease ends the activation if this program is killed.
        let lease = humantime::format_duration(args.duration + LEASE_GRACE).to_string();
        interrupts.add_change(format!(
            "{pid} samples for up to {lease}; `memprof deactivate {pid}` ends that now"
        ));
        let activate = [
            args.key_values(),
            &[format!("for={}", lease.replace(' ', ""))],
        ]
        .concat();
        let activated = client.activate(&message::join_args(&activate));
        activation_warnings = activated
            .inspect_err(|_| interrupts.remove_last_change())?
            .warnings;
        for warning in &activation_warnings {
            output::note(warning);
        }
    } else if args.key_values().iter().any(|arg| arg.starts_with(SAMPLER)) {
        output::note(&format!("{pid} samples already: sampler= changes nothing"));
    }
    let outside_before = ledger::bytes_outside_malloc(client);
    let mut early = EarlyProfile::new(arguments);
    let end = sampling::wait_for_end(args.duration, client, &process, interrupts, &mut early)?;
    let mut recorded = Recorded {
        pid,
        profile: None,
        warnings: Vec::new(),
        end,
        age: None,
        detach_error: None,
    };
    if let SamplingEnd::Time | SamplingEnd::Interrupt = recorded.end {
        match finish_recording(
            client,
            arguments,
            (!was_active).then_some(interrupts),
            leftovers,
        ) {
            Ok((profile, warnings)) => {
                recorded.profile = Some(profile);
                let is_new = |warning: &String| !activation_warnings.contains(warning);
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
            if !was_active {
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

/// Fetches the dump, and deactivates the sampling if it was `activated`. Removes the dump from `leftovers`, the root of a
/// process that memprof detaches from. Returns the profile and the host's warnings.
fn finish_recording(
    client: &mut Client,
    arguments: &[String],
    activated: Option<&Interrupts>,
    leftovers: Option<&Leftovers>,
) -> anyhow::Result<(ScratchFile, Vec<String>)> {
    let dumped = message::take_dump_or_receive(client, arguments);
    // Even if the dump failed.
    if let Some(interrupts) = activated {
        client.deactivate()?;
        interrupts.remove_last_change();
    }
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
