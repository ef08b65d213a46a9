//! Readers of earlier commands that were killed and cannot end: each waits for a page of a process's memory that does not
//! come. While there is one, another would wait as well, and stay.

use std::fs;

use nix::unistd::geteuid;

/// The name of a reader of process `pid`, as prctl(2) takes it: its longest fits.
pub(crate) fn name(pid: u32) -> [u8; 16] {
    let mut name = [0; 16];
    let text = format!("memprof.{pid}");
    let length = text.len().min(name.len() - 1);
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

/// Whether one waits for process `pid`. Of each process only what can be read without its memory is read.
pub(crate) fn waits_for(pid: u32) -> bool {
    let name = name(pid);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    processes.flatten().any(|process| {
        let file = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
        file("comm").trim_ascii_end() == name
            && is_given_up(
                &String::from_utf8_lossy(&file("status")),
                geteuid().as_raw(),
            )
    })
}

/// Whether a process by its status (proc(5)) is this user's, was killed, and sleeps nevertheless.
fn is_given_up(status: &str, user: u32) -> bool {
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
    fn only_a_killed_sleeper_of_this_user_counts() {
        let check = |state: &str, uid: u32, own: u64, shared: u64, expected: bool| {
            let status = format!(
                "Name:\tmemprof.7\nState:\t{state}\nUid:\t{uid}\t0\t0\t0\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n"
            );
            assert_eq!(is_given_up(&status, 0), expected, "{status}");
        };
        check("D (disk sleep)", 0, 0, 0x100, true);
        check("D (disk sleep)", 0, 0x100, 0, true);
        // It reads, ends, is another user's, has another signal.
        check("D (disk sleep)", 0, 0, 0, false);
        check("Z (zombie)", 0, 0, 0x100, false);
        check("D (disk sleep)", 1000, 0, 0x100, false);
        check("D (disk sleep)", 0, 0, 0x4000, false);
    }

    #[test]
    fn readers_of_all_processes_have_names_of_their_own() {
        let longest = name(4_194_303);
        assert_eq!(&longest, b"memprof.4194303\0");
        assert_eq!(name(7), *b"memprof.7\0\0\0\0\0\0\0");
        assert!(!waits_for(std::process::id()));
    }
}
