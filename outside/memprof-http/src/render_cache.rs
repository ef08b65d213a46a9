//! Reports of kept dumps, made once: a dump never changes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use tokio::sync::OnceCell;

use crate::problem::Result;

/// What is remembered of one host.
const BYTES: usize = 32 << 20;
const COUNT: usize = 64;

type RenderCell = Arc<OnceCell<Bytes>>;

/// The last reports, by what was asked for.
#[derive(Debug, Default)]
pub(crate) struct RenderCache(Mutex<VecDeque<(String, RenderCell)>>);

impl RenderCache {
    /// The report under `key`, made by `render` unless it is there or on its way.
    pub(crate) async fn get_or_render<F>(
        &self,
        key: &str,
        render: impl FnOnce() -> F,
    ) -> Result<Bytes>
    where
        F: Future<Output = Result<Bytes>>,
    {
        let slot = self.slot(key);
        let report = slot.get_or_try_init(render).await?.clone();
        self.evict_oldest();
        Ok(report)
    }

    fn slot(&self, key: &str) -> RenderCell {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = slots.iter().position(|(known, _)| known == key);
        let slot = match at.and_then(|at| slots.remove(at)) {
            Some((_, slot)) => slot,
            None => RenderCell::default(),
        };
        slots.push_back((key.to_owned(), Arc::clone(&slot)));
        slot
    }

    /// Forgets what was not asked for longest.
    fn evict_oldest(&self) {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |slot: &RenderCell| slot.get().map_or(0, Bytes::len);
        let mut bytes: usize = slots.iter().map(|(_, slot)| size(slot)).sum();
        while slots.len() > COUNT || bytes > BYTES {
            let Some((_, slot)) = slots.pop_front() else {
                return;
            };
            bytes -= size(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future);
    }

    #[test]
    fn a_report_is_made_once() {
        run(async {
            let renders = RenderCache::default();
            let once = renders
                .get_or_render("a", || async { Ok("1".into()) })
                .await;
            assert_eq!(once.unwrap(), "1");
            let again = renders
                .get_or_render("a", || async { Ok("2".into()) })
                .await;
            assert_eq!(again.unwrap(), "1");
        });
    }

    #[test]
    fn the_oldest_reports_are_forgotten() {
        run(async {
            let renders = RenderCache::default();
            let third = Bytes::from(vec![0; BYTES / 3 + 1]);
            for key in ["a", "b", "a", "c"] {
                let made = renders
                    .get_or_render(key, || async { Ok(third.clone()) })
                    .await;
                assert_eq!(made.unwrap().len(), third.len());
            }
            let keys: Vec<_> = renders
                .0
                .lock()
                .unwrap()
                .iter()
                .map(|s| s.0.clone())
                .collect();
            assert_eq!(keys, ["a", "c"]);
        });
    }

    #[test]
    fn a_failed_report_is_tried_again() {
        run(async {
            let renders = RenderCache::default();
            let failed = || async { Err(crate::problem::Problem::internal("no")) };
            assert!(renders.get_or_render("a", failed).await.is_err());
            let made = renders
                .get_or_render("a", || async { Ok("1".into()) })
                .await;
            assert_eq!(made.unwrap(), "1");
        });
    }
}
