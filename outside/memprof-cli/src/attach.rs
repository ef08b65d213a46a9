//! `memprof attach`: loads the plugin into a running process.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use memprof_attach::{
    AttachOutcome, Attachment, ConfigFile, InspectorPort, Plugin, attach_by_node_inspector,
};
use memprof_host::client::Client;
use memprof_messages::SamplerChoice;
use memprof_ptrace::ProgramWatch;
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::Outcome;
use crate::patched_functions::{self, PatchOptions, PatchOutcome};
use crate::process_names::host_display_name;
use crate::quantities::milliseconds;
use crate::refusal_error::{program_end_error, refusal_error};
use crate::reply::{ParsedReply, send_request};
use crate::run::find_plugin;
use crate::slow_step::SlowStep;
use crate::{output, target};

/// Default of `--max-pause`: how long all threads of a process may be stopped.
pub(crate) const DEFAULT_MAX_PAUSE: Duration = Duration::from_millis(100);

/// State of an inspector that was opened and is not closed yet, as the end of a sentence.
pub(crate) const STILL_OPEN: &str =
    "is still open until its JavaScript is back in the event loop and no debugger is connected";

/// Timeout for the plugin's thread that accepts connections to begin.
const ACCEPTOR_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Default time limit of an attachment.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(3600);

/// Load the plugin into a running process, for a limited time
///
/// The process is stopped for about a millisecond. Nothing is sampled before `memprof activate`. `memprof detach`
/// removes the plugin's hooks, threads and socket, and so does the end of the time. Where malloc is linked into the
/// program, or an allocator whose functions have other names (`_rjem_malloc` of Rust programs, `mi_malloc`), the first
/// instructions of its functions are replaced with jumps, which `memprof detach` takes away; at the end of the time they
/// stay, and lead back to the functions. Root may attach to any process, other users to their own if the system allows
/// it: `memprof ps --all` shows that.
#[derive(clap::Args, Debug)]
pub(crate) struct AttachArgs {
    /// The process: a pid, a name or container:NAME
    #[arg(value_name = "TARGET", value_parser = crate::process_arg::parse_process)]
    pub(crate) pid: u32,

    /// Detach after this time, for example 10m or 2h
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = crate::process_arg::parse_duration)]
    pub(crate) lease: Duration,

    /// Also patch malloc where it is a library's, so that no call escapes memprof's sampler
    ///
    /// Without this, the sampler sees the calls through the slots and data of the program and its libraries, but not
    /// those by addresses that were copied before, of the dynamic loader, and of constructors of libraries; a dump says
    /// how much that may be. This replaces the first instructions of malloc's functions (glibc's, jemalloc's, …) with
    /// jumps while all threads are stopped, as for a malloc that is linked into the program. Samples are of the
    /// activations that follow.
    #[arg(long)]
    pub(crate) entries: bool,

    /// Stop the process for this time at most to patch malloc; memprof estimates it first, and does not patch if it is
    /// longer
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = crate::process_arg::parse_duration)]
    pub(crate) max_pause: Duration,

    /// Also attach to the children that it forks from now on
    ///
    /// Each has a thread of the plugin's from its first moment on, which hinders those that enter a user namespace
    /// (unshare(2)), as sandboxes do. Without this, attach to a child by its own pid.
    #[arg(long)]
    pub(crate) children: bool,

    /// The plugin's file [default: the one that is installed with this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,

    /// The plugin's configuration file (watch rules, which dumps are kept), which this command reads [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Load the plugin through Node's inspector, without ptrace(2)
    ///
    /// The process gets SIGUSR1, on which Node opens its inspector, mostly on port 9229 of 127.0.0.1, and closes it again
    /// when the plugin is loaded. Until then, every user of the machine can run code in the process. An inspector that is
    /// open already stays open. A program that handles SIGUSR1 itself gets the signal too.
    #[arg(long)]
    pub(crate) node_inspector: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Keys of the plugin's configuration, which override those of --config
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) args: Vec<String>,
}

/// Output of `memprof attach --json`.
#[derive(Debug, Serialize)]
struct AttachOutput {
    status: &'static str,
    text: String,
    pid: u32,
    name: String,
    /// Total time for which a thread was stopped, in milliseconds.
    stopped_ms: f64,
    /// Thread that was stopped last; null without a stop.
    thread: Option<u32>,
    /// Result of patching functions of the program; null if none needs it.
    entries: Value,
    allocators: Value,
}

/// Runs `memprof attach`. If the process has ended or executed another program meanwhile, the error says so.
pub(crate) fn run(args: &AttachArgs) -> Outcome {
    let program = ProgramWatch::open(args.pid);
    attach_and_report(args).map_err(|error| match program.program_end() {
        Some(end) => program_end_error(args.pid, end),
        None => error,
    })
}

/// Attaches unless the process is a host already (has the plugin loaded), patches its malloc if necessary, and prints
/// the result.
fn attach_and_report(args: &AttachArgs) -> Outcome {
    let (mut client, attached) = connect_or_attach(args)?;
    let status = client.status()?;
    let entries = patched_functions::patch_malloc(args.pid, &status, args.patch_options());
    let output = build_output(args, &mut client, attached.as_ref(), &entries)?;
    if args.json {
        output::print(&json!(output).to_string());
    } else {
        output::print(&output.text);
    }
    Ok(0.into())
}

/// Connects to a process if it is a host already: the plugin is loaded and replies. `None` if it is not, or if it does
/// not reply.
pub(crate) fn connect_existing_host(pid: u32) -> Option<Client> {
    target::connect(Some(&pid.to_string())).ok()
}

/// Connects to a process. If it is no host yet, first attaches to it, which loads the plugin. The outcome is `None` if
/// the process was a host already, or became one meanwhile: an earlier `memprof attach` that was killed may have left a
/// thread that loads the plugin.
pub(crate) fn connect_or_attach(
    args: &AttachArgs,
) -> anyhow::Result<(Client, Option<AttachOutcome>)> {
    if let Some(client) = connect_existing_host(args.pid) {
        return Ok((client, None));
    }
    let program = ProgramWatch::open(args.pid);
    match attach(args) {
        Ok(attached) => Ok((connect_when_started(args, &program)?, Some(attached))),
        Err(error) => match connect_existing_host(args.pid) {
            Some(client) => Ok((client, None)),
            None => Err(error),
        },
    }
}

/// Attaches to a process that is not a host yet: through Node's inspector with `--node-inspector`, else by the method
/// that fits the process. A refusal becomes an error with its remedy and exit code.
fn attach(args: &AttachArgs) -> anyhow::Result<AttachOutcome> {
    let plugin = Plugin {
        path: find_plugin(args.plugin.as_deref())?,
    };
    let attach_with = match args.node_inspector {
        true => attach_by_node_inspector,
        false => memprof_attach::attach,
    };
    let pid = args.pid;
    let _step = SlowStep::begin(format!("attaching to {pid}"));
    let attached = attach_with(pid, &plugin, &args.build_attachment()?);
    attached.map_err(|error| refusal_error(pid, &error))
}

/// Connects to a process into which the plugin was just loaded; retries until that succeeds. The plugin is found by the
/// name of its thread that accepts connections. On a busy machine, the thread sets its name only some time after the
/// socket was opened. Fails if the program ends, or if the plugin does not answer within [`ACCEPTOR_TIMEOUT`].
fn connect_when_started(args: &AttachArgs, program: &ProgramWatch) -> anyhow::Result<Client> {
    let pid = args.pid;
    let begun = Instant::now();
    loop {
        let error = match target::connect(Some(&pid.to_string())) {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        if let Some(end) = program.wait_for_end_until(Instant::now() + POLL_INTERVAL) {
            return Err(program_end_error(pid, end));
        }
        if begun.elapsed() > ACCEPTOR_TIMEOUT {
            return Err(error.context(format!(
                "the plugin was loaded into {pid}, and leaves by itself in {}, but does not answer",
                humantime::format_duration(args.lease)
            )));
        }
    }
}

impl AttachArgs {
    /// Returns the options for patching malloc: those of this command, and the sampler in the plugin's arguments.
    fn patch_options(&self) -> PatchOptions {
        PatchOptions {
            sampler: self.sampler(),
            entries: self.entries,
            max_pause: self.max_pause,
        }
    }

    /// Returns the sampler of the last `sampler=` in the plugin's arguments. Returns the default if there is none, or
    /// if its value is invalid: the plugin refuses invalid and repeated values itself.
    fn sampler(&self) -> SamplerChoice {
        let mut args = self.args.iter().rev();
        let sampler = args.find_map(|arg| arg.strip_prefix("sampler="));
        sampler
            .and_then(|sampler| sampler.parse().ok())
            .unwrap_or_default()
    }

    /// Builds the plugin's configuration from the options and arguments. Reads the file of `--config`, and fails if it
    /// cannot be read.
    fn build_attachment(&self) -> anyhow::Result<Attachment> {
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("failed to read {}", path.display()))?;
            let path = path.display().to_string();
            anyhow::Ok(ConfigFile { path, text })
        };
        Ok(Attachment {
            lease: self.lease,
            children: self.children,
            words: self.args.clone(),
            file: self.config.as_ref().map(read).transpose()?,
        })
    }
}

/// Builds the output of the command, its text included. Requests the name and the status of the host. `attached` is
/// `None` if the process was a host already; `entries` is the result of patching malloc.
fn build_output(
    args: &AttachArgs,
    client: &mut Client,
    attached: Option<&AttachOutcome>,
    entries: &PatchOutcome,
) -> anyhow::Result<AttachOutput> {
    let pid = args.pid;
    let name = host_display_name(pid, client.host_info()?.name);
    let status = send_request(client, "status", "")?.into_success()?;
    let (stopped, thread) = match attached {
        Some(AttachOutcome::ByThread { stops, thread, .. }) => (stops.iter().sum(), Some(*thread)),
        Some(AttachOutcome::ByJvm | AttachOutcome::ByNode { .. }) | None => (Duration::ZERO, None),
    };
    let stopped_ms = milliseconds(stopped);
    let how = match attached {
        Some(AttachOutcome::ByThread { .. }) => {
            format!(", which was stopped for {stopped_ms:.1} ms")
        }
        Some(AttachOutcome::ByJvm) => " by its JVM's attach protocol".to_owned(),
        Some(AttachOutcome::ByNode { address, port }) => {
            let port = match port {
                InspectorPort::Closed => "was closed again",
                InspectorPort::WasOpen => "was open before and stays so",
                InspectorPort::StillOpen => STILL_OPEN,
            };
            format!(" through its inspector, which {port} ({address})")
        }
        None => String::new(),
    };
    let limit = match attached {
        Some(AttachOutcome::ByThread {
            thread_limit: Some((before, raised)),
            ..
        }) => {
            format!("\nits limit of threads (RLIMIT_NPROC) is {raised} until then; it was {before}")
        }
        _ => String::new(),
    };
    let handled = match attached {
        Some(AttachOutcome::ByThread { handled, .. }) => forking_handlers_note(handled),
        _ => None,
    };
    let handled = handled.map_or_else(String::new, |line| format!("\n{line}"));
    let later = unused_patches_note(&status, entries, pid);
    let text = match attached {
        None => format!(
            "{pid} ({name}) has the plugin already{}{later}",
            entries.lines(pid)
        ),
        Some(_) => format!(
            "attached to {pid} ({name}){how}; the plugin leaves by itself in {}{limit}{handled}{}\n\
             next: memprof activate {pid}",
            humantime::format_duration(args.lease),
            entries.lines(pid)
        ),
    };
    Ok(AttachOutput {
        status: "ok",
        text,
        pid,
        name,
        stopped_ms,
        thread,
        entries: entries.json(),
        allocators: status.field("allocators").clone(),
    })
}

/// Returns the note that running sampling does not use the new patches: it still intercepts malloc through relocation
/// entries ("slots"). Empty if nothing was patched, if sampling is inactive, or if it uses no slots.
fn unused_patches_note(status: &ParsedReply, entries: &PatchOutcome, pid: u32) -> String {
    let allocators = status.field("allocators").as_array();
    let mut allocators = allocators.into_iter().flatten();
    let uses_slots = allocators.any(|allocator| allocator["interception"] == "slots");
    let is_active = status.field("profiling") == "active";
    if !entries.is_patched() || !is_active || !uses_slots {
        return String::new();
    }
    format!(
        "\nnote: it goes on sampling as before; `memprof deactivate {pid}`, then `memprof activate {pid}`, sample \
         through the jumps"
    )
}

/// Returns the note on signal handlers that may deadlock from now on if they fork. In a process that has never had a
/// second thread, fork(3) takes no locks of malloc; the plugin's thread ends that. `handled` are the names of the
/// handled signals. `None` if there are none.
pub(crate) fn forking_handlers_note(handled: &[String]) -> Option<String> {
    let line = format!(
        "it had one thread until now: if its handler of {} forks, that may wait for ever, also after `memprof detach` \
         (restart the program then)",
        handled.join(", ")
    );
    (!handled.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_are_named_by_their_signals() {
        assert_eq!(forking_handlers_note(&[]), None);
        let line = forking_handlers_note(&["SIGALRM", "signal 50"].map(str::to_owned)).unwrap();
        assert!(
            line.contains("its handler of SIGALRM, signal 50 forks"),
            "{line}"
        );
    }
}
