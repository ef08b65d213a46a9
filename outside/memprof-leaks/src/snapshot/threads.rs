//! All threads of a process, stopped.

use std::fs;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_ptrace::remote_call::SavedContext;
use memprof_ptrace::seccomp::require_snapshot_calls;
use memprof_ptrace::stop::{StopError, StoppedThread};
use memprof_ptrace::stop_all::{self, StopAllError};
use memprof_ptrace::syscall_restart::{self, CALL_LENGTH, would_see_eintr};
use memprof_ptrace::xstate::XState;

use crate::error::Error;

/// Code of 64 bits.
const USER_CODE: u64 = 0x33;
/// The number of the system call of a thread that is in none.
const NO_CALL: i64 = -1;
/// Of all ptrace(2) calls together, on top of the limit, on a busy machine.
const PATIENCE: Duration = Duration::from_millis(50);

/// The code of glibc, in which functions make system calls for others. `loaded` is where the libraries of the loader's
/// list begin: a program may map other files of these names, and run code of its own there.
fn c_library(maps: &[u8], loaded: &[u64]) -> Vec<Range<u64>> {
    let is_of_it = |image: &Mapping<'_>| {
        let starts = [&b"libc.so.6"[..], b"libc-2.", b"libpthread-2."];
        let name = image.file_name();
        loaded.contains(&image.range.start) && starts.iter().any(|start| name.starts_with(start))
    };
    let images: Vec<_> = mappings(maps).filter(is_of_it).collect();
    let is_code = |mapping: &Mapping<'_>| {
        let mut files = images.iter().map(|image| (image.device, image.inode));
        mapping.is_executable() && files.any(|file| file == (mapping.device, mapping.inode))
    };
    let code = mappings(maps).filter(is_code);
    code.map(|mapping| mapping.range).collect()
}

/// What a thread had in its registers.
#[derive(Clone, Debug)]
pub struct Registers {
    /// The thread's number (TID).
    pub tid: u32,
    /// The stack pointer.
    pub stack: u64,
    /// The thread's control block (`fs_base`).
    pub control_block: u64,
    /// All registers, those of vectors too unless it waits in a call of the C library's.
    pub words: Vec<u64>,
}

/// A thread that stands still, and how it goes on.
#[derive(Debug)]
pub(super) struct SnapshotThread {
    pub(super) tid: u32,
    registers: user_regs_struct,
    /// Other than it stopped with: its call is made again.
    again: Option<user_regs_struct>,
    state: XState,
    blocked: u64,
}

impl SnapshotThread {
    pub(super) fn home(&self) -> SavedContext<'_> {
        SavedContext {
            registers: self.again.unwrap_or(self.registers),
            state: &self.state,
            blocked: self.blocked,
        }
    }
}

/// Threads that stand still until they are let go.
#[derive(Debug)]
pub(super) struct SnapshotThreads {
    held: Vec<(SnapshotThread, Option<StoppedThread>)>,
}

/// Stops every thread.
///
/// # Errors
/// `StopTooLong`; `Refused`. All go on then.
pub(super) fn stop_all(pid: u32, limit: Duration) -> Result<SnapshotThreads, Error> {
    let memory = Memory::open(pid).map_err(Error::io(format!("/proc/{pid}/mem")))?;
    let mut stopped = Vec::new();
    let all = stop_all::stop_all(pid, Instant::now() + limit + PATIENCE, &mut stopped);
    let threads = read_threads(&memory, stopped);
    match all {
        Ok(()) => Ok(threads),
        Err(why) => {
            // First, because it is told who traces a process.
            drop(threads);
            Err(match why {
                StopAllError::Unreadable(_) => super::process_gone_refusal(pid).into(),
                StopAllError::Thread(tid, why) => refused(tid, why, limit),
            })
        }
    }
}

/// Stops one thread, the first that does.
pub(super) fn stop_one(pid: u32) -> Result<SnapshotThreads, Error> {
    let memory = Memory::open(pid).map_err(Error::io(format!("/proc/{pid}/mem")))?;
    let stopped = tids(pid)?
        .into_iter()
        .find_map(|tid| Some((tid, StoppedThread::interrupt(tid).ok()?)));
    Ok(read_threads(&memory, stopped.into_iter().collect()))
}

fn tids(pid: u32) -> Result<Vec<u32>, Error> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.map_err(|_| super::process_gone_refusal(pid))?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

fn refused(tid: u32, why: StopError, limit: Duration) -> Error {
    match why {
        StopError::Refused(code) => Error::Io {
            what: format!("failed to trace thread {tid}"),
            cause: io::Error::from_raw_os_error(code),
        },
        StopError::Ended | StopError::Uninterruptible => Error::StopTooLong { thread: tid, limit },
    }
}

fn read_threads(memory: &Memory, stopped: Vec<(u32, StoppedThread)>) -> SnapshotThreads {
    let mut held = Vec::with_capacity(stopped.len());
    for (tid, stopped) in stopped {
        // One that was killed meanwhile has none.
        let (Ok(registers), Ok(state), Ok(blocked)) =
            (stopped.registers(), stopped.state(), stopped.signal_mask())
        else {
            continue;
        };
        let code = memory.bytes(registers.rip.wrapping_sub(CALL_LENGTH as u64));
        let again = code
            .ok()
            .and_then(|code| syscall_restart::restarted_registers(&registers, code));
        let thread = SnapshotThread {
            tid,
            registers,
            again,
            state,
            blocked,
        };
        held.push((thread, Some(stopped)));
    }
    SnapshotThreads { held }
}

impl SnapshotThreads {
    /// Returns the first thread that waits in a call which it can make again, else one that runs: it can make a remote
    /// call.
    ///
    /// # Errors
    /// `NoThread`, or what its seccomp filter forbids.
    pub(super) fn pick_thread(
        &mut self,
        has_room: impl Fn(&SnapshotThread) -> bool,
    ) -> Result<(&SnapshotThread, StoppedThread), Error> {
        let mut why =
            Error::NoThread("its threads take signals, or run on stacks of the program's own");
        let runs = |thread: &SnapshotThread| thread.registers.orig_rax.cast_signed() == NO_CALL;
        for may_run in [false, true] {
            for at in 0..self.held.len() {
                let (thread, stopped) = &mut self.held[at];
                let is_free = stopped
                    .as_ref()
                    .is_some_and(|stopped| stopped.signal().is_none());
                let fits = thread.registers.cs == USER_CODE && thread.again.is_some();
                if !is_free || !fits || runs(thread) != may_run || !has_room(thread) {
                    continue;
                }
                match require_snapshot_calls(thread.tid) {
                    Ok(()) => {}
                    Err(refusal) => {
                        why = refusal.into();
                        continue;
                    }
                }
                let Some(stopped) = stopped.take() else {
                    continue;
                };
                return Ok((&self.held[at].0, stopped));
            }
        }
        Err(why)
    }

    /// Lets all go, and tells what they had. `loaded` as for [`Registers::read`].
    pub(super) fn resume_all(mut self, maps: &[u8], loaded: &[u64]) -> Vec<Registers> {
        self.resume();
        let library = c_library(maps, loaded);
        self.held
            .iter()
            .map(|(thread, _)| {
                Registers::of(thread.tid, &thread.registers, &thread.state, &library)
            })
            .collect()
    }

    fn resume(&mut self) {
        for (thread, stopped) in &mut self.held {
            let again = thread.again.filter(|_| would_see_eintr(&thread.registers));
            if let (Some(stopped), Some(again)) = (stopped.take(), again) {
                // It fails for a thread that was killed.
                let _ = stopped.resume_with(&again);
            }
        }
    }
}

impl Drop for SnapshotThreads {
    fn drop(&mut self) {
        self.resume();
    }
}

impl Registers {
    /// Those of a thread that stands still. `loaded` is where the libraries begin that its loader loaded.
    pub(super) fn read(
        tid: u32,
        stopped: &StoppedThread,
        maps: &[u8],
        loaded: &[u64],
    ) -> io::Result<Self> {
        let (registers, state) = (stopped.registers()?, stopped.state()?);
        Ok(Self::of(tid, &registers, &state, &c_library(maps, loaded)))
    }

    fn of(tid: u32, r: &user_regs_struct, state: &XState, library: &[Range<u64>]) -> Self {
        let mut words = vec![
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15, r.rip, r.fs_base, r.gs_base,
        ];
        // Whoever called a function expects nothing in these registers any more (System V ABI for AMD64, 3.2.1): there
        // may lie whole arrays of pointers that were copied long before.
        let call = r.rip.wrapping_sub(CALL_LENGTH as u64);
        let waits = r.orig_rax.cast_signed() != NO_CALL;
        if !(waits && library.iter().any(|code| code.contains(&call))) {
            let vectors = state.bytes().chunks_exact(8);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            words.extend(vectors.map(word));
        }
        Self {
            tid,
            stack: r.rsp,
            control_block: r.fs_base,
            words,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_other_files_of_its_name_is_not_the_c_librarys() {
        let maps = b"400000-401000 r-xp 00000000 fe:01 5     /srv/libc.so.6\n\
            7f0000-7f1000 r--p 00000000 fe:01 7     /lib/libc.so.6\n\
            7f1000-7f2000 r-xp 00001000 fe:01 7     /lib/libc.so.6\n\
            7f3000-7f4000 r-xp 00000000 fe:01 8     /srv/web\n";
        let check = |loaded: &[u64], expected: Option<Range<u64>>| {
            let found = c_library(maps, loaded).into_iter();
            assert!(found.eq(expected), "{loaded:x?}");
        };
        check(&[0x7f_0000, 0x7f_3000], Some(0x7f_1000..0x7f_2000));
        check(&[0x7f_3000], None);
        check(&[], None);
    }
}
