//! /proc/PID/stat.

use super::MalformedProcFile;

/// `PF_FORKNOEXEC` and `PF_KTHREAD` of the kernel's include/linux/sched.h: two of the task flags that
/// have not moved since Linux 2.6.
const NEVER_EXECUTED: u64 = 0x40;
const KERNEL_THREAD: u64 = 0x20_0000;

/// What only /proc/PID/stat says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcStat {
    flags: u64,
    /// Whether it has ended, and its parent has not asked for its exit status.
    pub is_zombie: bool,
    /// The process that made it, or has taken it over; 0 where that is in no namespace of this one's.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// The signal that tells its parent of its end, 0 for none; -1 for a thread that is not the first. `None` on
    /// kernels before 2.6.
    pub exit_signal: Option<i32>,
    /// How it ended, as wait(2) reports it; 0 before, and where ptrace(2) is not allowed.
    pub exit_code: Option<i32>,
    /// When it was started, in ticks since the machine's start: with the pid, this names one process.
    pub start_time: u64,
}

impl ProcStat {
    /// Parses the file.
    ///
    /// # Errors
    /// It has fewer fields than Linux 2.6 writes.
    pub fn parse(text: &[u8]) -> Result<Self, MalformedProcFile> {
        // The name, in parentheses, may hold any byte; no field behind it has a parenthesis.
        let text = String::from_utf8_lossy(text);
        let (_, behind_name) = text.rsplit_once(')').ok_or(MalformedProcFile("comm"))?;
        // proc(5) counts from 1, and the state, the first here, is its third.
        let word = |number: usize| behind_name.split_ascii_whitespace().nth(number - 3);
        let field = |number: usize, name| {
            let value: Option<u64> = word(number).and_then(|word| word.parse().ok());
            value.ok_or(MalformedProcFile(name))
        };
        let number = |number: usize| word(number)?.parse().ok();
        Ok(Self {
            is_zombie: word(3) == Some("Z"),
            parent: field(4, "ppid")? as u32,
            group: field(5, "pgrp")? as u32,
            flags: field(9, "flags")?,
            start_time: field(22, "starttime")?,
            exit_signal: number(38),
            exit_code: number(52),
        })
    }

    /// Whether it is a thread of the kernel's, which has no memory.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// Whether it was forked and has executed no program since.
    pub fn has_never_executed(&self) -> bool {
        self.flags & NEVER_EXECUTED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest() {
        let rest =
            "S 1 7 7 0 -1 4194368 1 0 0 0 1 0 0 0 20 0 1 0 4711 3000 12 18446744073709551615";
        for name in ["web", "", "a) R 9", ")))", "(x", "a b\nc"] {
            let stat = ProcStat::parse(format!("7 ({name}) {rest}\n").as_bytes()).unwrap();
            assert_eq!(stat.start_time, 4711, "{name:?}");
            assert!(stat.has_never_executed(), "{name:?}");
            assert!(!stat.is_kernel_thread(), "{name:?}");
        }
    }

    #[test]
    fn a_kernel_thread() {
        let text = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 3 0 0 0";
        let stat = ProcStat::parse(text).unwrap();
        assert!(stat.is_kernel_thread());
        assert_eq!(stat.start_time, 3);
    }

    #[test]
    fn a_cut_file_is_refused() {
        assert_eq!(ProcStat::parse(b""), Err(MalformedProcFile("comm")));
        assert_eq!(
            ProcStat::parse(b"7 (web) S 1 7"),
            Err(MalformedProcFile("flags"))
        );
    }

    #[test]
    fn an_ended_process() {
        let mut fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        fields[0] = "Z".to_owned();
        let stat = ProcStat::parse(format!("7 (web) {}", fields.join(" ")).as_bytes()).unwrap();
        assert!(stat.is_zombie);
        assert_eq!((stat.parent, stat.group), (4, 5));
        assert_eq!((stat.exit_signal, stat.exit_code), (Some(38), Some(52)));
    }
}
