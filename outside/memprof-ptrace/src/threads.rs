//! Lists the threads of a process, with the system call in which each of them sleeps.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// A thread, from /proc/PID/task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread ID, as in gettid(2).
    pub tid: u32,
    /// System call in which it sleeps; `None` while it runs, or sleeps outside a call.
    pub call: Option<WaitingSyscall>,
    /// Whether it runs or is ready to run.
    pub is_runnable: bool,
}

/// A system call in which a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingSyscall {
    /// Number of the call, as in `asm/unistd_64.h`.
    pub number: i64,
    /// Arguments of the call.
    pub arguments: [u64; 6],
    /// Stack pointer.
    pub stack: u64,
    /// Address after the `syscall` instruction.
    pub instruction: u64,
}

/// Number of threads that are listed even beyond the time limit.
const MIN_THREADS: usize = 64;

/// Lists the threads of a process, from index `first` of /proc/PID/task to its end and then from its start, until
/// `time_limit` is over; at least 64 threads, even if that takes longer. The time is limited because reading the call
/// of a runnable thread takes a clock tick of the kernel, and a busy process has thousands of such threads.
///
/// # Errors
/// The process has ended, or this user may not inspect it.
pub fn list_threads(pid: u32, first: usize, time_limit: Duration) -> io::Result<Vec<Thread>> {
    let start = Instant::now();
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut tids: Vec<u32> = tids.collect();
    let count = tids.len().max(1);
    tids.rotate_left(first % count);
    let thread = |tid| {
        let line = read_syscall_line(pid, tid);
        Thread {
            tid,
            call: line.as_deref().and_then(parse_syscall_line),
            is_runnable: line.is_some_and(|line| line.trim_end() == RUNNING),
        }
    };
    let is_in_time =
        |(index, _): &(usize, u32)| *index < MIN_THREADS || start.elapsed() < time_limit;
    let tids = tids.into_iter().enumerate().take_while(is_in_time);
    Ok(tids.map(|(_, tid)| thread(tid)).collect())
}

/// Returns the system call in which a thread sleeps. `None` if the thread runs, sleeps outside of a call or has ended,
/// or if this user may not trace it.
pub fn waiting_syscall(pid: u32, tid: u32) -> Option<WaitingSyscall> {
    parse_syscall_line(&read_syscall_line(pid, tid)?)
}

/// Reads /proc/PID/task/TID/syscall; `None` if the thread has ended or this user may not trace it.
fn read_syscall_line(pid: u32, tid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()
}

/// Contents of `syscall` for a thread that runs.
const RUNNING: &str = "running";

/// Parses a line of proc(5)'s `syscall`. `232 0x4 0x7ffd 0x20 0xffffffff 0x0 0x0 0x7ffd1f28 0x7f5c0e1c` are number,
/// arguments, stack pointer and instruction pointer; `running` and `-1 0x7ffd1f28 0x7f5c0e1c` (asleep outside a
/// call) give `None`.
fn parse_syscall_line(line: &str) -> Option<WaitingSyscall> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let mut next = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = next()?;
    }
    Some(WaitingSyscall {
        number,
        arguments,
        stack: next()?,
        instruction: next()?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn syscall_lines_are_parsed() {
        let call =
            parse_syscall_line("232 0x4 0x7ffd 0x20 0xffffffff 0x0 0x5 0x7ffd1f28 0x7f5c0e1c\n");
        let expected = WaitingSyscall {
            number: 232,
            arguments: [4, 0x7ffd, 0x20, 0xffff_ffff, 0, 5],
            stack: 0x7ffd_1f28,
            instruction: 0x7f5c_0e1c,
        };
        assert_eq!(call, Some(expected));
        assert_eq!(parse_syscall_line(RUNNING), None);
        assert_eq!(parse_syscall_line("-1 0x7ffd1f28 0x7f5c0e1c\n"), None);
    }

    #[test]
    fn sleeping_thread_has_its_call() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let waits = std::thread::spawn(move || {
            std::io::Read::read(&mut { reader }, &mut [0]).unwrap();
        });
        let own = std::process::id();
        let reads = |thread: &Thread| {
            thread
                .call
                .is_some_and(|call| call.number == libc::SYS_read)
        };
        while !list_threads(own, 0, Duration::MAX)
            .unwrap()
            .iter()
            .any(reads)
        {
            std::thread::yield_now();
        }
        drop(_writer);
        waits.join().unwrap();
    }

    #[test]
    fn thousands_of_threads_are_listed_in_parts() {
        let mut command = std::process::Command::new("perl");
        let script = "$| = 1; threads->create(sub { sleep 3600 }) for 1 .. 99; print 1; sleep 3600";
        let command = command.args(["-Mthreads=stack_size,65536", "-e", script]);
        let mut child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut [0]).unwrap();
        let list = |first, time_limit| {
            let threads = list_threads(child.id(), first, time_limit).unwrap();
            threads.iter().map(|thread| thread.tid).collect::<Vec<_>>()
        };
        let all = list(0, Duration::MAX);
        assert_eq!((all.len(), all[0]), (100, child.id()));
        assert_eq!(list(0, Duration::ZERO), all[..MIN_THREADS]);
        let rest = list(MIN_THREADS, Duration::ZERO);
        assert_eq!(rest[..36], all[64..]);
        assert_eq!(rest[36..], all[..28]);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn running_thread_has_no_call() {
        static ENDED: AtomicBool = AtomicBool::new(false);
        let (sender, receiver) = mpsc::channel();
        let spins = std::thread::spawn(move || {
            sender
                .send(nix::unistd::gettid().as_raw().cast_unsigned())
                .unwrap();
            while !ENDED.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let tid = receiver.recv().unwrap();
        let runs =
            |thread: &Thread| thread.tid == tid && thread.is_runnable && thread.call.is_none();
        let own = std::process::id();
        while !list_threads(own, 0, Duration::MAX)
            .unwrap()
            .iter()
            .any(runs)
        {
            std::thread::yield_now();
        }
        ENDED.store(true, Ordering::Relaxed);
        spins.join().unwrap();
    }
}
