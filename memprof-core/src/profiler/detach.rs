//! The way out of a process that goes on without us.

use super::Profiler;
use crate::error::Result;

impl Profiler {
    /// Ends all that was begun and gives back what was taken: sampling ends, calls of malloc lead to the
    /// allocator alone, every thread ends. Samples of memprof's own sampler are dropped. What comes later
    /// begins anew.
    ///
    /// # Errors
    /// `Busy` while a dump runs, and where a thread stays inside of the sampler; what an allocator or
    /// the loader refused. Then it can be tried again.
    pub fn detach(&self) -> Result<()> {
        let _running = self.dump_slot.acquire()?;
        self.unasked.end();
        match self.switch.was_active_before() {
            // The program's own doing, which is to be found as it was.
            true => {
                let mut switch = self.switch.lock();
                switch.uninstall();
                switch.set_lease(None);
            }
            false => drop(self.deactivate(None)?),
        }
        for backend in &*self.allocators.all() {
            backend.release()?;
        }
        self.dump_slot.dumper.end();
        Ok(())
    }
}
