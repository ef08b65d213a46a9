//! Ensures that a library has one instance in a process: plugins store state in static variables, which a second
//! instance would overwrite and free.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use memprof_plugin_abi::Failure;
use memprof_plugin_abi::raw::{MEMPROF_INTERNAL, memprof_plugin_entry_t};

/// The libraries that have or had an instance. The list never shrinks, and has no lock: a child that is forked while a
/// thread holds a lock would wait for it for ever.
static LIBRARIES: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());

/// A library in the list.
#[derive(Debug)]
struct Library {
    /// Address of its entry. A file may have two, the exported one and its adapters' own, but this list has only one of
    /// them: a host finds the exported one, and the adapters, which have a list of their own, use their own. The loader
    /// maps a file once, whatever path or link names it.
    entry: usize,
    /// Id of the process that has its instance; 0 if there is none. A forked child has none of its parent's instances.
    process: AtomicU32,
    next: Option<&'static Self>,
}

/// The right to create a library's instance; released when dropped.
#[derive(Debug)]
pub(super) struct InstanceClaim {
    library: &'static Library,
    process: u32,
}

impl InstanceClaim {
    /// Claims the library of `entry` for this process. Fails if the library already has an instance in this process, of
    /// this host or another one. `id` is the plugin's, for the error.
    pub(super) fn acquire(entry: *const memprof_plugin_entry_t, id: &str) -> Result<Self, Failure> {
        let library = Library::find_or_insert(entry.addr());
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

impl Drop for InstanceClaim {
    /// Releases the library for another instance. Does nothing in a forked child, where the claim is the parent's.
    fn drop(&mut self) {
        if self.process == process::id() {
            self.library.process.store(0, Ordering::Release);
        }
    }
}

impl Library {
    /// Finds the library with this entry, an address, in [`LIBRARIES`], and adds it if it is new. Takes no lock.
    fn find_or_insert(entry: usize) -> &'static Self {
        let mut first = LIBRARIES.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a library that was leaked into the list below.
            let head = unsafe { first.as_ref() };
            let listed_library = std::iter::successors(head, |library| library.next)
                .find(|library| library.entry == entry);
            if let Some(listed_library) = listed_library {
                return listed_library;
            }
            let new = Box::into_raw(Box::new(Self {
                entry,
                process: AtomicU32::new(0),
                next: head,
            }));
            match LIBRARIES.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the library was leaked above and is never freed.
                Ok(_) => return unsafe { &*new },
                Err(other) => {
                    // SAFETY: the box was not listed, so no other thread has its address.
                    drop(unsafe { Box::from_raw(new) });
                    first = other;
                }
            }
        }
    }
}

/// Creates the error of a plugin whose id a loaded plugin has. `path` is the file that is refused, `loaded` that of the
/// other plugin.
#[cfg(any(feature = "adapters", all(feature = "loader", feature = "control")))]
pub(crate) fn duplicate_id_error(id: &str, path: &str, loaded: &str) -> Failure {
    let message = format!("{path}: a plugin with the id {id} is loaded already, from {loaded}");
    Failure::new(MEMPROF_INTERNAL, message)
        .remedy("leave out one of the two, or give one of them another id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_has_one_instance_at_a_time() {
        let [first, second] = [1, 2].map(ptr::without_provenance);
        let claim = InstanceClaim::acquire(first, "x").unwrap();
        let other = InstanceClaim::acquire(second, "y").unwrap();
        let error = InstanceClaim::acquire(first, "x").unwrap_err();
        assert_eq!(
            error.message,
            "plugin x has an instance in this process already"
        );
        drop(claim);
        let again = InstanceClaim::acquire(first, "x").unwrap();
        InstanceClaim::acquire(second, "y").unwrap_err();
        drop((other, again));
    }

    #[test]
    fn concurrent_claim_succeeds_once() {
        let entry = 3;
        let claims = std::thread::scope(|scope| {
            let claim = || InstanceClaim::acquire(ptr::without_provenance(entry), "x").ok();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
            let claims = threads.into_iter().map(|thread| thread.join().unwrap());
            claims.collect::<Vec<_>>()
        });
        assert_eq!(claims.iter().flatten().count(), 1);
    }

    #[test]
    fn forked_child_can_claim_parents_library() {
        let entry = ptr::without_provenance(4);
        let mut parents = InstanceClaim::acquire(entry, "x").unwrap();
        parents.process += 1;
        parents
            .library
            .process
            .store(parents.process, Ordering::Relaxed);
        let own = InstanceClaim::acquire(entry, "x").unwrap();
        drop(parents);
        InstanceClaim::acquire(entry, "x").unwrap_err();
        drop(own);
    }
}
