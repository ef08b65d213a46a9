//! Sampling for a while: activates it unless it is on, finds its interval, and ends it.

use std::time::Duration;

use memprof_host::client::Client;
use memprof_messages::Profiling;

use super::sample_interval::SampleInterval;
use super::sampling_options::SamplingOptions;
use crate::busy_retry::retry_while_busy;
use crate::interrupts::Interrupts;
use crate::{message, output, target};

/// Time by which the activation outlasts the recording, so that it ends if this program is killed.
pub(crate) const LEASE_GRACE: Duration = Duration::from_secs(60);

/// Returns the time limit that outlasts a recording by `grace`: their sum, rounded up to whole seconds, because people
/// read it.
pub(crate) fn lease_for(recording: Duration, grace: Duration) -> Duration {
    let exact = recording.saturating_add(grace);
    let fraction = u64::from(exact.subsec_nanos() > 0);
    Duration::from_secs(exact.as_secs().saturating_add(fraction))
}

/// Sampling of a host that is on.
#[derive(Debug)]
pub(crate) struct Activation {
    pid: u32,
    was_active: bool,
    interval: SampleInterval,
    /// Warnings of the host.
    pub(super) warnings: Vec<String>,
}

impl Activation {
    /// Activates sampling, and registers that change with `interrupts`. A lease ends the sampling if this program is
    /// killed. Sampling that is active already stays as it is, and nothing is registered.
    ///
    /// # Errors
    /// The host does not reply, or refuses.
    pub(crate) fn begin(
        client: &mut Client,
        options: &SamplingOptions,
        interrupts: &Interrupts,
    ) -> anyhow::Result<Self> {
        let pid = target::host_pid(client)?;
        let status = client.status()?;
        let was_active = status.profiling == Profiling::Active;
        let mut interval = SampleInterval::new(&status, options, was_active);
        if was_active {
            options.note_ignored_options(pid);
            return Ok(Self {
                pid,
                was_active,
                interval,
                warnings: Vec::new(),
            });
        }
        let lease = lease_for(options.duration, LEASE_GRACE);
        let lease = humantime::format_duration(lease).to_string();
        let change = match client.peer().pid {
            Some(_) => {
                format!("{pid} samples for up to {lease}; `memprof deactivate {pid}` ends that now")
            }
            // The host is in a pid namespace that is not visible here, where its pid may be that of another process,
            // and its end is not noticed.
            None => format!(
                "{pid} samples for up to {lease}, unless it has ended; `memprof deactivate {}` ends that now",
                client.socket_path().display()
            ),
        };
        // Registered first, because a signal may come before the reply.
        interrupts.add_change(pid, change);
        let mut arguments = options.activate_arguments();
        arguments.extend(interval.initial_interval_argument());
        arguments.push(format!("for={}", lease.replace(' ', "")));
        let arguments = message::join_args(&arguments);
        let activated = retry_while_busy(|| client.activate(&arguments));
        let warnings = activated
            .inspect_err(|_| interrupts.remove_last_change(pid))?
            .warnings;
        for warning in &warnings {
            output::note(warning);
        }
        // If the host does not reply, the wait for the end of the recording says why.
        let _ = interval.check_first_interval(client);
        Ok(Self {
            pid,
            was_active,
            interval,
            warnings,
        })
    }

    /// Returns whether this activation began the sampling, which was off before.
    pub(super) fn has_started_sampling(&self) -> bool {
        !self.was_active
    }

    /// Adjusts the sample interval if that is due, while the host samples.
    ///
    /// # Errors
    /// The host did not reply, so the connection cannot be used any more.
    pub(crate) fn adjust_interval(&mut self, client: &mut Client) -> anyhow::Result<()> {
        self.interval.adjust_if_due(client)
    }

    /// Ends the sampling, removes the registered change from `interrupts`, and restores the sample interval. Does
    /// nothing if the sampling was active before this recording.
    ///
    /// # Errors
    /// The host does not reply, or refuses.
    pub(crate) fn end(&self, client: &mut Client, interrupts: &Interrupts) -> anyhow::Result<()> {
        if !self.was_active {
            retry_while_busy(|| client.deactivate())?;
            // An interrupt has nothing left to undo.
            interrupts.remove_last_change(self.pid);
            self.interval.restore_previous(client)?;
        }
        Ok(())
    }
}
