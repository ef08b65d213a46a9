//! Parser of /proc/PID/status (proc(5)).

use super::MalformedProcFile;
use crate::proc_dir::ProcDir;
use crate::refusal::Refusal;

/// Signals of faults, which the kernel forces upon the thread that has caused one.
pub const FAULT_SIGNALS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGTRAP,
    libc::SIGILL,
    libc::SIGFPE,
];

/// Fields of /proc/PID/status for a process, or of /proc/PID/task/TID/status for a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStatus {
    /// Name of the main thread, at most 15 bytes; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// State of the process, from `State`.
    pub state: ProcessState,
    /// Pid of the process that the thread belongs to.
    pub thread_group: u32,
    /// Pid of the parent; 0 if it is not visible in this pid namespace.
    pub parent: u32,
    /// Thread that traces the process; `None` if none does, or one outside of this pid namespace.
    pub tracer: Option<u32>,
    /// Real, effective, saved and file system user IDs.
    pub uids: [u32; 4],
    /// Real, effective, saved and file system group IDs.
    pub gids: [u32; 4],
    /// Pids in each pid namespace of the process, from the reader's to its own.
    pub ns_pids: Vec<u32>,
    /// Resident memory in bytes; 0 for a process without memory.
    pub resident: u64,
    /// Anonymous part of `resident` in bytes.
    pub resident_anonymous: u64,
    /// Mapped memory in bytes, current and peak; 0 for a process without memory.
    pub size: [u64; 2],
    /// Memory locked by mlock(2) or mlockall(2), in bytes.
    pub locked: u64,
    /// Memory pinned for devices and `io_uring(7)`, in bytes. A copy of the process gets pages of its own for it at
    /// once.
    pub pinned: u64,
    /// Number of threads.
    pub threads: u32,
    /// Permitted and effective capabilities, as bits of capabilities(7).
    pub capabilities: [u64; 2],
    /// Signals that have handlers, signal(7): bit 0 is signal 1.
    pub caught: u64,
    /// Signals that wait for delivery to the thread or to its process, as bits like `caught`. Not all of them are in a
    /// queue, which may be full.
    pub pending: u64,
    /// Seccomp mode of the thread.
    pub seccomp: SeccompMode,
    /// Whether the processor checks each return against a shadow stack (CET, Linux 6.6).
    pub has_shadow_stack: bool,
}

/// State of a process (`man 5 proc`, State).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Running, waiting or idle.
    Alive,
    /// Stopped by SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU.
    Stopped,
    /// Stopped by a tracer.
    Traced,
    /// Ended, and its parent has not waited for it.
    Zombie,
}

/// Filtering of system calls (seccomp(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeccompMode {
    /// No filtering.
    Off,
    /// Only read, write, `_exit` and sigreturn are allowed.
    Strict,
    /// Filtered by BPF programs that the process installed.
    Filter,
}

impl ProcStatus {
    /// Reads the status of a thread or process from /proc/TID, which exists for every thread.
    ///
    /// # Errors
    /// `NoSuchProcess`: there is no such thread; `Unreadable`: the file cannot be read or parsed.
    pub fn read_thread(thread: u32) -> Result<Self, Refusal> {
        ProcDir::for_pid(thread).parse_file("status", Self::parse)
    }

    /// Returns the pid of the process that a thread belongs to; `thread` itself if it has ended.
    pub(crate) fn process_of_thread(thread: u32) -> u32 {
        Self::read_thread(thread).map_or(thread, |status| status.thread_group)
    }

    /// Parses the text of /proc/PID/status.
    ///
    /// # Errors
    /// A field is missing that every Linux since 4.11 writes.
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
            uids: fields.four_numbers("Uid")?,
            gids: fields.four_numbers("Gid")?,
            ns_pids: fields.numbers("NSpid")?,
            resident: fields.amount_in_bytes("VmRSS"),
            resident_anonymous: fields.amount_in_bytes("RssAnon"),
            size: [
                fields.amount_in_bytes("VmSize"),
                fields.amount_in_bytes("VmPeak"),
            ],
            locked: fields.amount_in_bytes("VmLck"),
            pinned: fields.amount_in_bytes("VmPin"),
            threads: fields.number("Threads")?,
            capabilities: [fields.hex_mask("CapPrm")?, fields.hex_mask("CapEff")?],
            caught: fields.hex_mask("SigCgt")?,
            pending: fields.hex_mask("SigPnd")? | fields.hex_mask("ShdPnd")?,
            // A kernel without seccomp writes no such line.
            seccomp: match fields.text("Seccomp") {
                Err(_) | Ok("0") => SeccompMode::Off,
                Ok("1") => SeccompMode::Strict,
                // 3: a filter is about to end the thread (`SECCOMP_MODE_DEAD` of the kernel).
                Ok(_) => SeccompMode::Filter,
            },
            has_shadow_stack: fields
                .text("x86_Thread_features")
                .is_ok_and(|features| features.split(' ').any(|each| each == "shstk")),
        })
    }

    /// Returns whether one of [`FAULT_SIGNALS`] waits for delivery. ptrace(2) may stop a thread between the fault and
    /// the delivery. If such a thread made calls for memprof, the signal's handler would see the address of their code
    /// as that of the fault. A fault signal that the program blocks may end the process once it is unblocked.
    pub fn has_pending_fault(&self) -> bool {
        let mut faults = FAULT_SIGNALS.iter();
        faults.any(|signal| self.pending >> (signal - 1) & 1 != 0)
    }
}

/// Text of a status file, with access to its fields by name.
struct StatusFields<'a>(&'a str);

impl<'a> StatusFields<'a> {
    /// Returns the text after the field's name and colon, without blanks around it. Fails if there is no such line.
    fn text(&self, name: &'static str) -> Result<&'a str, MalformedProcFile> {
        let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
        let value = self.0.lines().find_map(value);
        Ok(value.ok_or(MalformedProcFile(name))?.trim())
    }

    /// Returns the value of a decimal field. Fails if it is missing or malformed.
    fn number(&self, name: &'static str) -> Result<u32, MalformedProcFile> {
        self.text(name)?
            .parse()
            .map_err(|_| MalformedProcFile(name))
    }

    /// Returns the values of a field with several decimal numbers. Fails if the field is missing or a number malformed.
    fn numbers(&self, name: &'static str) -> Result<Vec<u32>, MalformedProcFile> {
        let words = self.text(name)?.split_ascii_whitespace();
        let numbers = words.map(|word| word.parse().map_err(|_| MalformedProcFile(name)));
        numbers.collect()
    }

    /// Returns the values of `Uid` or `Gid`: real, effective, saved, file system. Fails if they are missing or
    /// malformed.
    fn four_numbers(&self, name: &'static str) -> Result<[u32; 4], MalformedProcFile> {
        let numbers = self.numbers(name)?;
        numbers.try_into().map_err(|_| MalformedProcFile(name))
    }

    /// Returns the value of a hexadecimal field. Fails if it is missing or malformed.
    fn hex_mask(&self, name: &'static str) -> Result<u64, MalformedProcFile> {
        u64::from_str_radix(self.text(name)?, 16).map_err(|_| MalformedProcFile(name))
    }

    /// Returns the value of a field in kB, converted to bytes. 0 if the field is malformed or missing, as for kernel
    /// threads and zombies.
    fn amount_in_bytes(&self, name: &'static str) -> u64 {
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
    fn own_status_is_parsed() {
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
    fn thread_has_its_process() {
        let process = || {
            let thread = nix::unistd::gettid().as_raw().cast_unsigned();
            (thread, ProcStatus::process_of_thread(thread))
        };
        let (thread, found) = std::thread::spawn(process).join().unwrap();
        assert_eq!(found, std::process::id());
        assert_ne!(thread, found);
        let ended = u32::MAX >> 2;
        assert_eq!(ProcStatus::process_of_thread(ended), ended);
    }

    #[test]
    fn states_and_seccomp_modes_are_parsed() {
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let with = |name: &str, value: &str| {
            let start = own.find(&format!("\n{name}:")).unwrap() + 1;
            let end = start + own[start..].find('\n').unwrap();
            let text = format!("{}{name}:\t{value}{}", &own[..start], &own[end..]);
            ProcStatus::parse(text.as_bytes()).unwrap()
        };
        for (name, mask, expected) in [
            ("SigPnd", "0000000000000400", true),
            ("ShdPnd", "0000000000000010", true),
            ("ShdPnd", "0000000000000001", false),
        ] {
            assert_eq!(with(name, mask).has_pending_fault(), expected, "{mask}");
        }
        let state = |text: &str| with("State", text).state;
        assert_eq!(state("T (stopped)"), ProcessState::Stopped);
        assert_eq!(state("t (tracing stop)"), ProcessState::Traced);
        assert_eq!(state("Z (zombie)"), ProcessState::Zombie);
        assert_eq!(state("X (dead)"), ProcessState::Zombie);
        assert_eq!(state("D (disk sleep)"), ProcessState::Alive);
        assert_eq!(with("Seccomp", "1").seccomp, SeccompMode::Strict);
        assert_eq!(with("Seccomp", "2").seccomp, SeccompMode::Filter);
        assert_eq!(with("Seccomp", "3").seccomp, SeccompMode::Filter);
        assert_eq!(with("Seccomp", "0").seccomp, SeccompMode::Off);
        assert_eq!(with("Seccomp_filters", "1").seccomp, SeccompMode::Off);
        assert_eq!(with("TracerPid", "7").tracer, Some(7));
        assert_eq!(with("VmPin", "  204800 kB").pinned, 200 << 20);
        assert_eq!(with("NSpid", "4711\t12\t1").ns_pids, [4711, 12, 1]);
    }

    /// The line as arch/x86/kernel/cpu/proc.c of Linux 6.6 writes it: the processors of test machines may lack
    /// shadow stacks.
    #[test]
    fn shadow_stack_is_recognized() {
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
    fn missing_field_is_named() {
        let check = |text: &[u8], field| {
            assert_eq!(ProcStatus::parse(text), Err(MalformedProcFile(field)));
        };
        check(b"", "Name");
        check(b"Name:\tx\nState:\tS\nTgid:\t-1\n", "Tgid");
        // A name may contain text that looks like a field: the kernel escapes its line breaks.
        check(b"Name:\tTgid:\t7\\nTgid:\t7\xff\nState:\tS\n", "Tgid");
    }
}
