//! The one instance that a library has in a process: plugins keep state in static variables, which a second
//! one would overwrite and free.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_INTERNAL, memprof_plugin_entry_t};

/// The libraries that have or had an instance. A list that is never shortened, without a lock: a child that is forked
/// while a thread holds one would wait for ever.
static LIBRARIES: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());

#[derive(Debug)]
struct Library {
    /// The address of its entry. The loader maps a file once, by whatever path or link it is named, so each file has
    /// one.
    entry: usize,
    /// The process whose instance it has; 0 for none. A forked child has none of its parent's instances.
    process: AtomicU32,
    next: Option<&'static Self>,
}

/// The right to be a library's instance; given back when dropped.
#[derive(Debug)]
pub(super) struct Sole {
    library: &'static Library,
    process: u32,
}

impl Sole {
    /// # Errors
    /// The library of `entry` has an instance, of this host or another one.
    pub(super) fn claim(entry: *const memprof_plugin_entry_t, id: &str) -> Result<Self, Failure> {
        let library = Library::of(entry.addr());
        let own = process::id();
        if library.process.swap(own, Ordering::AcqRel) == own {
            let message = format!("plugin {id} has an instance in this process already");
            return Err(Failure::new(MEMPROF_INTERNAL, message).remedy(
                "name its file once in the config, whatever links lead to it, and stop a host before another \
                 one is started",
            ));
        }
        Ok(Self {
            library,
            process: own,
        })
    }
}

impl Drop for Sole {
    fn drop(&mut self) {
        if self.process == process::id() {
            self.library.process.store(0, Ordering::Release);
        }
    }
}

impl Library {
    /// The library of that entry, listed once.
    fn of(entry: usize) -> &'static Self {
        let mut first = LIBRARIES.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or leaked below.
            let listed = unsafe { first.as_ref() };
            let known = std::iter::successors(listed, |library| library.next)
                .find(|library| library.entry == entry);
            if let Some(known) = known {
                return known;
            }
            let new = Box::into_raw(Box::new(Self {
                entry,
                process: AtomicU32::new(0),
                next: listed,
            }));
            match LIBRARIES.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: leaked just now.
                Ok(_) => return unsafe { &*new },
                Err(other) => {
                    // SAFETY: made above, and not listed.
                    drop(unsafe { Box::from_raw(new) });
                    first = other;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_has_one_instance_at_a_time() {
        let [first, second] = [1, 2].map(ptr::without_provenance);
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

    #[test]
    fn threads_that_claim_a_library_at_once_get_one_instance() {
        let entry = 3;
        let claims = std::thread::scope(|scope| {
            let claim = || Sole::claim(ptr::without_provenance(entry), "x").ok();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
            let claims = threads.into_iter().map(|thread| thread.join().unwrap());
            claims.collect::<Vec<_>>()
        });
        assert_eq!(claims.iter().flatten().count(), 1);
    }

    #[test]
    fn an_instance_of_the_process_that_forked_this_one_is_none() {
        let entry = ptr::without_provenance(4);
        let mut parents = Sole::claim(entry, "x").unwrap();
        parents.process += 1;
        parents
            .library
            .process
            .store(parents.process, Ordering::Relaxed);
        let own = Sole::claim(entry, "x").unwrap();
        drop(parents);
        Sole::claim(entry, "x").unwrap_err();
        drop(own);
    }
}
