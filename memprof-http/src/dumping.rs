//! One dump for all who ask while it runs.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use crate::problem::{Problem, Result};

type Outcome = Result<Arc<Value>>;

/// The dump that runs, if one does.
#[derive(Debug, Default)]
pub(crate) struct Dumping(Mutex<Option<watch::Receiver<Option<Outcome>>>>);

impl Dumping {
    /// Joins the dump that runs, or starts one. It goes on when those who wait for it leave: a
    /// second one would find the host busy.
    pub(crate) async fn join<F>(&self, take: impl FnOnce() -> F) -> Outcome
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut outcome = self.running_or(take);
        let ended = outcome.wait_for(Option::is_some).await;
        match ended.ok().and_then(|outcome| outcome.clone()) {
            Some(outcome) => outcome,
            None => Err(Problem::internal("the dump ended without a reply")),
        }
    }

    fn running_or<F>(&self, take: impl FnOnce() -> F) -> watch::Receiver<Option<Outcome>>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended was taken before this request came.
        let joined = running
            .take()
            .filter(|outcome| outcome.borrow().is_none() && outcome.has_changed().is_ok());
        let outcome = joined.unwrap_or_else(|| {
            let (sender, outcome) = watch::channel(None);
            let dump = take();
            tokio::spawn(async move {
                sender.send_replace(Some(dump.await));
            });
            outcome
        });
        *running = Some(outcome.clone());
        outcome
    }
}
