//! Comparison of what threads and processes share (kcmp(2)).
#![expect(unsafe_code, reason = "kcmp(2): no used library has a wrapper")]

use nix::errno::Errno;

/// `KCMP_FILE`, `KCMP_VM` and `KCMP_FILES` of linux/kcmp.h.
const KCMP_FILE: libc::c_int = 0;
const KCMP_VM: libc::c_int = 1;
const KCMP_FILES: libc::c_int = 2;

/// Returns whether two processes, by their pids, share one address space. Fails with the errno of kcmp(2): `ENOSYS` if
/// the kernel was built without it.
pub(super) fn have_same_memory(one: u32, other: u32) -> Result<bool, Errno> {
    have_same_resource(one, other, KCMP_VM, 0)
}

/// Returns the id of one thread for each descriptor table of a process, except for the table of the main thread. A
/// thread gets a table of its own by unshare(2) with `CLONE_FILES` or `close_range(2)` with `CLOSE_RANGE_UNSHARE`.
/// `threads` are the ids of the process's threads. Omits threads that have ended. Empty if the kernel was built without
/// kcmp(2).
pub fn find_descriptor_tables(pid: u32, threads: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut tables = vec![pid];
    for thread in threads {
        let differs = |known: &u32| have_same_resource(*known, thread, KCMP_FILES, 0) == Ok(false);
        if tables.iter().all(differs) {
            tables.push(thread);
        }
    }
    // The first table is that of the main thread.
    tables.split_off(1)
}

/// Returns whether descriptor `number` of two threads refers to the same open file description. False if a thread has
/// no such descriptor, or if kcmp(2) fails for another reason.
pub fn have_same_descriptor(one: u32, other: u32, number: i32) -> bool {
    u64::try_from(number)
        .is_ok_and(|number| have_same_resource(one, other, KCMP_FILE, number) == Ok(true))
}

/// Returns whether two threads share a resource (`KCMP_*`). `index` is a descriptor for `KCMP_FILE`, and ignored for
/// other resources. Fails with the errno of kcmp(2).
fn have_same_resource(
    one: u32,
    other: u32,
    resource: libc::c_int,
    index: u64,
) -> Result<bool, Errno> {
    // SAFETY: kcmp(2) takes numbers and touches no memory of this process.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, resource, index, index) };
    Errno::result(order).map(|order| order == 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn unrelated_processes_share_no_memory() {
        let own = std::process::id();
        assert_eq!(have_same_memory(own, own), Ok(true));
        assert_eq!(
            have_same_memory(own, std::os::unix::process::parent_id()),
            Ok(false)
        );
        assert_eq!(have_same_memory(own, u32::MAX >> 1), Err(Errno::ESRCH));
    }

    #[test]
    fn each_descriptor_table_is_found_once() {
        let own = std::process::id();
        let (ready, done) = (Barrier::new(3), Barrier::new(3));
        let tids = std::sync::Mutex::new(Vec::new());
        let run = |is_unshared: bool| {
            let unshare = || {
                // SAFETY: it copies the descriptor table of this thread, which borrows no descriptor of another.
                Errno::result(unsafe { libc::unshare(libc::CLONE_FILES) })
            };
            let unshared = is_unshared.then(unshare).transpose();
            tids.lock()
                .unwrap()
                .push((is_unshared, nix::unistd::gettid()));
            ready.wait();
            done.wait();
            // Only now: the others wait for this thread.
            unshared.unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| run(true));
            scope.spawn(|| run(false));
            ready.wait();
            let tids = tids.lock().unwrap().clone();
            let ids = tids.iter().map(|(_, tid)| tid.as_raw().cast_unsigned());
            let found = find_descriptor_tables(own, [own, u32::MAX >> 1].into_iter().chain(ids));
            let unshared = tids.iter().find(|(is_unshared, _)| *is_unshared).unwrap().1;
            done.wait();
            assert_eq!(found, [unshared.as_raw().cast_unsigned()]);
        });
    }
}
