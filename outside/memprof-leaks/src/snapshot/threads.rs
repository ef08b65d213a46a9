//! Stopped threads of a process.

use std::fs;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use memprof_ptrace::Refusal;
use memprof_ptrace::exit_stop::ExitingProgram;
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_ptrace::remote_call::SavedContext;
use memprof_ptrace::seccomp::{require_snapshot_calls, rseq_area};
use memprof_ptrace::stop::{StopError, StoppedThread};
use memprof_ptrace::stop_all::{self, StopAllError};
use memprof_ptrace::syscall_restart::{self, CALL_LENGTH, would_see_eintr};
use memprof_ptrace::threads::{Thread, WaitingSyscall, list_threads};
use memprof_ptrace::xstate::XState;

use crate::c_library::{has_file_name_prefix, is_c_library};
use crate::error::Error;

/// Value of `cs` for 64-bit code.
const CODE_SEGMENT_64: u64 = 0x33;
/// Value of `orig_rax` in a thread that is in no system call.
const NO_CALL: i64 = -1;
/// Time for all ptrace(2) calls on a busy machine, in addition to the limit.
const STOP_TIMEOUT: Duration = Duration::from_millis(50);
/// Time to list the threads that wait for children, and the most that are stopped for a moment.
const LIST_TIME_LIMIT: Duration = Duration::from_millis(50);
const MAX_REAPERS: usize = 16;

/// Code of glibc's files, which make system calls for a program. `loaded` are the start addresses of the libraries in
/// the loader's list. Other files with these names do not count: a program may map them, and run code of its own there.
fn c_library_code_ranges(maps: &[u8], loaded: &[u64]) -> Vec<Range<u64>> {
    let makes_calls = |image: &Mapping<'_>| {
        loaded.contains(&image.range.start)
            && (is_c_library(image.path) || has_file_name_prefix(image.path, &[b"libpthread-2."]))
    };
    let images: Vec<_> = mappings(maps).filter(makes_calls).collect();
    let is_code = |mapping: &Mapping<'_>| {
        let mut files = images.iter().map(|image| (image.device, image.inode));
        mapping.is_executable() && files.any(|file| file == (mapping.device, mapping.inode))
    };
    let code = mappings(maps).filter(is_code);
    code.map(|mapping| mapping.range).collect()
}

/// Registers of a thread.
#[derive(Clone, Debug)]
pub struct Registers {
    /// Thread id (TID).
    pub tid: u32,
    /// Stack pointer.
    pub stack: u64,
    /// Address of the thread's control block (`fs_base`).
    pub control_block: u64,
    /// All general registers. Also the vector registers, unless the thread waits in a system call that the C
    /// library made.
    pub words: Vec<u64>,
    /// Address of the thread's area for rseq(2), and words of the signals that are queued for it, with the first thread
    /// also of those for the process.
    pub kernel_words: Vec<u64>,
}

/// Stopped thread, with the state in which it continues.
#[derive(Debug)]
pub(super) struct SnapshotThread {
    pub(super) tid: u32,
    registers: user_regs_struct,
    /// Registers with which the thread repeats its interrupted system call.
    restarted: Option<user_regs_struct>,
    state: XState,
    blocked: u64,
    kernel_words: Vec<u64>,
}

impl SnapshotThread {
    /// State to restore after a remote call.
    pub(super) fn saved_context(&self) -> SavedContext<'_> {
        SavedContext {
            registers: self.restarted.unwrap_or(self.registers),
            xstate: &self.state,
            blocked: self.blocked,
        }
    }
}

/// Stopped threads, which are resumed on drop.
#[derive(Debug)]
pub(super) struct SnapshotThreads {
    threads: Vec<(SnapshotThread, Option<StoppedThread>)>,
}

/// Stops all threads of a process. Blocks up to `limit` and [`STOP_TIMEOUT`].
///
/// # Errors
/// `StopTooLong`: a thread does not stop; `Refused`: the process has ended; `Io`: a thread or the memory cannot be
/// accessed. All threads are resumed then.
pub(super) fn stop_all(pid: u32, limit: Duration) -> Result<SnapshotThreads, Error> {
    let memory = Memory::open(pid).map_err(Error::with_action(format!("/proc/{pid}/mem")))?;
    let mut stopped = Vec::new();
    let all = stop_all::stop_all(pid, Instant::now() + limit + STOP_TIMEOUT, &mut stopped);
    let threads = read_thread_states(&memory, stopped);
    match all {
        Ok(()) => Ok(threads),
        Err(error) => {
            // The threads are resumed first: while they are traced, an examination would refuse the process.
            drop(threads);
            Err(match error {
                StopAllError::Unreadable(_) => super::process_gone_refusal(pid).into(),
                StopAllError::Thread(tid, error) => stop_error(tid, error, limit),
            })
        }
    }
}

/// Stops the threads that wait for children of any kind, or run and may do so next, up to [`MAX_REAPERS`], so that none
/// of them takes an ended copy for the program's own child. Also stops one other thread, the first that can be stopped,
/// because those may be unable to make calls. The result is empty if none can be stopped. Fails if the process has
/// ended.
pub(super) fn stop_reaping_threads(pid: u32) -> Result<SnapshotThreads, Error> {
    let memory = Memory::open(pid).map_err(Error::with_action(format!("/proc/{pid}/mem")))?;
    let stop = |tid| Some((tid, StoppedThread::stop(tid).ok()?));
    let listed = list_threads(pid, 0, LIST_TIME_LIMIT);
    let listed = listed.map_err(|_| super::process_gone_refusal(pid))?;
    let waits = |thread: &&Thread| thread.call.is_some_and(reaps_children_without_signal);
    let runs = |thread: &&Thread| thread.is_runnable;
    let reapers = listed.iter().filter(waits);
    let reapers = reapers.chain(listed.iter().filter(runs)).take(MAX_REAPERS);
    let mut stopped: Vec<_> = reapers.filter_map(|thread| stop(thread.tid)).collect();
    let is_stopped = |tid: u32| stopped.iter().any(|(stopped, _)| *stopped == tid);
    let mut others = list_tids(pid)?.into_iter().filter(|tid| !is_stopped(*tid));
    let other = others.find_map(stop);
    stopped.extend(other);
    Ok(read_thread_states(&memory, stopped))
}

/// Whether a call of wait4(2) or waitid(2) also reaps children whose end sends no signal.
fn reaps_children_without_signal(call: WaitingSyscall) -> bool {
    let options = match call.number {
        libc::SYS_wait4 => call.arguments[2],
        libc::SYS_waitid => call.arguments[3],
        _ => return false,
    };
    options as i32 & (libc::__WALL | libc::__WCLONE) != 0
}

/// Stops one thread of a process, and reads its state. Fails with `NoThread` if it has ended or does not stop in time,
/// and with `Io` if the memory of the process cannot be opened.
pub(super) fn stop_thread(pid: u32, tid: u32) -> Result<SnapshotThreads, Error> {
    let memory = Memory::open(pid).map_err(Error::with_action(format!("/proc/{pid}/mem")))?;
    let stopped = StoppedThread::stop(tid);
    let stopped = stopped.map_err(|_| Error::NoThread("the thread does not stop"))?;
    Ok(read_thread_states(&memory, vec![(tid, stopped)]))
}

/// Thread ids of a process. Fails if it has ended.
pub(super) fn list_tids(pid: u32) -> Result<Vec<u32>, Error> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.map_err(|_| super::process_gone_refusal(pid))?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

/// Error of a thread that could not be stopped: `Io` if the kernel refused to trace it, else `StopTooLong`.
fn stop_error(tid: u32, error: StopError, limit: Duration) -> Error {
    match error {
        StopError::Refused(code) => Error::Io {
            action: format!("failed to trace thread {tid}"),
            cause: io::Error::from_raw_os_error(code),
        },
        StopError::Ended | StopError::Uninterruptible => Error::StopTooLong { thread: tid, limit },
    }
}

/// Reads the registers, signal masks and queued signals of stopped threads. Skips threads that were killed meanwhile.
fn read_thread_states(memory: &Memory, stopped: Vec<(u32, StoppedThread)>) -> SnapshotThreads {
    let mut threads = Vec::with_capacity(stopped.len());
    for (tid, stopped) in stopped {
        let (Ok(registers), Ok(state), Ok(blocked)) =
            (stopped.registers(), stopped.xstate(), stopped.signal_mask())
        else {
            continue;
        };
        let kernel_words = read_kernel_words(&stopped, tid, threads.is_empty());
        let code = memory.read_array(registers.rip.wrapping_sub(CALL_LENGTH as u64));
        let restarted = code
            .ok()
            .and_then(|code| syscall_restart::restarted_registers(&registers, code));
        let thread = SnapshotThread {
            tid,
            registers,
            restarted,
            state,
            blocked,
            kernel_words,
        };
        threads.push((thread, Some(stopped)));
    }
    SnapshotThreads { threads }
}

/// Reads the words that the kernel has stored for a stopped thread: the address of its area for rseq(2), and those of
/// its queued signals, with the signals for the whole process if `with_process_signals`. Empty if the thread was
/// killed.
fn read_kernel_words(stopped: &StoppedThread, tid: u32, with_process_signals: bool) -> Vec<u64> {
    let mut words = stopped.queued_signals(false).unwrap_or_default();
    if with_process_signals {
        words.extend(stopped.queued_signals(true).unwrap_or_default());
    }
    words.extend(rseq_area(tid).ok().flatten());
    words
}

impl SnapshotThreads {
    /// Picks a thread for a remote call, and removes its guard: the first that waits in a system call which it can
    /// repeat, or else one that runs. `has_room` says whether a thread has memory for the call's frames.
    ///
    /// # Errors
    /// `NoThread`: no thread can make the call; `Refused`: a thread's seccomp filter forbids it.
    pub(super) fn pick_thread(
        &mut self,
        has_room: impl Fn(&SnapshotThread) -> bool,
    ) -> Result<(&SnapshotThread, StoppedThread), Error> {
        self.pick_thread_for(require_snapshot_calls, has_room)
    }

    /// Picks a thread as [`Self::pick_thread`] does, with the same errors, but for other calls: `require_calls` fails
    /// for a thread whose seccomp filter forbids them.
    pub(super) fn pick_thread_for(
        &mut self,
        require_calls: fn(u32) -> Result<(), Refusal>,
        has_room: impl Fn(&SnapshotThread) -> bool,
    ) -> Result<(&SnapshotThread, StoppedThread), Error> {
        let mut error =
            Error::NoThread("its threads take signals, or run on stacks of the program's own");
        let is_running =
            |thread: &SnapshotThread| thread.registers.orig_rax.cast_signed() == NO_CALL;
        for runs in [false, true] {
            for index in 0..self.threads.len() {
                let (thread, stopped) = &mut self.threads[index];
                let has_no_signal = stopped
                    .as_ref()
                    .is_some_and(|stopped| stopped.pending_signal().is_none());
                let can_repeat_call =
                    thread.registers.cs == CODE_SEGMENT_64 && thread.restarted.is_some();
                if !has_no_signal
                    || !can_repeat_call
                    || is_running(thread) != runs
                    || !has_room(thread)
                {
                    continue;
                }
                match require_calls(thread.tid) {
                    Ok(()) => {}
                    Err(refusal) => {
                        error = refusal.into();
                        continue;
                    }
                }
                let Some(stopped) = stopped.take() else {
                    continue;
                };
                return Ok((&self.threads[index].0, stopped));
            }
        }
        Err(error)
    }

    /// Resumes all threads, and returns their registers. `loaded` are the start addresses of the libraries in the
    /// loader's list.
    pub(super) fn resume_all(mut self, maps: &[u8], loaded: &[u64]) -> Vec<Registers> {
        self.resume_with_restart();
        let library = c_library_code_ranges(maps, loaded);
        self.threads
            .iter()
            .map(|(thread, _)| Registers {
                kernel_words: thread.kernel_words.clone(),
                ..Registers::from_thread_state(
                    thread.tid,
                    &thread.registers,
                    &thread.state,
                    &library,
                )
            })
            .collect()
    }

    /// Resumes all threads that are still stopped. Those that would see EINTR repeat their call; the others are resumed
    /// by the drop of their guards.
    fn resume_with_restart(&mut self) {
        for (thread, stopped) in &mut self.threads {
            let restarted = thread
                .restarted
                .filter(|_| would_see_eintr(&thread.registers));
            if let (Some(stopped), Some(restarted)) = (stopped.take(), restarted) {
                // This fails if the thread was killed.
                let _ = stopped.resume_with(&restarted);
            }
        }
    }
}

impl Drop for SnapshotThreads {
    fn drop(&mut self) {
        self.resume_with_restart();
    }
}

impl Registers {
    /// Reads the registers of a program's last thread, which is stopped in exit, and of the threads that its exit has
    /// ended. `loaded` are the start addresses of the libraries that its loader has loaded.
    pub(super) fn read_at_exit(
        exiting: &ExitingProgram,
        maps: &[u8],
        loaded: &[u64],
    ) -> io::Result<Vec<Self>> {
        let library = c_library_code_ranges(maps, loaded);
        let last = exiting.stopped_thread();
        let (registers, state) = (last.registers()?, last.xstate()?);
        let mut all = vec![Self {
            kernel_words: read_kernel_words(last, exiting.last_tid(), true),
            ..Self::from_thread_state(exiting.last_tid(), &registers, &state, &library)
        }];
        let killed = exiting.killed_threads().iter();
        all.extend(killed.map(|thread| {
            Self::from_thread_state(thread.tid, &thread.registers, &thread.xstate, &library)
        }));
        Ok(all)
    }

    /// Collects the registers of a thread that may contain pointers. Omits the vector registers if the thread waits
    /// in a system call in `library`, the code of glibc.
    fn from_thread_state(
        tid: u32,
        r: &user_regs_struct,
        state: &XState,
        library: &[Range<u64>],
    ) -> Self {
        let mut words = vec![
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15, r.rip, r.fs_base, r.gs_base,
        ];
        // The caller of a library's function does not expect the vector registers to be preserved (System V ABI for
        // AMD64, 3.2.1). They may contain pointers that were copied long before.
        let call = r.rip.wrapping_sub(CALL_LENGTH as u64);
        let is_waiting = r.orig_rax.cast_signed() != NO_CALL;
        if !(is_waiting && library.iter().any(|code| code.contains(&call))) {
            let vectors = state.bytes().chunks_exact(8);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            words.extend(vectors.map(word));
        }
        Self {
            tid,
            stack: r.rsp,
            control_block: r.fs_base,
            words,
            kernel_words: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_library_code_is_of_loaded_file_only() {
        let maps = b"400000-401000 r-xp 00000000 fe:01 5     /srv/libc.so.6\n\
            7f0000-7f1000 r--p 00000000 fe:01 7     /lib/libc.so.6\n\
            7f1000-7f2000 r-xp 00001000 fe:01 7     /lib/libc.so.6\n\
            7f3000-7f4000 r-xp 00000000 fe:01 8     /srv/web\n";
        let check = |loaded: &[u64], expected: Option<Range<u64>>| {
            let found = c_library_code_ranges(maps, loaded).into_iter();
            assert!(found.eq(expected), "{loaded:x?}");
        };
        check(&[0x7f_0000, 0x7f_3000], Some(0x7f_1000..0x7f_2000));
        check(&[0x7f_3000], None);
        check(&[], None);
    }
}
