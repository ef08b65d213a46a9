//! Detaching: removes memprof's traces from a process that continues without it.

use super::Profiler;
use crate::error::Result;

impl Profiler {
    /// Undoes all that memprof does in the process: stops sampling, restores the calls of malloc, and stops
    /// every thread. Drops the samples of memprof's own sampler. Later messages start from scratch.
    ///
    /// # Errors
    /// `Busy` while a dump runs, or if a thread stays inside the sampler; otherwise the error of the
    /// allocator or the loader. It can then be tried again.
    pub fn detach(&self) -> Result<()> {
        let _running = self.dump_slot.acquire()?;
        self.automatic_dumps.stop();
        match self.switch.was_active_before_memprof() {
            // The program itself had activated the allocator's sampler, so that stays on.
            true => {
                let mut switch = self.switch.lock();
                switch.uninstall();
                switch.set_lease(None);
            }
            false => drop(self.deactivate(None)?),
        }
        for backend in &*self.allocators.all() {
            backend.clear_and_uninstall()?;
        }
        self.dump_slot.dumper.stop();
        Ok(())
    }
}
