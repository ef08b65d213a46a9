//! Messages about the profiler's state and its end: `status`, `doctor`, `detach`.

use memprof_core::Profiler;
use memprof_host::adapters::attachment;
use memprof_messages::{DoctorReport, EmptyReply, Severity, findings_text};
use memprof_plugin_abi::{Arguments, ErrorKind, Failure, Reply};

use crate::reply::{reply_failure, reply_success, to_failure};
use crate::text::{status_text, supported_messages_text};

/// Handles `status`: replies with the state of profiling, and with the messages that each allocator supports.
pub(super) fn handle_status(
    profiler: &Profiler,
    args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    args.finish()?;
    let status = profiler.status();
    let text = status_text(&status) + &supported_messages_text(&status);
    reply_success(reply, &text, status)
}

/// Handles `doctor`: replies with the findings. If one of them is an error, also fails after that reply, so that a
/// script can wait until profiling is possible.
pub(super) fn handle_doctor(
    profiler: &Profiler,
    args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    args.finish()?;
    let findings = profiler.doctor();
    let text = findings_text(&findings);
    // `doctor` returns errors first.
    let worst = findings.first().filter(|f| f.severity == Severity::Error);
    let failure = worst.map(|worst| {
        Failure::new(ErrorKind::Unavailable, worst.message.clone()).remedy(worst.remedy.clone())
    });
    let fields = DoctorReport {
        healthy: findings.is_empty(),
        findings,
    };
    match failure {
        None => reply_success(reply, &text, fields),
        Some(failure) => {
            reply_failure(reply, &text, &failure, fields)?;
            Err(failure)
        }
    }
}

/// Handles `detach`: undoes everything that memprof does in the process. The control socket closes after the reply.
///
/// # Errors
/// `Unsupported`: the plugin was not loaded by `memprof attach`. Otherwise the error of [`Profiler::detach`].
pub(super) fn handle_detach(
    profiler: &Profiler,
    args: Arguments,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    args.finish()?;
    if !attachment::is_attached() {
        let message = "the plugin was loaded with the program, not by memprof attach";
        let remedy = "send `deactivate`, which ends sampling";
        return Err(Failure::new(ErrorKind::Unsupported, message).remedy(remedy));
    }
    profiler.detach().map_err(to_failure)?;
    attachment::request_detach();
    let text = "detached: the hooks are removed, the threads and the socket end; the plugin's code stays mapped";
    reply_success(reply, text, EmptyReply {})
}
