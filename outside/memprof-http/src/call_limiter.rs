//! How many threads may wait for hosts: one that does not answer must not keep the others waiting.

use std::sync::Arc;
use std::time::Duration;

use memprof_messages::ReplyLatency;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::problem::{Problem, Result};

/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Threads that wait for hosts, and of these for long answers. The program has more: some are
/// always left for what waits for nobody.
static ALL: Semaphore = Semaphore::const_new(40);
static LONG: Semaphore = Semaphore::const_new(24);

/// How long the answer to a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// No longer than a dump does not last.
    Quick,
    /// As long as a dump, or longer.
    Long,
}

impl Call {
    pub(crate) fn of(message: &str) -> Self {
        match memprof_messages::message(message) {
            Some(known) if known.latency == ReplyLatency::Immediate => Self::Quick,
            _ => Self::Long,
        }
    }
}

/// The calls to one host at the same time.
#[derive(Debug)]
pub(crate) struct CallLimiter {
    quick: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for CallLimiter {
    fn default() -> Self {
        Self {
            quick: Arc::new(Semaphore::new(8)),
            long: Arc::new(Semaphore::new(4)),
        }
    }
}

/// The right to one call, until it is dropped: by the thread that calls, which goes on when whoever
/// asked has left.
pub(crate) struct CallPermit {
    _own: OwnedSemaphorePermit,
    _long: Option<SemaphorePermit<'static>>,
    _all: SemaphorePermit<'static>,
}

impl CallLimiter {
    /// Waits until the host may be called.
    pub(crate) async fn acquire(&self, kind: Call) -> Result<CallPermit> {
        self.acquire_within(PATIENCE, kind).await
    }

    async fn acquire_within(&self, patience: Duration, kind: Call) -> Result<CallPermit> {
        let Ok(turn) = timeout(patience, self.wait(kind)).await else {
            let message = "too many requests wait for this host, or for others";
            return Err(Problem::overloaded(message));
        };
        turn.map_err(|error| Problem::internal(error.to_string()))
    }

    async fn wait(&self, kind: Call) -> Result<CallPermit, AcquireError> {
        let (own, long) = match kind {
            Call::Quick => (Arc::clone(&self.quick).acquire_owned().await?, None),
            Call::Long => {
                let own = Arc::clone(&self.long).acquire_owned().await?;
                (own, Some(LONG.acquire().await?))
            }
        };
        Ok(CallPermit {
            _own: own,
            _long: long,
            _all: ALL.acquire().await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_answers_nothing_keeps_no_other_waiting() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let (stuck, other) = (CallLimiter::default(), CallLimiter::default());
            let mut turns = Vec::new();
            for kind in [Call::Quick, Call::Long] {
                loop {
                    match stuck.acquire_within(Duration::ZERO, kind).await {
                        Ok(turn) => turns.push(turn),
                        Err(problem) => break assert_eq!(problem.kind(), "overloaded"),
                    }
                }
                other.acquire_within(Duration::ZERO, kind).await.unwrap();
            }
            turns.clear();
            let free = stuck.acquire_within(Duration::ZERO, Call::Long).await;
            free.unwrap();
        });
    }

    #[test]
    fn messages_that_are_answered_at_once() {
        assert_eq!(Call::of("status"), Call::Quick);
        assert_eq!(Call::of("dump"), Call::Long);
        assert_eq!(Call::of("stats"), Call::Long);
    }
}
