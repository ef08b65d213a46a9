//! Check whether a thread handles system calls itself (Linux's admin-guide/syscall-user-dispatch.rst), as Wine does for
//! Windows programs. The kernel sends a SIGSYS for each call from outside an address range. If the thread blocks that
//! signal, it ends the process.
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
struct UserDispatchConfig {
    mode: u64,
    selector: u64,
    offset: u64,
    length: u64,
}

/// Fails for a thread with user dispatch, by which a program handles its system calls itself, or before Linux 6.4 if
/// Wine is mapped. The caller must have stopped the thread by ptrace(2). Threads that the thread creates have no user
/// dispatch.
///
/// # Errors
/// `UserDispatch`: the thread redirects its system calls; `NoSuchProcess`: it was killed; `Unreadable`: its memory map
/// cannot be read.
pub(super) fn require_no_user_dispatch(thread: u32) -> Result<(), Refusal> {
    match read_dispatch_mode(thread) {
        Ok(PR_SYS_DISPATCH_OFF) => Ok(()),
        Ok(_) => Err(Refusal::UserDispatch),
        Err(Errno::ESRCH) => Err(Refusal::NoSuchProcess),
        // Before Linux 6.4 the state is unknown. Wine is the only known user.
        Err(_) => match has_wine(&ProcDir::for_pid(thread).read("maps")?) {
            true => Err(Refusal::UserDispatch),
            false => Ok(()),
        },
    }
}

/// Reads the dispatch mode (`PR_SYS_DISPATCH_*`) of a stopped thread from the kernel. Fails with the errno of
/// ptrace(2): `ESRCH` if the thread was killed, another one before Linux 6.4.
fn read_dispatch_mode(thread: u32) -> Result<u64, Errno> {
    let mut config = UserDispatchConfig::default();
    let size = size_of_val(&config);
    // SAFETY: ptrace(2) writes at most `size` bytes to `config`, or none if its size differs.
    let written = unsafe {
        libc::ptrace(
            PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
            thread,
            size,
            &raw mut config,
        )
    };
    Errno::result(written)?;
    Ok(config.mode)
}

/// Returns whether the text of /proc/PID/maps has Wine's Unix half of ntdll, the library `ntdll.so` that makes the
/// system calls of Linux.
fn has_wine(maps: &[u8]) -> bool {
    mappings(maps).any(|mapping| mapping.file_name() == b"ntdll.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wine_is_recognized_by_its_library() {
        let check = |path: &str, expected| {
            let maps = format!("7f0000-7f2000 r-xp 00000000 fe:01 7     {path}\n");
            assert_eq!(has_wine(maps.as_bytes()), expected, "{path}");
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
