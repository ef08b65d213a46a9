//! Filters of seccomp: what is read of them, and what they answer, compared with the kernel.

use std::process::Command;

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_DIV, BPF_IMM, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT,
    BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MUL,
    BPF_NEG, BPF_OR, BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W, BPF_X,
    BPF_XOR,
};
use memprof_ptrace::Refusal;
use memprof_ptrace::seccomp::{
    BpfInstruction, FilterAction, SeccompData, evaluate_filters, read_filters, require_plugin_calls,
};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::root::skip_without_root;
use crate::target::Target;

fn plain(code: u32, operand: u32) -> BpfInstruction {
    jump(code, operand, 0, 0)
}

fn jump(code: u32, operand: u32, if_true: u8, if_false: u8) -> BpfInstruction {
    BpfInstruction {
        code: code as u16,
        if_true,
        if_false,
        operand,
    }
}

/// Random numbers that are equal in each run (xorshift64, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_of<T: Copy>(&mut self, those: &[T]) -> T {
        those[self.below(those.len() as u64) as usize]
    }

    /// Returns a small number, a power of two, the largest, or any.
    fn word(&mut self) -> u32 {
        match self.below(5) {
            0 => self.below(4) as u32,
            1 => 1 << self.below(32),
            2 => u32::MAX - self.below(3) as u32,
            3 => libc::SYS_getppid as u32,
            _ => self.next() as u32,
        }
    }

    fn action(&mut self) -> u32 {
        let actions = [
            libc::SECCOMP_RET_KILL_PROCESS,
            libc::SECCOMP_RET_KILL_THREAD,
            libc::SECCOMP_RET_TRAP,
            libc::SECCOMP_RET_ERRNO,
            libc::SECCOMP_RET_ERRNO,
            libc::SECCOMP_RET_TRACE,
            libc::SECCOMP_RET_ALLOW,
            libc::SECCOMP_RET_ALLOW,
            libc::SECCOMP_RET_ALLOW,
            libc::SECCOMP_RET_ALLOW,
            0x1234_0000,
        ];
        self.one_of(&actions) | self.below(1 << 16) as u32
    }

    /// Builds a filter that allows all calls but getppid, for which it calculates.
    fn filter(&mut self) -> Vec<BpfInstruction> {
        const MEMORY: u64 = 4;
        let mut filter = vec![
            plain(BPF_LD | BPF_W | BPF_ABS, 0),
            jump(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_getppid as u32, 1, 0),
            plain(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        // The kernel rejects a filter that may read memory which was not written.
        for at in 0..MEMORY as u32 {
            filter.push(plain(BPF_ST, at));
        }
        let length = 1 + self.below(60);
        for at in 0..length {
            let instruction = self.instruction(MEMORY, length - at - 1);
            filter.push(instruction);
        }
        // The result of the calculation becomes the errno, over the runs all of its bits.
        filter.push(plain(BPF_ALU | BPF_RSH | BPF_K, self.below(24) as u32));
        filter.push(plain(BPF_ALU | BPF_AND | BPF_K, 0xfff));
        filter.push(plain(BPF_ALU | BPF_OR | BPF_K, libc::SECCOMP_RET_ERRNO));
        filter.push(plain(BPF_RET | BPF_A, 0));
        filter
    }

    fn instruction(&mut self, memory: u64, left: u64) -> BpfInstruction {
        let word = self.word();
        let at = self.below(memory) as u32;
        match self.below(12) {
            0 | 1 => {
                // Offsets 8 and 12 are the address of the call.
                let offset = self.one_of(&[0, 4, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60]);
                plain(BPF_LD | BPF_W | BPF_ABS, offset)
            }
            2 => self.one_of(&[
                plain(BPF_LD | BPF_IMM, word),
                plain(BPF_LDX | BPF_IMM, word),
                plain(BPF_LD | BPF_W | BPF_LEN, 0),
                plain(BPF_LDX | BPF_W | BPF_LEN, 0),
                plain(BPF_LD | BPF_MEM, at),
                plain(BPF_LDX | BPF_MEM, at),
            ]),
            3 => self.one_of(&[
                plain(BPF_ST, at),
                plain(BPF_STX, at),
                plain(BPF_MISC | BPF_TAX, 0),
                plain(BPF_MISC | BPF_TXA, 0),
                plain(BPF_ALU | BPF_NEG, 0),
            ]),
            4..=8 => self.calculation(word),
            9 if self.below(4) == 0 => plain(BPF_RET | BPF_K, self.action()),
            _ => {
                let near = (left + 1).min(8);
                let skips = [self.below(near) as u8, self.below(near) as u8];
                let condition = self.one_of(&[BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET, BPF_JA]);
                let source = self.one_of(&[BPF_K, BPF_X]);
                match condition {
                    BPF_JA => plain(BPF_JMP | BPF_JA, u32::from(skips[0])),
                    _ => jump(BPF_JMP | condition | source, word, skips[0], skips[1]),
                }
            }
        }
    }

    fn calculation(&mut self, word: u32) -> BpfInstruction {
        let operations = [
            BPF_ADD, BPF_SUB, BPF_MUL, BPF_DIV, BPF_AND, BPF_OR, BPF_XOR, BPF_LSH, BPF_RSH,
        ];
        let operation = self.one_of(&operations);
        let source = self.one_of(&[BPF_K, BPF_X]);
        // The kernel rejects these constants, at which a processor would fault.
        let operand = match operation {
            BPF_DIV => word.max(1),
            BPF_LSH | BPF_RSH => word % 32,
            _ => word,
        };
        plain(BPF_ALU | operation | source, operand)
    }
}

/// Calls getppid under these filters; returns the kernel's action.
fn kernel_action(
    judge: &mut Target,
    filters: &[Vec<BpfInstruction>],
    arguments: [u64; 6],
) -> FilterAction {
    let mut question = Vec::new();
    for at in 0..4 {
        let length = filters.get(at).map_or(0, Vec::len) as u16;
        question.extend(length.to_ne_bytes());
    }
    for instruction in filters.iter().flatten() {
        question.extend(instruction.code.to_ne_bytes());
        question.extend([instruction.if_true, instruction.if_false]);
        question.extend(instruction.operand.to_ne_bytes());
    }
    question.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
    judge.write(&question);
    let line = judge.line();
    match line.split_once(' ') {
        Some(("error", number)) => FilterAction::Error(number.trim().parse().unwrap()),
        _ if line == "killed\n" => FilterAction::Killed,
        _ if line == "allowed\n" => FilterAction::Allowed,
        _ => panic!("{line:?}: {filters:x?}"),
    }
}

#[test]
fn kernel_and_interpreter_agree() {
    const CASES: usize = 3000;
    let mut judge = Target::start(Target::command().arg("judge"));
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
    let mut seen = [0; 3];
    for case in 0..CASES {
        let count = 1 + numbers.below(3);
        let filters: Vec<_> = (0..count).map(|_| numbers.filter()).collect();
        let arguments: [u64; 6] = std::array::from_fn(|_| match numbers.below(2) {
            0 => u64::from(numbers.word()),
            _ => numbers.next(),
        });
        let call = SeccompData {
            number: libc::SYS_getppid as u32,
            arguments,
        };
        // A signal without a handler ends the process too.
        let expected = match evaluate_filters(&filters, &call).unwrap() {
            FilterAction::Signal => FilterAction::Killed,
            answer => answer,
        };
        let found = kernel_action(&mut judge, &filters, arguments);
        assert_eq!(found, expected, "case {case}: {filters:x?} {arguments:x?}");
        seen[match found {
            FilterAction::Killed => 0,
            FilterAction::Allowed => 1,
            _ => 2,
        }] += 1;
    }
    // Each action occurred, and each errno is certain.
    assert!(seen.iter().all(|count| *count > CASES / 50), "{seen:?}");
}

/// Stops a process, calls `look`, and lets it continue.
fn while_stopped<T>(target: &Target, look: impl FnOnce() -> T) -> T {
    let pid = Pid::from_raw(target.pid.cast_signed());
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(pid).unwrap();
    waitpid(pid, None).unwrap();
    let seen = look();
    ptrace::detach(pid, None).unwrap();
    seen
}

#[test]
fn filters_of_a_stopped_thread_are_read() {
    if skip_without_root("filters::filters_of_a_stopped_thread_are_read") {
        return;
    }
    let check = |call: libc::c_long, answer: u32, words: Option<&str>| {
        let mut target = Target::new(&["filter", &call.to_string(), &answer.to_string()]);
        let found = while_stopped(&target, || require_plugin_calls(target.pid));
        let found = found.map_err(|refusal| refusal.to_string());
        let words = words.map(|call| format!("its seccomp filter forbids {call}"));
        assert_eq!(found.err(), words, "{call} {answer:#x}");
        target.assert_unharmed();
    };
    let errno = |errno: Errno| libc::SECCOMP_RET_ERRNO | errno as u32;
    check(libc::SYS_reboot, libc::SECCOMP_RET_KILL_PROCESS, None);
    check(
        libc::SYS_clone3,
        libc::SECCOMP_RET_KILL_PROCESS,
        Some("clone3"),
    );
    check(
        libc::SYS_clone3,
        libc::SECCOMP_RET_KILL_THREAD,
        Some("clone3"),
    );
    check(libc::SYS_clone3, errno(Errno::EPERM), Some("clone3"));
    check(libc::SYS_clone3, errno(Errno::ENOSYS), None);
    check(libc::SYS_socket, errno(Errno::EPERM), Some("socket"));
    check(libc::SYS_prctl, errno(Errno::EPERM), None);
    check(libc::SYS_rseq, errno(Errno::EPERM), Some("rseq"));
    check(libc::SYS_memfd_create, errno(Errno::EPERM), None);
}

/// A program that runs under such a filter from its start, as in old container runtimes, goes without rseq(2), and
/// so do its new threads.
#[test]
fn rseq_is_unused_by_a_thread_without_it() {
    if skip_without_root("filters::rseq_is_unused_by_a_thread_without_it") {
        return;
    }
    let mut command = Target::command();
    let mut target = Target::from_command(command.arg("filter-and-execute").args([
        libc::SYS_rseq.to_string(),
        (libc::SECCOMP_RET_ERRNO | Errno::EPERM as u32).to_string(),
    ]));
    assert_eq!(
        while_stopped(&target, || require_plugin_calls(target.pid)),
        Ok(())
    );
    target.assert_unharmed();
}

#[test]
fn filters_are_returned_as_installed() {
    if skip_without_root("filters::filters_are_returned_as_installed") {
        return;
    }
    let call = libc::SYS_reboot as u32;
    let value = libc::SECCOMP_RET_KILL_PROCESS;
    let target = Target::new(&["filter", &call.to_string(), &value.to_string()]);
    let expected = vec![
        plain(BPF_LD | BPF_W | BPF_ABS, 0),
        jump(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        plain(BPF_RET | BPF_K, value),
        plain(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let found = while_stopped(&target, || read_filters(target.pid));
    assert_eq!(found, Ok(vec![expected]));
    // A thread that is not stopped cannot be read.
    assert_eq!(read_filters(target.pid), Err(Errno::ESRCH));
}

#[test]
fn process_without_filter_passes() {
    let mut target = Target::new(&["serve"]);
    let found = while_stopped(&target, || require_plugin_calls(target.pid));
    assert_eq!(found, Ok(()));
    target.assert_unharmed();
    drop(target);
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert_eq!(
        require_plugin_calls(child.id()),
        Err(Refusal::NoSuchProcess)
    );
}
