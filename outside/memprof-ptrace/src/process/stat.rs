//! Parser of /proc/PID/stat (proc(5)).

use super::MalformedProcFile;

/// `PF_FORKNOEXEC` and `PF_KTHREAD` of the kernel's include/linux/sched.h, two task flags whose values have not
/// changed since Linux 2.6.
const FORKED_WITHOUT_EXEC_FLAG: u64 = 0x40;
const KERNEL_THREAD_FLAG: u64 = 0x20_0000;

/// Fields of /proc/PID/stat that no other file of /proc has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcStat {
    flags: u64,
    /// Whether the process or thread has ended and nothing has waited for it yet.
    pub is_zombie: bool,
    /// Pid of the parent, or of the process that adopted it; 0 if that is not visible in this pid namespace.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Signal that the parent gets when the process ends, 0 for none; -1 for a thread other than the main thread.
    /// `None` on kernels before 2.6.
    pub exit_signal: Option<i32>,
    /// Wait status as in wait(2); 0 before the end, and if this user may not trace the process.
    pub exit_code: Option<i32>,
    /// Start time in clock ticks since boot. Together with the pid it identifies one process.
    pub start_time: u64,
}

impl ProcStat {
    /// Parses the text of /proc/PID/stat.
    ///
    /// # Errors
    /// A field is missing that Linux 2.6 writes.
    pub fn parse(text: &[u8]) -> Result<Self, MalformedProcFile> {
        // The name, in parentheses, may hold any byte; no field after it has a parenthesis.
        let text = String::from_utf8_lossy(text);
        let (_, after_name) = text.rsplit_once(')').ok_or(MalformedProcFile("comm"))?;
        // proc(5) counts from 1. The first word after the name is the state, field 3.
        let word = |number: usize| after_name.split_ascii_whitespace().nth(number - 3);
        let field = |number: usize, name| {
            let value: Option<u64> = word(number).and_then(|word| word.parse().ok());
            value.ok_or(MalformedProcFile(name))
        };
        let number = |number: usize| word(number)?.parse().ok();
        Ok(Self {
            is_zombie: matches!(word(3), Some("Z" | "X" | "x")),
            parent: field(4, "ppid")? as u32,
            group: field(5, "pgrp")? as u32,
            flags: field(9, "flags")?,
            start_time: field(22, "starttime")?,
            exit_signal: number(38),
            exit_code: number(52),
        })
    }

    /// Returns whether the process is a kernel thread, which has no memory.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD_FLAG != 0
    }

    /// Returns whether the process was forked and has not called execve(2) since.
    pub fn has_never_executed(&self) -> bool {
        self.flags & FORKED_WITHOUT_EXEC_FLAG != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_skipped() {
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
    fn kernel_thread_is_recognized() {
        let text = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 3 0 0 0";
        let stat = ProcStat::parse(text).unwrap();
        assert!(stat.is_kernel_thread());
        assert_eq!(stat.start_time, 3);
    }

    #[test]
    fn truncated_file_is_rejected() {
        assert_eq!(ProcStat::parse(b""), Err(MalformedProcFile("comm")));
        assert_eq!(
            ProcStat::parse(b"7 (web) S 1 7"),
            Err(MalformedProcFile("flags"))
        );
    }

    #[test]
    fn zombie_has_exit_status() {
        let mut fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        fields[0] = "Z".to_owned();
        let stat = ProcStat::parse(format!("7 (web) {}", fields.join(" ")).as_bytes()).unwrap();
        assert!(stat.is_zombie);
        assert_eq!((stat.parent, stat.group), (4, 5));
        assert_eq!((stat.exit_signal, stat.exit_code), (Some(38), Some(52)));
    }
}
