//! `memprof leaks --prove --for`: samples a process before it is searched, so that objects which leak meanwhile have
//! stacks.

use std::time::Duration;

use memprof_host::client::Client;
use memprof_leaks::{AnalysisOptions, Proof, prove_leaks};
use nix::sys::signal::Signal;

use crate::analysis_summary::analyze;
use crate::exit::{UNREACHABLE, with_exit_code};
use crate::interrupts::Interrupts;
use crate::output;
use crate::process_names::describe_process;
use crate::record::{Activation, HostProcess, SamplingEnd, SamplingOptions, wait_for_end};
use crate::temporary_attachment::{AttachOptions, TemporaryAttachment};

/// Time that a search may take before the plugin leaves the process by itself.
const SEARCH_TIME: Duration = Duration::from_secs(600);

/// Result of a search after sampling.
pub(super) struct SampledProof {
    pub(super) proof: Proof,
    /// Error of detaching, if the process is not as it was before.
    pub(super) detach_error: Option<anyhow::Error>,
}

/// Samples a process for a while, and searches it for leaked objects. Attaches to the process first if it has no
/// plugin, and detaches afterwards. If the process cannot be sampled, prints a note with the reason and searches it
/// nevertheless. SIGINT ends the sampling early; other signals end the work without a search.
///
/// # Errors
/// The process was not searched: it has ended, does not reply, or the search failed.
pub(super) fn sample_and_prove(
    pid: u32,
    sampling: &SamplingOptions,
    options: AnalysisOptions,
    interrupts: &Interrupts,
) -> anyhow::Result<SampledProof> {
    let attach_options = AttachOptions {
        lease: sampling.duration.saturating_add(SEARCH_TIME),
        ..AttachOptions::default()
    };
    let mut attachment = match TemporaryAttachment::open(pid, &attach_options, interrupts) {
        Ok(attachment) => attachment,
        Err(error) => {
            note_unsampled(&error);
            let proof = search_for_leaks(pid, options)?;
            return Ok(SampledProof {
                proof,
                detach_error: None,
            });
        }
    };
    let proof = sample_and_search(pid, &mut attachment.client, sampling, options, interrupts);
    // If the process has ended meanwhile, `close` notices that itself.
    let closed = attachment.close(false, interrupts);
    Ok(SampledProof {
        proof: proof?,
        detach_error: closed.err(),
    })
}

/// Samples a host, and searches it for leaked objects while it samples. If it cannot be sampled, prints a note with the
/// reason and searches it nevertheless. Fails without a search after a signal other than SIGINT, or if the host ended
/// or does not reply.
fn sample_and_search(
    pid: u32,
    client: &mut Client,
    sampling: &SamplingOptions,
    options: AnalysisOptions,
    interrupts: &Interrupts,
) -> anyhow::Result<Proof> {
    let process = HostProcess::from_client(client)?;
    let mut activation = match Activation::begin(client, sampling, interrupts) {
        Ok(activation) => activation,
        Err(error) => {
            note_unsampled(&error);
            return search_for_leaks(pid, options);
        }
    };
    let end = wait_for_end(sampling.duration, client, &process, interrupts, |client| {
        activation.adjust_interval(client)
    })?;
    let reason = match end {
        SamplingEnd::Time => None,
        SamplingEnd::Interrupt if interrupts.ending_signal() == Some(Signal::SIGINT) => {
            output::note("interrupted: it was sampled until then, and is searched now");
            None
        }
        SamplingEnd::Interrupt => {
            end_sampling(&activation, client, interrupts);
            anyhow::bail!("ended by a signal; the process was not searched");
        }
        SamplingEnd::Host(_)
        | SamplingEnd::Exec
        | SamplingEnd::Halt(_)
        | SamplingEnd::NoReply(_) => end.early_reason(),
    };
    if let Some(reason) = reason {
        let name = describe_process(pid);
        return Err(with_exit_code(
            UNREACHABLE,
            format!("{name} {reason}; it was not searched"),
        ));
    }
    let proof = search_for_leaks(pid, options);
    end_sampling(&activation, client, interrupts);
    proof
}

/// Ends the sampling. Prints a note if that fails: the result of the search is valid nevertheless.
fn end_sampling(activation: &Activation, client: &mut Client, interrupts: &Interrupts) {
    if let Err(error) = activation.end(client, interrupts) {
        output::note(&format!("the sampling was not ended: {error:#}"));
    }
}

/// Searches a process for leaked objects, whether it samples or not.
fn search_for_leaks(pid: u32, options: AnalysisOptions) -> anyhow::Result<Proof> {
    analyze(pid, options, |options, progress| {
        prove_leaks(pid, options, progress)
    })
}

/// Prints why a process is not sampled.
fn note_unsampled(error: &anyhow::Error) {
    output::note(&format!("not sampled, so no object has a stack: {error:#}"));
}
