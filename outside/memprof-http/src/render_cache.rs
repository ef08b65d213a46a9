//! Cache of rendered reports: a kept dump never changes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use tokio::sync::OnceCell;

use crate::problem::Result;

/// Most bytes and reports per host.
const MAX_BYTES: usize = 32 << 20;
const MAX_REPORTS: usize = 64;

/// A report that is cached or being rendered.
type RenderCell = Arc<OnceCell<Bytes>>;

/// Most recently used reports, by query; the last one is the newest.
#[derive(Debug, Default)]
pub(crate) struct RenderCache(Mutex<VecDeque<(String, RenderCell)>>);

impl RenderCache {
    /// Returns the report under `key` from the cache. If the report is being rendered, waits for it; if it is missing,
    /// renders it with `render`. May evict the oldest reports. A failure is not cached.
    pub(crate) async fn get_or_render<F>(
        &self,
        key: &str,
        render: impl FnOnce() -> F,
    ) -> Result<Bytes>
    where
        F: Future<Output = Result<Bytes>>,
    {
        let cell = self.touch_or_add_cell(key);
        let report = cell.get_or_try_init(render).await?.clone();
        self.evict_oldest_reports();
        Ok(report)
    }

    /// Returns the cell of the report under `key`, and marks it as the most recently used. If there is none, adds an
    /// empty cell.
    fn touch_or_add_cell(&self, key: &str) -> RenderCell {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = cells.iter().position(|(known, _)| known == key);
        let cell = match index.and_then(|index| cells.remove(index)) {
            Some((_, cell)) => cell,
            None => RenderCell::default(),
        };
        cells.push_back((key.to_owned(), Arc::clone(&cell)));
        cell
    }

    /// Removes the least recently used reports until at most `MAX_REPORTS` (64) with `MAX_BYTES` (32 MiB) remain.
    fn evict_oldest_reports(&self) {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |cell: &RenderCell| cell.get().map_or(0, Bytes::len);
        let mut bytes: usize = cells.iter().map(|(_, cell)| size(cell)).sum();
        while cells.len() > MAX_REPORTS || bytes > MAX_BYTES {
            let Some((_, cell)) = cells.pop_front() else {
                return;
            };
            bytes -= size(&cell);
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
    fn report_is_rendered_once() {
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
    fn least_recently_used_report_is_evicted() {
        run(async {
            let renders = RenderCache::default();
            let third = Bytes::from(vec![0; MAX_BYTES / 3 + 1]);
            for key in ["a", "b", "a", "c"] {
                let report = renders
                    .get_or_render(key, || async { Ok(third.clone()) })
                    .await;
                assert_eq!(report.unwrap().len(), third.len());
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
    fn failed_render_is_repeated() {
        run(async {
            let renders = RenderCache::default();
            let failed = || async { Err(crate::problem::Problem::internal("no")) };
            assert!(renders.get_or_render("a", failed).await.is_err());
            let report = renders
                .get_or_render("a", || async { Ok("1".into()) })
                .await;
            assert_eq!(report.unwrap(), "1");
        });
    }
}
