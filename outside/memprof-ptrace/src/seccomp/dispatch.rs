//! Whether a thread handles its system calls itself (Linux's admin-guide/syscall-user-dispatch.rst), as Wine does for
//! those of Windows programs: the kernel then answers each call from elsewhere than the code that it names with a
//! SIGSYS, and ends the process where that is blocked.
#![expect(
    unsafe_code,
    reason = "PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG of ptrace(2)"
)]

use nix::errno::Errno;

use crate::maps::mappings;
use crate::proc_dir::ProcDir;
use crate::refusal::Refusal;

/// linux/ptrace.h, since Linux 6.4.
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
/// linux/prctl.h.
const PR_SYS_DISPATCH_OFF: u64 = 0;

/// `struct ptrace_sud_config`.
#[repr(C)]
#[derive(Debug, Default)]
struct Configuration {
    mode: u64,
    selector: u64,
    offset: u64,
    length: u64,
}

/// Fails for a thread with user dispatch, which the caller has stopped by ptrace(2). A thread that it makes has none.
///
/// # Errors
/// `UserDispatch`; `NoSuchProcess` where it was killed.
pub(super) fn require_none(thread: u32) -> Result<(), Refusal> {
    match mode(thread) {
        Ok(PR_SYS_DISPATCH_OFF) => Ok(()),
        Ok(_) => Err(Refusal::UserDispatch),
        Err(Errno::ESRCH) => Err(Refusal::NoSuchProcess),
        // An older kernel does not tell. Nothing but Wine is known to use it.
        Err(_) => match is_wine(&ProcDir::for_pid(thread).read("maps")?) {
            true => Err(Refusal::UserDispatch),
            false => Ok(()),
        },
    }
}

fn mode(thread: u32) -> Result<u64, Errno> {
    let mut configuration = Configuration::default();
    let size = size_of_val(&configuration);
    let place = &raw mut configuration;
    // SAFETY: ptrace(2) writes that many bytes there, or none where it knows another size.
    let written =
        unsafe { libc::ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, thread, size, place) };
    Errno::result(written)?;
    Ok(configuration.mode)
}

/// Wine's half of ntdll that makes system calls of Linux.
fn is_wine(maps: &[u8]) -> bool {
    mappings(maps).any(|mapping| mapping.file_name() == b"ntdll.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wine_is_known_by_its_library() {
        let check = |path: &str, expected| {
            let maps = format!("7f0000-7f2000 r-xp 00000000 fe:01 7     {path}\n");
            assert_eq!(is_wine(maps.as_bytes()), expected, "{path}");
        };
        check("/usr/lib/x86_64-linux-gnu/wine/x86_64-unix/ntdll.so", true);
        check(
            "/opt/proton/files/lib64/wine/x86_64-unix/ntdll.so (deleted)",
            true,
        );
        check("/usr/lib/ntdll.so.6", false);
        check("", false);
    }
}
