//! `memprof record`: takes a profile over a time, and leaves the host as it was.

mod activation;
mod arguments;
mod early_profile;
mod exit_dump;
mod process_set;
mod recorded;
mod sample_interval;
mod sampling;
mod sampling_options;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use memprof_host::client::Client;
use memprof_messages::DumpReport;

use crate::attach;
use crate::busy_retry::retry_while_busy;
use crate::detach::Leftovers;
use crate::exit::{Outcome, UNREACHABLE, USAGE, with_exit_code};
use crate::interrupts::{Interrupts, signal_exit_code};
use crate::message::{self, TakenDump};
use crate::report_form::open_input;
use crate::scratch::ScratchFile;
use crate::temporary_attachment::{AttachOptions, TemporaryAttachment};
use crate::{exit, ledger, output, target};

pub(crate) use activation::Activation;
use activation::{LEASE_GRACE, lease_for};
pub(crate) use arguments::RecordArgs;
use arguments::Subject;
use early_profile::EarlyProfile;
use exit_dump::ExitDumpDir;
use process_set::record_processes;
use recorded::{Recorded, RecordedProcesses};
pub(crate) use sampling::{HostProcess, SamplingEnd, wait_for_end};
pub(crate) use sampling_options::SamplingOptions;

/// Timeout for a process to end or to execute another program after a step has failed.
const SHORT_END_TIMEOUT: Duration = Duration::from_millis(250);

/// Runs `memprof record`: samples a host or a process, and shows the profile. The exit code after a signal is that of
/// the signal.
pub(crate) fn run(args: &RecordArgs) -> Outcome {
    if args.output_is_dump() && args.form.output.as_deref() == Some(Path::new("-")) {
        return Err(with_exit_code(
            USAGE,
            "standard output is for the table: give -o a file, or a --format",
        ));
    }
    // Invalid options and a missing base fail here, before anything is sampled.
    args.view.add_to_options(args.form.to_options()?)?;
    if let Some(base) = &args.view.base {
        open_input(base)?;
    }
    let subject = args.subject()?;
    let interrupts = Interrupts::start_watching()?;
    let recorded = match subject {
        Subject::Host(target) => {
            let mut client = target::connect(target)?;
            let pid = target::host_pid(&mut client)?;
            let process = HostProcess::from_client(&mut client)?;
            let sampling = args.sampling_options();
            let recorded = record_host(pid, &process, &sampling, &mut client, &interrupts, None);
            RecordedProcesses::from_one_recording(pid, recorded)
        }
        Subject::Process(pid) => record_processes(args, pid, &interrupts),
    };
    for change in interrupts.take_changes() {
        output::note(&change);
    }
    let interrupted = interrupts.ending_signal().map(signal_exit_code);
    let shown = recorded.show(args);
    match (interrupted, shown) {
        (Some(code), Ok(_)) => Ok(code.into()),
        (Some(code), Err(error)) => Err(with_exit_code(code, exit::error_chain(&error))),
        (None, shown) => shown,
    }
}

/// Records in a process. Attaches to it if necessary, and detaches afterwards, unless it is to stay attached
/// (`--keep-attached`). A process that ends or executes another program at any step is recorded without a profile.
fn record_attached(
    args: &RecordArgs,
    sampling: &SamplingOptions,
    pid: u32,
    interrupts: &Interrupts,
) -> anyhow::Result<Recorded> {
    // Opened first, so that the end of the process explains why a step fails.
    let process = HostProcess::open(pid);
    let recorded = record_and_detach(args, sampling, pid, &process, interrupts);
    let Err(error) = recorded else {
        return recorded;
    };
    let end = process.wait_for_program_end(SHORT_END_TIMEOUT, interrupts)?;
    let end = end.ok_or(error)?;
    // Nothing is left of the program, so there is nothing to undo.
    interrupts.remove_changes(pid);
    Ok(Recorded::without_profile(pid, end))
}

/// Attaches to a process if necessary, records, and detaches unless the process is to stay attached.
fn record_and_detach(
    args: &RecordArgs,
    sampling: &SamplingOptions,
    pid: u32,
    process: &HostProcess,
    interrupts: &Interrupts,
) -> anyhow::Result<Recorded> {
    // With this config, the process leaves a profile if it ends during the recording.
    let mut config = ScratchFile::new()?;
    config.append(&mut &b"[[watch]]\nat_exit = true\n"[..])?;
    let options = AttachOptions {
        lease: match args.keep_attached {
            true => attach::DEFAULT_LEASE,
            // Longer than the time limit of the sampling, which has one grace.
            false => lease_for(sampling.duration, 2 * LEASE_GRACE),
        },
        sampler: sampling.sampler,
        entries: args.entries,
        plugin: args.plugin.clone(),
        config: Some(config.path()),
        node_inspector: args.node_inspector,
        keep: args.keep_attached,
    };
    let mut attachment = TemporaryAttachment::open(pid, &options, interrupts)?;
    let leftovers = attachment.leftovers.as_ref();
    let client = &mut attachment.client;
    let recorded = record_host(pid, process, sampling, client, interrupts, leftovers);
    let has_ended = recorded
        .as_ref()
        .is_ok_and(|recorded| matches!(recorded.end, SamplingEnd::Host(_) | SamplingEnd::Exec));
    let detached = attachment.close(has_ended, interrupts);
    match (recorded, detached) {
        (Ok(recorded), detached) => Ok(Recorded {
            detach_error: detached.err(),
            ..recorded
        }),
        (Err(error), Ok(())) => Err(error),
        // The first error is the relevant one, but a process that is still attached to must be named too.
        (Err(error), Err(detached)) => {
            output::note(&exit::error_chain(&detached));
            Err(error)
        }
    }
}

/// Samples a host for the duration, and fetches the dump. Sampling that was active before stays so. If the process ends
/// meanwhile, the profile is that of its exit. If it left none, was halted or does not reply any more, the profile is
/// the last one that was fetched before. A process that is not visible in this pid namespace has only that last one.
///
/// `leftovers` is the root of a process that memprof detaches from, where no copy of the dump stays. If it is `None`, a
/// kept dump stays.
fn record_host(
    pid: u32,
    process: &HostProcess,
    options: &SamplingOptions,
    client: &mut Client,
    interrupts: &Interrupts,
    leftovers: Option<&Leftovers>,
) -> anyhow::Result<Recorded> {
    let status = client.status()?;
    // The pid of a hidden process is known only in its own namespace. By that pid, the exit dump of another container
    // could be taken for this host's.
    let exit_dumps = match process.is_visible() {
        true => Some(ExitDumpDir::new(pid, client.host_info()?.pid, &status)),
        false => None,
    };
    let dump_arguments: Vec<_> = options.allocator.clone().into_iter().collect();
    let mut activation = Activation::begin(client, options, interrupts)?;
    let outside_before = ledger::request_bytes_outside_malloc(client);
    let mut early = EarlyProfile::new(&dump_arguments);
    let end = wait_for_end(options.duration, client, process, interrupts, |client| {
        activation.adjust_interval(client)?;
        early.fetch_if_due(client)
    })?;
    let mut recorded = Recorded::without_profile(pid, end);
    if let SamplingEnd::Time | SamplingEnd::Interrupt = recorded.end {
        // If it cannot be reached, the dump fails and says so.
        process.ensure_connected(client);
        let fetched = fetch_dump(client, &dump_arguments, &mut early, leftovers);
        // Sampling ends also if the dump failed. A fetched dump stays the last profile if the host goes now.
        let ended = activation.end(client, interrupts);
        match ended.and(fetched) {
            Ok(warnings) => {
                recorded.profile = early.take_last().map(|(profile, _)| profile);
                let is_new = |warning: &String| !activation.warnings.contains(warning);
                recorded.warnings = warnings.into_iter().filter(is_new).collect();
                let outside = outside_before.zip(ledger::request_bytes_outside_malloc(client));
                recorded
                    .warnings
                    .extend(outside.and_then(|(before, after)| {
                        ledger::growth_outside_malloc_warning(pid, before, after)
                    }));
            }
            Err(error) => {
                let end = process.wait_for_end_reason(
                    client.is_connected(),
                    // Limited by its own timeout only: the recording is over, and its time no longer matters.
                    Duration::MAX,
                    interrupts,
                )?;
                recorded.end = match end {
                    Some(end) => end,
                    None if early.has_profile()
                        && exit::code_number_of_error(&error) == UNREACHABLE =>
                    {
                        SamplingEnd::NoReply("does not answer any more".to_owned())
                    }
                    None => return Err(error),
                };
            }
        }
    }
    match recorded.end {
        SamplingEnd::Halt(_) => {}
        SamplingEnd::Host(_) | SamplingEnd::Exec | SamplingEnd::NoReply(_) => {
            let has_ended = !matches!(recorded.end, SamplingEnd::NoReply(_));
            if has_ended && activation.has_started_sampling() {
                interrupts.remove_last_change(pid);
            }
            let exit_dump = exit_dumps.map(|dumps| dumps.copy_exit_dump()).transpose();
            recorded.profile = exit_dump.map(Option::flatten).unwrap_or_else(|error| {
                output::note(&format!("{error:#}"));
                None
            });
        }
        SamplingEnd::Time | SamplingEnd::Interrupt => return Ok(recorded),
    }
    if recorded.profile.is_none()
        && let Some((profile, age)) = early.take_last()
    {
        recorded.profile = Some(profile);
        recorded.age = Some(age);
    }
    Ok(recorded)
}

/// Takes a dump, once the host is not busy with another one, and makes it the last profile of `early`. Removes the
/// host's copy through `leftovers`, the root of a process that memprof detaches from; if that is `None`, a kept dump
/// stays. Returns the host's warnings.
fn fetch_dump(
    client: &mut Client,
    arguments: &[String],
    early: &mut EarlyProfile,
    leftovers: Option<&Leftovers>,
) -> anyhow::Result<Vec<String>> {
    let age = early.recording_age();
    let dumped = retry_while_busy(|| message::take_dump_or_receive(client, arguments));
    let mut profile = ScratchFile::new()?;
    let warnings = match dumped? {
        TakenDump::Kept(reply) => {
            let reply = reply.into_success()?;
            let report: DumpReport = reply.into_typed().context("the reply to dump")?;
            profile.append(&mut client.fetch_dump(&report.largest.id)?)?;
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
    early.replace_last(profile, age);
    Ok(warnings)
}
