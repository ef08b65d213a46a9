//! A process in which memprof works for a while, and which it leaves as it was.

use std::path::PathBuf;
use std::time::Duration;

use memprof_attach::{AttachOutcome, InspectorPort};
use memprof_host::client::Client;
use memprof_messages::SamplerChoice;
use memprof_ptrace::ProgramWatch;

use crate::attach::{self, AttachArgs};
use crate::detach::{self, Leftovers};
use crate::interrupts::Interrupts;
use crate::output;
use crate::patched_functions::{self, PatchOptions};

/// Way in which a process is attached to.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttachOptions {
    /// Time limit of the attachment, if this program is killed.
    pub(crate) lease: Duration,
    pub(crate) sampler: SamplerChoice,
    /// Whether malloc itself is patched where it is a library's.
    pub(crate) entries: bool,
    pub(crate) plugin: Option<PathBuf>,
    /// Config file of the plugin.
    pub(crate) config: Option<PathBuf>,
    pub(crate) node_inspector: bool,
    /// Whether the plugin stays in the process.
    pub(crate) keep: bool,
}

/// A process with the plugin, which was there before or is attached for a while.
#[derive(Debug)]
pub(crate) struct TemporaryAttachment {
    pid: u32,
    program: ProgramWatch,
    /// Whether the plugin was put in, and is to be removed.
    detaches: bool,
    pub(crate) client: Client,
    /// Root directory of a process from which memprof detaches.
    pub(crate) leftovers: Option<Leftovers>,
}

impl TemporaryAttachment {
    /// Connects to a process. If it has no plugin, attaches to it first, registers that change with `interrupts`, and
    /// patches the functions of its allocators if necessary. Prints notes on functions that could not be patched.
    pub(crate) fn open(
        pid: u32,
        options: &AttachOptions,
        interrupts: &Interrupts,
    ) -> anyhow::Result<Self> {
        let lease = humantime::format_duration(options.lease);
        // Registered first, because a signal may come while the plugin is loaded.
        interrupts.add_change(
            pid,
            format!("the plugin may be in {pid} for up to {lease}; `memprof detach {pid}` removes it now"),
        );
        let program = ProgramWatch::open(pid);
        let attached = attach::connect_or_attach(&AttachArgs {
            pid,
            lease: options.lease,
            entries: options.entries,
            max_pause: attach::DEFAULT_MAX_PAUSE,
            children: false,
            plugin: options.plugin.clone(),
            config: options.config.clone(),
            node_inspector: options.node_inspector,
            json: false,
            args: Vec::new(),
        });
        let (mut client, attached) =
            attached.inspect_err(|_| interrupts.remove_last_change(pid))?;
        let Some(attached) = attached else {
            interrupts.remove_last_change(pid);
            return Ok(Self {
                pid,
                program,
                detaches: false,
                client,
                leftovers: None,
            });
        };
        print_attach_notes(&attached);
        // If the status fails, the following requests fail too and report it.
        if let Ok(status) = client.status() {
            let options = PatchOptions {
                sampler: options.sampler,
                entries: options.entries,
                max_pause: attach::DEFAULT_MAX_PAUSE,
            };
            let patched = patched_functions::patch_malloc(pid, &status, options);
            patched.notes().for_each(|note| output::note(&note));
        }
        let leftovers = match options.keep {
            true => None,
            false => Leftovers::for_process(pid, &mut client),
        };
        Ok(Self {
            pid,
            program,
            detaches: !options.keep,
            client,
            leftovers,
        })
    }

    /// Detaches from a process that [`open`](Self::open) attached to, unless it is to stay attached. `has_ended` says
    /// that the process ended or lost the plugin meanwhile, so that nothing is left to remove.
    ///
    /// # Errors
    /// The process is not as it was before; the change stays registered with `interrupts`.
    pub(crate) fn close(self, has_ended: bool, interrupts: &Interrupts) -> anyhow::Result<()> {
        let Self {
            pid,
            program,
            detaches,
            client,
            leftovers: _,
        } = self;
        drop(client);
        if detaches
            && !has_ended
            && program.program_end().is_none()
            && let Err(error) = detach::detach(pid)
            && program.wait_for_end().is_none()
        {
            return Err(error);
        }
        if detaches {
            // Detaching has ended the sampling too.
            interrupts.remove_changes(pid);
        }
        Ok(())
    }
}

/// Prints notes on what attaching leaves behind: signal handlers that must not fork any more, and an inspector that
/// stays open.
fn print_attach_notes(attached: &AttachOutcome) {
    if let AttachOutcome::ByThread { handled, .. } = attached
        && let Some(line) = attach::forking_handlers_note(handled)
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
}
