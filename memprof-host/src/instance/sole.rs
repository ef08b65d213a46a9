//! The one instance that a library has in a process: plugins keep state in static variables, which a second
//! one would overwrite and free.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_INTERNAL, memprof_plugin_entry_t};

/// The entries of the libraries that have an instance. The loader maps a file once, by whatever path or link
/// it is named, so each file has one entry.
static TAKEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The right to be a library's instance; given back when dropped.
#[derive(Debug)]
pub(super) struct Sole(usize);

impl Sole {
    /// # Errors
    /// The library of `entry` has an instance, of this host or another one.
    pub(super) fn claim(entry: *const memprof_plugin_entry_t, id: &str) -> Result<Self, Failure> {
        let mut taken = taken();
        if taken.contains(&entry.addr()) {
            let message = format!("plugin {id} has an instance in this process already");
            return Err(Failure::new(MEMPROF_INTERNAL, message).remedy(
                "name its file once in the config, whatever links lead to it, and stop a host before another \
                 one is started",
            ));
        }
        taken.push(entry.addr());
        Ok(Self(entry.addr()))
    }
}

impl Drop for Sole {
    fn drop(&mut self) {
        taken().retain(|entry| *entry != self.0);
    }
}

fn taken() -> MutexGuard<'static, Vec<usize>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_has_one_instance_at_a_time() {
        let [first, second] = [1, 2].map(std::ptr::without_provenance);
        let sole = Sole::claim(first, "x").unwrap();
        let other = Sole::claim(second, "y").unwrap();
        let refused = Sole::claim(first, "x").unwrap_err();
        assert_eq!(
            refused.message,
            "plugin x has an instance in this process already"
        );
        drop(sole);
        let again = Sole::claim(first, "x").unwrap();
        Sole::claim(second, "y").unwrap_err();
        drop((other, again));
    }
}
