//! How many threads may wait for hosts: one that does not answer must not keep the others waiting.

use std::sync::Arc;
use std::time::Duration;

use memprof_messages::Pace;
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
            Some(known) if known.pace == Pace::AtOnce => Self::Quick,
            _ => Self::Long,
        }
    }
}

/// The calls to one host at the same time.
#[derive(Debug)]
pub(crate) struct Calls {
    quick: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            quick: Arc::new(Semaphore::new(8)),
            long: Arc::new(Semaphore::new(4)),
        }
    }
}

/// The right to one call, until it is dropped: by the thread that calls, which goes on when whoever
/// asked has left.
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _long: Option<SemaphorePermit<'static>>,
    _all: SemaphorePermit<'static>,
}

impl Calls {
    /// Waits until the host may be called.
    pub(crate) async fn turn(&self, kind: Call) -> Result<Turn> {
        self.turn_within(PATIENCE, kind).await
    }

    async fn turn_within(&self, patience: Duration, kind: Call) -> Result<Turn> {
        let Ok(turn) = timeout(patience, self.wait(kind)).await else {
            let message = "too many requests wait for this host, or for others";
            return Err(Problem::overloaded(message));
        };
        turn.map_err(|error| Problem::internal(error.to_string()))
    }

    async fn wait(&self, kind: Call) -> Result<Turn, AcquireError> {
        let (own, long) = match kind {
            Call::Quick => (Arc::clone(&self.quick).acquire_owned().await?, None),
            Call::Long => {
                let own = Arc::clone(&self.long).acquire_owned().await?;
                (own, Some(LONG.acquire().await?))
            }
        };
        Ok(Turn {
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
            let (stuck, other) = (Calls::default(), Calls::default());
            let mut turns = Vec::new();
            for kind in [Call::Quick, Call::Long] {
                loop {
                    match stuck.turn_within(Duration::ZERO, kind).await {
                        Ok(turn) => turns.push(turn),
                        Err(problem) => break assert_eq!(problem.kind(), "overloaded"),
                    }
                }
                other.turn_within(Duration::ZERO, kind).await.unwrap();
            }
            turns.clear();
            let free = stuck.turn_within(Duration::ZERO, Call::Long).await;
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
