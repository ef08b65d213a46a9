//! Limits the threads that wait for hosts: a host that does not answer must not block requests for others.

use std::sync::Arc;
use std::time::Duration;

use memprof_messages::ReplyLatency;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::problem::{Problem, Result};

/// Time that a request waits for a permit.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Permits for threads that wait for hosts, and for those of them that wait for long replies. The program has more
/// threads, so some are always free for other work.
static ALL_CALLS: Semaphore = Semaphore::const_new(40);
static LONG_CALLS: Semaphore = Semaphore::const_new(24);

/// Expected time until a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Shorter than a dump.
    Quick,
    /// As long as a dump, or longer.
    Long,
}

impl CallKind {
    /// Returns how long the reply to a message takes: [`Quick`](Self::Quick) if the message is known to reply at once,
    /// else [`Long`](Self::Long), also for an unknown message.
    pub(crate) fn for_message(message: &str) -> Self {
        match memprof_messages::find_message(message) {
            Some(known) if known.latency == ReplyLatency::Immediate => Self::Quick,
            _ => Self::Long,
        }
    }
}

/// Limits concurrent calls to one host.
#[derive(Debug)]
pub(crate) struct CallLimiter {
    quick: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for CallLimiter {
    fn default() -> Self {
        // Fewer than the permits of all hosts (24 for long calls, 40 in all): while this host does not answer, calls of
        // other hosts get the rest.
        Self {
            quick: Arc::new(Semaphore::new(8)),
            long: Arc::new(Semaphore::new(4)),
        }
    }
}

/// Permit for one call. The calling thread holds it, and goes on even if the client has left.
pub(crate) struct CallPermit {
    _own: OwnedSemaphorePermit,
    _long: Option<SemaphorePermit<'static>>,
    _all: SemaphorePermit<'static>,
}

impl CallLimiter {
    /// Waits for the permits of one call. Fails with status 503 after [`PERMIT_TIMEOUT`], 10 s.
    pub(crate) async fn acquire(&self, kind: CallKind) -> Result<CallPermit> {
        self.acquire_within(PERMIT_TIMEOUT, kind).await
    }

    /// Like [`acquire`](Self::acquire), but with another timeout, `limit`.
    async fn acquire_within(&self, limit: Duration, kind: CallKind) -> Result<CallPermit> {
        let Ok(permit) = timeout(limit, self.wait_for_permits(kind)).await else {
            let message = "too many requests wait for this host, or for others";
            return Err(Problem::overloaded(message));
        };
        permit.map_err(|error| Problem::internal(error.to_string()))
    }

    /// Waits, without a timeout, for a permit of this host, then for the permits that all hosts share: one for every
    /// call, and another one for long calls. The host's own permit comes first, so that a call that waits for it holds
    /// no shared permit.
    async fn wait_for_permits(&self, kind: CallKind) -> Result<CallPermit, AcquireError> {
        let (own, long) = match kind {
            CallKind::Quick => (Arc::clone(&self.quick).acquire_owned().await?, None),
            CallKind::Long => {
                let own = Arc::clone(&self.long).acquire_owned().await?;
                (own, Some(LONG_CALLS.acquire().await?))
            }
        };
        Ok(CallPermit {
            _own: own,
            _long: long,
            _all: ALL_CALLS.acquire().await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresponsive_host_does_not_block_others() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let (stuck, other) = (CallLimiter::default(), CallLimiter::default());
            let mut permits = Vec::new();
            for kind in [CallKind::Quick, CallKind::Long] {
                loop {
                    match stuck.acquire_within(Duration::ZERO, kind).await {
                        Ok(permit) => permits.push(permit),
                        Err(problem) => break assert_eq!(problem.kind(), "overloaded"),
                    }
                }
                other.acquire_within(Duration::ZERO, kind).await.unwrap();
            }
            permits.clear();
            let free = stuck.acquire_within(Duration::ZERO, CallKind::Long).await;
            free.unwrap();
        });
    }

    #[test]
    fn message_latency_determines_kind() {
        assert_eq!(CallKind::for_message("status"), CallKind::Quick);
        assert_eq!(CallKind::for_message("dump"), CallKind::Long);
        assert_eq!(CallKind::for_message("stats"), CallKind::Long);
    }
}
