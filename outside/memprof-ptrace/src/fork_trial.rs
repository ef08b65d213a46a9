//! Measures how long the kernel takes to copy the page tables of a process: machines differ by a factor of five.
#![expect(
    unsafe_code,
    reason = "mmap(2), and a fork without the handlers of fork(3)"
)]

use std::io;
use std::ptr;
use std::time::Duration;

use libc::pid_t;
use nix::sys::signal::{SigSet, SigmaskHow};

/// Memory of the trial, in bytes: its pages' data in the kernel do not fit into a core's own caches.
const TRIAL_BYTES: usize = 16 << 20;
const PAGE_SIZE: usize = 4096;
/// Forks with and without the memory, of which the fastest count.
const ATTEMPTS: usize = 4;

/// Measures the time in which the kernel, in a fork(2), copies one page table entry: that of a page of 4 KiB that was
/// written since the last fork. Compares forks of this process with and without memory of a known size. Takes some tens
/// of milliseconds.
///
/// # Errors
/// The kernel refuses the memory or the forks, or other processes disturbed them.
pub fn measure_page_copy_time() -> io::Result<Duration> {
    let memory = TrialMemory::new()?;
    let mut best = [Duration::MAX; 2];
    for _ in 0..ATTEMPTS {
        for (best, advice) in best
            .iter_mut()
            .zip([libc::MADV_DONTFORK, libc::MADV_DOFORK])
        {
            memory.advise(advice)?;
            // A fork also write-protects each page, which takes as long as copying its entry. The next fork finds the
            // page protected already, and is faster, unless the page is written in between.
            memory.write_pages();
            *best = (*best).min(time_fork()?);
        }
    }
    let [without, with] = best;
    let difference = with
        .checked_sub(without)
        .filter(|difference| !difference.is_zero());
    let difference = difference.ok_or_else(|| io::Error::other("the forks were disturbed"))?;
    Ok(difference / (TRIAL_BYTES / PAGE_SIZE) as u32)
}

/// Memory in small pages.
struct TrialMemory(*mut libc::c_void);

impl TrialMemory {
    /// Maps [`TRIAL_BYTES`] of private memory in small pages.
    fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2) of new memory, which `drop` unmaps.
        let start = unsafe { libc::mmap(ptr::null_mut(), TRIAL_BYTES, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = Self(start);
        // A kernel without huge pages refuses the advice.
        memory.advise(libc::MADV_NOHUGEPAGE).ok();
        Ok(memory)
    }

    /// Writes a byte to each page, which makes the page private and writable again after a fork.
    fn write_pages(&self) {
        for offset in (0..TRIAL_BYTES).step_by(PAGE_SIZE) {
            let byte = self.0.cast::<u8>().wrapping_add(offset);
            // SAFETY: the byte is in the mapping of `new`, which is writable and used by nothing else.
            unsafe { byte.write_volatile(1) };
        }
    }

    /// Calls madvise(2) for the memory; the advice must keep its data.
    fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: madvise(2) on the mapping of `new`, with advice that keeps its data.
        match unsafe { libc::madvise(self.0, TRIAL_BYTES, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for TrialMemory {
    fn drop(&mut self) {
        // SAFETY: munmap(2) of the mapping of `new`, to which there are no references.
        unsafe { libc::munmap(self.0, TRIAL_BYTES) };
    }
}

/// Forks this process, and returns the processor time that this thread took for the fork. Unlike the elapsed time, the
/// processor time hardly depends on other processes of the machine. The child ends at once, and is waited for. Fails if
/// the kernel refuses the fork.
fn time_fork() -> io::Result<Duration> {
    // The child inherits the mask: signals are meant for this process, not for the child.
    let old_mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let start = thread_processor_time()?;
    // SAFETY: clone(2) with these arguments is fork(2), without the handlers of fork(3): the child makes system calls
    // only.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        // SAFETY: _exit(2) ends the child, which has nothing to clean up.
        unsafe { libc::_exit(0) };
    }
    let error = io::Error::last_os_error();
    let time = thread_processor_time()?.saturating_sub(start);
    old_mask.thread_set_mask()?;
    if child == -1 {
        return Err(error);
    }
    // SAFETY: waitpid(2) for the child, whose end sends no signal (`__WCLONE`).
    unsafe { libc::waitpid(child as pid_t, ptr::null_mut(), libc::__WCLONE) };
    Ok(time)
}

/// Returns the processor time that this thread has used so far.
fn thread_processor_time() -> io::Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) writes the time to `time`.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page faults of this thread so far that read no file.
    fn minor_faults() -> i64 {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD);
        usage.unwrap().minor_page_faults()
    }

    /// The kernel takes the write access of a page at a fork, which the next fork of an unwritten page does not show.
    #[test]
    fn each_fork_copies_pages_that_were_written() {
        let before = minor_faults();
        measure_page_copy_time().unwrap();
        let pages = (TRIAL_BYTES / PAGE_SIZE * ATTEMPTS) as i64;
        let faults = minor_faults() - before;
        assert!(faults >= pages, "{faults} of {pages}");
    }

    #[test]
    fn page_copy_takes_time_and_leaves_no_child() {
        let time = measure_page_copy_time().unwrap();
        assert!(
            time > Duration::ZERO && time < Duration::from_millis(1),
            "{time:?}"
        );
        let children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
        assert_eq!(children, "");
    }
}
