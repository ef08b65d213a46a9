//! Detaches memprof from a process that continues without it.

use super::Profiler;
use crate::error::Result;

impl Profiler {
    /// Undoes everything that memprof does in the process: stops sampling, restores the calls of malloc, and stops all
    /// of memprof's threads. Drops the samples of memprof's sampler. Later messages start from scratch.
    ///
    /// # Errors
    /// `Busy` while a dump runs, or if a thread stays inside the sampler. Otherwise the error of the allocator or the
    /// loader. The call may be repeated.
    pub fn detach(&self) -> Result<()> {
        let _running = self.dump_slot.acquire()?;
        self.automatic_dumps.stop();
        match self.switch.was_active_before_memprof() {
            // The program itself activated the allocator's sampler, so it stays on.
            true => {
                let mut switch = self.switch.lock();
                switch.uninstall_walkers();
                switch.set_lease(None);
            }
            false => drop(self.deactivate(None)?),
        }
        for backend in &*self.allocators.all_backends() {
            backend.drop_samples_and_uninstall()?;
        }
        self.dump_slot.dumper.stop();
        Ok(())
    }
}
