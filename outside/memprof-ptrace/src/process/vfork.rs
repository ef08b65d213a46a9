//! Whether a process runs in its parent's memory, as one does between vfork and exec.
#![expect(unsafe_code, reason = "kcmp(2)")]

use nix::errno::Errno;

use super::ProcStatus;

/// `KCMP_VM` of linux/kcmp.h.
const KCMP_VM: libc::c_int = 1;

/// Whether a process that has executed nothing since its fork has the memory of its parent.
pub(crate) fn shares_memory_with_parent(pid: u32, child: &ProcStatus, parent: &ProcStatus) -> bool {
    match compare(pid, child.parent) {
        Ok(is_same) => is_same,
        // The kernel was built without kcmp(2).
        Err(Errno::ENOSYS) => has_same_memory_size(child, parent),
        // One of them ended, or is not for this user to look into: then nor is the memory.
        Err(_) => false,
    }
}

fn compare(one: u32, other: u32) -> Result<bool, Errno> {
    // SAFETY: kcmp(2) takes numbers and touches no memory of ours.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_u64, 0_u64) };
    Errno::result(order).map(|order| order == 0)
}

/// One memory has one size, one peak and one resident set. A fork that has touched nothing yet has
/// the same size but not the same resident set: file pages are not copied.
fn has_same_memory_size(child: &ProcStatus, parent: &ProcStatus) -> bool {
    (child.size, child.resident) == (parent.size, parent.resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_own_memory() {
        let own = std::process::id();
        assert_eq!(compare(own, own), Ok(true));
        assert_eq!(compare(own, std::os::unix::process::parent_id()), Ok(false));
        assert_eq!(compare(own, u32::MAX >> 1), Err(Errno::ESRCH));
    }

    #[test]
    fn without_kcmp_the_figures_tell() {
        let own = std::fs::read("/proc/self/status").unwrap();
        let own = ProcStatus::parse(&own).unwrap();
        assert!(has_same_memory_size(&own, &own));
        let larger = ProcStatus {
            resident: own.resident + 4096,
            ..own.clone()
        };
        assert!(!has_same_memory_size(&own, &larger));
    }
}
