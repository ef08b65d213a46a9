//! /proc/PID/status.

use super::MalformedProcFile;
use crate::proc_dir::ProcDir;
use crate::refusal::Refusal;

/// What /proc/PID/status says of a process, or of one of its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStatus {
    /// The name of its main thread, at most 15 bytes; what is not UTF-8 is replaced.
    pub name: String,
    /// What it does.
    pub state: ProcessState,
    /// The process whose thread this is.
    pub thread_group: u32,
    /// The process that made it; 0 where that is in no namespace of ours.
    pub parent: u32,
    /// The thread that traces it.
    pub tracer: Option<u32>,
    /// Its real, effective, saved and file system user.
    pub uids: [u32; 4],
    /// Its real, effective, saved and file system group.
    pub gids: [u32; 4],
    /// Its pid in each pid namespace that it is in, ours first and its own last.
    pub ns_pids: Vec<u32>,
    /// Resident memory in bytes; 0 without any memory.
    pub resident: u64,
    /// Mapped memory in bytes, now and at most; 0 without any memory.
    pub size: [u64; 2],
    /// Memory that stays resident by mlock(2) or mlockall(2), in bytes.
    pub locked: u64,
    /// Number of threads.
    pub threads: u32,
    /// Its permitted and its effective capabilities, bits of capabilities(7).
    pub capabilities: [u64; 2],
    /// The signals for which it has handlers, signal(7): bit 0 for signal 1.
    pub caught: u64,
    /// Whether its system calls are filtered.
    pub seccomp: SeccompMode,
    /// Whether the processor compares each return with a second stack (CET, Linux 6.6).
    pub has_shadow_stack: bool,
}

/// What a process does (`man 5 proc`, State).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Runs, waits or idles.
    Alive,
    /// By SIGSTOP and its relatives.
    Stopped,
    /// By a tracer.
    Traced,
    /// Ended, and its parent has not asked for its exit status.
    Zombie,
}

/// How system calls are filtered (seccomp(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeccompMode {
    /// Not at all.
    Off,
    /// read, write, `_exit` and sigreturn only.
    Strict,
    /// By programs that the process has given the kernel.
    Filter,
}

impl ProcStatus {
    /// Reads the file of a thread.
    ///
    /// # Errors
    /// `NoSuchProcess`, `Unreadable`.
    pub fn read_thread(thread: u32) -> Result<Self, Refusal> {
        ProcDir::for_pid(thread).parse("status", Self::parse)
    }

    /// Parses the file.
    ///
    /// # Errors
    /// A field that every Linux since 4.11 has is not there.
    pub fn parse(text: &[u8]) -> Result<Self, MalformedProcFile> {
        let text = String::from_utf8_lossy(text);
        let fields = StatusFields(&text);
        Ok(Self {
            name: fields.text("Name")?.to_owned(),
            state: match fields.text("State")?.chars().next() {
                Some('T') => ProcessState::Stopped,
                Some('t') => ProcessState::Traced,
                Some('Z' | 'X' | 'x') => ProcessState::Zombie,
                _ => ProcessState::Alive,
            },
            thread_group: fields.number("Tgid")?,
            parent: fields.number("PPid")?,
            tracer: Some(fields.number("TracerPid")?).filter(|pid| *pid != 0),
            uids: fields.four("Uid")?,
            gids: fields.four("Gid")?,
            ns_pids: fields.numbers("NSpid")?,
            resident: fields.kibibytes("VmRSS"),
            size: [fields.kibibytes("VmSize"), fields.kibibytes("VmPeak")],
            locked: fields.kibibytes("VmLck"),
            threads: fields.number("Threads")?,
            capabilities: [fields.bits("CapPrm")?, fields.bits("CapEff")?],
            caught: fields.bits("SigCgt")?,
            // A kernel without seccomp has no such line.
            seccomp: match fields.text("Seccomp") {
                Ok("1") => SeccompMode::Strict,
                Ok("2") => SeccompMode::Filter,
                _ => SeccompMode::Off,
            },
            has_shadow_stack: fields
                .text("x86_Thread_features")
                .is_ok_and(|features| features.split(' ').any(|each| each == "shstk")),
        })
    }
}

struct StatusFields<'a>(&'a str);

impl<'a> StatusFields<'a> {
    fn text(&self, name: &'static str) -> Result<&'a str, MalformedProcFile> {
        let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
        let value = self.0.lines().find_map(value);
        Ok(value.ok_or(MalformedProcFile(name))?.trim())
    }

    fn number(&self, name: &'static str) -> Result<u32, MalformedProcFile> {
        self.text(name)?
            .parse()
            .map_err(|_| MalformedProcFile(name))
    }

    fn numbers(&self, name: &'static str) -> Result<Vec<u32>, MalformedProcFile> {
        let words = self.text(name)?.split_ascii_whitespace();
        let numbers = words.map(|word| word.parse().map_err(|_| MalformedProcFile(name)));
        numbers.collect()
    }

    fn four(&self, name: &'static str) -> Result<[u32; 4], MalformedProcFile> {
        let numbers = self.numbers(name)?;
        numbers.try_into().map_err(|_| MalformedProcFile(name))
    }

    fn bits(&self, name: &'static str) -> Result<u64, MalformedProcFile> {
        u64::from_str_radix(self.text(name)?, 16).map_err(|_| MalformedProcFile(name))
    }

    /// A kernel thread and a zombie have no memory, and no such line.
    fn kibibytes(&self, name: &'static str) -> u64 {
        let number = self.text(name).ok().and_then(|value| {
            let number = value.strip_suffix("kB")?;
            number.trim_end().parse::<u64>().ok()
        });
        number.unwrap_or(0) << 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_status() {
        let text = std::fs::read("/proc/self/status").unwrap();
        let own = ProcStatus::parse(&text).unwrap();
        assert_eq!(own.thread_group, std::process::id());
        assert_eq!(own.ns_pids[0], std::process::id());
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert_eq!(own.uids[1], nix::unistd::geteuid().as_raw());
        assert_eq!(own.state, ProcessState::Alive);
        assert!(own.resident > 1 << 20, "{own:?}");
        assert!(own.size[1] >= own.size[0], "{own:?}");
    }

    #[test]
    fn states_and_modes() {
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let with = |name: &str, value: &str| {
            let start = own.find(&format!("\n{name}:")).unwrap() + 1;
            let end = start + own[start..].find('\n').unwrap();
            let text = format!("{}{name}:\t{value}{}", &own[..start], &own[end..]);
            ProcStatus::parse(text.as_bytes()).unwrap()
        };
        let state = |text: &str| with("State", text).state;
        assert_eq!(state("T (stopped)"), ProcessState::Stopped);
        assert_eq!(state("t (tracing stop)"), ProcessState::Traced);
        assert_eq!(state("Z (zombie)"), ProcessState::Zombie);
        assert_eq!(state("X (dead)"), ProcessState::Zombie);
        assert_eq!(state("D (disk sleep)"), ProcessState::Alive);
        assert_eq!(with("Seccomp", "1").seccomp, SeccompMode::Strict);
        assert_eq!(with("Seccomp", "2").seccomp, SeccompMode::Filter);
        assert_eq!(with("TracerPid", "7").tracer, Some(7));
        assert_eq!(with("NSpid", "4711\t12\t1").ns_pids, [4711, 12, 1]);
    }

    /// The line as arch/x86/kernel/cpu/proc.c of Linux 6.6 writes it: the processors of test machines may
    /// lack shadow stacks.
    #[test]
    fn a_shadow_stack() {
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = own
            .lines()
            .filter(|line| !line.starts_with("x86_Thread_features"));
        let own = own.collect::<Vec<_>>().join("\n");
        let check = |lines: &str, expected| {
            let status = ProcStatus::parse(format!("{own}\n{lines}\n").as_bytes()).unwrap();
            assert_eq!(status.has_shadow_stack, expected, "{lines}");
        };
        check("", false);
        check(
            "x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk wrss ",
            false,
        );
        check(
            "x86_Thread_features:\tshstk \nx86_Thread_features_locked:\tshstk wrss ",
            true,
        );
        check(
            "x86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\t",
            true,
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let check = |text: &[u8], field| {
            assert_eq!(ProcStatus::parse(text), Err(MalformedProcFile(field)));
        };
        check(b"", "Name");
        check(b"Name:\tx\nState:\tS\nTgid:\t-1\n", "Tgid");
        // A name is anything, also what looks like a field: its line breaks are escaped.
        check(b"Name:\tTgid:\t7\\nTgid:\t7\xff\nState:\tS\n", "Tgid");
    }
}
