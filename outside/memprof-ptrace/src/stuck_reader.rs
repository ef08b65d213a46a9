//! Finds readers of earlier commands that were killed and cannot end: each waits for a page of a process's memory
//! that does not arrive. While there is one, a new reader would block as well and stay.

use std::fs;

use nix::unistd::geteuid;

/// Returns the thread name of a child process that reads the memory of process `pid`, as prctl(2) takes it, with its
/// final zero. The longest pid fits.
pub(crate) fn reader_name(pid: u32) -> [u8; 16] {
    let mut name = [0; 16];
    let text = format!("memprof.{pid}");
    let length = text.len().min(name.len() - 1);
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

/// Returns whether a child process of an earlier command, which this user started and which was killed, still waits for
/// memory of process `pid`. Searches all processes. Reads only files of /proc that touch no process's memory, so that
/// it cannot block itself. False if /proc cannot be listed.
pub(crate) fn has_stuck_reader(pid: u32) -> bool {
    let name = reader_name(pid);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    processes.flatten().any(|process| {
        let file = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
        file("comm").trim_ascii_end() == name
            && is_stuck(
                &String::from_utf8_lossy(&file("status")),
                geteuid().as_raw(),
            )
    })
}

/// Returns whether a process, by the text of its /proc/PID/status, belongs to the real user id `user`, was killed, and
/// still sleeps uninterruptibly (state D).
fn is_stuck(status: &str, user: u32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
    };
    let signals = ["SigPnd", "ShdPnd"].map(|name| u64::from_str_radix(field(name)?, 16).ok());
    let is_killed = signals.into_iter().flatten().any(|set| set & KILL != 0);
    let is_own = field("Uid").is_some_and(|ids| ids.split('\t').next() == Some(&user.to_string()));
    is_own && is_killed && field("State").is_some_and(|state| state.starts_with('D'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_killed_sleeper_of_this_user_is_stuck() {
        let check = |state: &str, uid: u32, own: u64, shared: u64, expected: bool| {
            let status = format!(
                "Name:\tmemprof.7\nState:\t{state}\nUid:\t{uid}\t0\t0\t0\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n"
            );
            assert_eq!(is_stuck(&status, 0), expected, "{status}");
        };
        check("D (disk sleep)", 0, 0, 0x100, true);
        check("D (disk sleep)", 0, 0x100, 0, true);
        // It runs, is ending, belongs to another user, or has another signal.
        check("D (disk sleep)", 0, 0, 0, false);
        check("Z (zombie)", 0, 0, 0x100, false);
        check("D (disk sleep)", 1000, 0, 0x100, false);
        check("D (disk sleep)", 0, 0, 0x4000, false);
    }

    #[test]
    fn names_of_all_processes_differ() {
        let longest = reader_name(4_194_303);
        assert_eq!(&longest, b"memprof.4194303\0");
        assert_eq!(reader_name(7), *b"memprof.7\0\0\0\0\0\0\0");
        assert!(!has_stuck_reader(std::process::id()));
    }
}
