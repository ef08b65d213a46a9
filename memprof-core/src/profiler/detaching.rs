//! The way out of a process that goes on without us.

use super::Profiler;
use crate::error::Result;
use crate::lock::lock;

impl Profiler {
    /// Ends all that was begun and gives back what was taken: sampling ends, calls of malloc lead to the
    /// allocator alone, every thread ends. Samples of memprof's own sampler are dropped. What comes later
    /// begins anew.
    ///
    /// # Errors
    /// `Busy` while a dump runs, and where a thread stays inside of the sampler; what an allocator or
    /// the loader refused. Then it can be tried again.
    pub fn detach(&self) -> Result<()> {
        let _running = self.begin_dump()?;
        if let Some(watcher) = lock(&self.watcher).take() {
            watcher.end();
        }
        if let Some(farewell) = self.farewell.get() {
            farewell.give_up();
        }
        let stopped = match self.was_active {
            // The program's own doing, which is to be found as it was.
            true => self.leave_active(),
            false => self.deactivate(None).map(drop),
        };
        stopped?;
        for backend in &*self.backends() {
            backend.give_back()?;
        }
        self.dumper.end();
        Ok(())
    }
}
