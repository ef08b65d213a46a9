//! Shares one running dump between all requests for it.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::problem::{Problem, Result};

type DumpResult<T> = Result<Arc<T>>;
type DumpReceiver<T> = watch::Receiver<Option<DumpResult<T>>>;

/// The running dump, if there is one. `T` is the reply.
#[derive(Debug)]
pub(crate) struct SharedDump<T>(Arc<Mutex<Option<DumpReceiver<T>>>>);

impl<T> Default for SharedDump<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send + Sync + 'static> SharedDump<T> {
    /// Waits for the running dump or, if none runs, for a new one that `take` takes, and returns its result. The dump
    /// continues even if all requests for it are cancelled: the host cannot abort it, and would refuse a second one as
    /// busy. Fails if the dump fails or panics.
    pub(crate) async fn join_or_start<F>(&self, take: impl FnOnce() -> F) -> DumpResult<T>
    where
        F: Future<Output = DumpResult<T>> + Send + 'static,
    {
        let mut outcome = self.join_or_spawn(take);
        let ended = outcome.wait_for(Option::is_some).await;
        match ended.ok().and_then(|outcome| outcome.clone()) {
            Some(outcome) => outcome,
            None => Err(Problem::internal("the dump ended without a reply")),
        }
    }

    /// Returns the receiver of the running dump's result. If no dump runs, spawns a task that takes one with `take`,
    /// and returns the receiver of that result.
    fn join_or_spawn<F>(&self, take: impl FnOnce() -> F) -> DumpReceiver<T>
    where
        F: Future<Output = DumpResult<T>> + Send + 'static,
    {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Joins only a dump that still runs: one that has ended is older than this request, and one that panicked has
        // closed its channel.
        let joined = last
            .take()
            .filter(|outcome| outcome.borrow().is_none() && outcome.has_changed().is_ok());
        let outcome = joined.unwrap_or_else(|| {
            let (sender, outcome) = watch::channel(None);
            let (dump, last) = (take(), Arc::clone(&self.0));
            tokio::spawn(async move {
                sender.send_replace(Some(dump.await));
                // The waiting requests have the reply, so it need not stay in memory.
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                last.take_if(|outcome| outcome.borrow().is_some());
            });
            outcome
        });
        *last = Some(outcome.clone());
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde_json::{Value, json};
    use tokio::sync::Notify;

    use super::*;

    /// Host whose dumps end when notified, and are counted.
    #[derive(Default)]
    struct Host {
        taken: AtomicU32,
        end: Notify,
    }

    impl Host {
        fn take_dump(self: &Arc<Self>) -> impl Future<Output = DumpResult<Value>> + Send + 'static {
            let host = Arc::clone(self);
            async move {
                let number = host.taken.fetch_add(1, Ordering::Relaxed) + 1;
                host.end.notified().await;
                Ok(Arc::new(json!(number)))
            }
        }
    }

    fn run(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future);
    }

    #[test]
    fn requests_during_dump_share_it() {
        run(async {
            let (host, shared_dump) = (Arc::new(Host::default()), SharedDump::default());
            let end = async { host.end.notify_one() };
            let join = || shared_dump.join_or_start(|| host.take_dump());
            let (a, b, c, ()) = tokio::join!(join(), join(), join(), end);
            assert_eq!(
                [a.unwrap(), b.unwrap(), c.unwrap()].map(|dump| (*dump).clone()),
                [1, 1, 1]
            );
            host.end.notify_one();
            assert_eq!(*join().await.unwrap(), 2);
        });
    }

    #[test]
    fn dump_goes_on_after_cancelled_request() {
        run(async {
            let (host, shared_dump) = (Arc::new(Host::default()), SharedDump::default());
            let cancelled = async {
                tokio::select! {
                    biased;
                    _ = shared_dump.join_or_start(|| host.take_dump()) => panic!("it was not ended"),
                    () = async {} => {}
                }
            };
            cancelled.await;
            host.end.notify_one();
            let shared = shared_dump
                .join_or_start(|| host.take_dump())
                .await
                .unwrap();
            assert_eq!(*shared, 1);
            assert_eq!(host.taken.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn waiting_requests_share_failure() {
        run(async {
            let shared_dump = SharedDump::<Value>::default();
            let fail = || async { Err(Problem::host_unavailable("it ended")) };
            let (a, b) = tokio::join!(
                shared_dump.join_or_start(fail),
                shared_dump.join_or_start(fail)
            );
            assert_eq!(a.unwrap_err().kind(), "host_gone");
            assert_eq!(b.unwrap_err().kind(), "host_gone");
        });
    }
}
