//! A snapshot: a copy of a process that never runs, and what its threads had in their registers.
//!
//! All threads stand still while one of them makes the copy (clone(2) without its own memory, which shares the
//! pages until somebody writes). Each thread then goes on by itself: this program may be killed at any moment.

mod headroom;
mod reap;
mod smaps;
mod threads;
mod uncopied;

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use memprof_ptrace::exit_stop::ExitingProgram;
use memprof_ptrace::frame_memory::{StackOwner, find_frame_memory, loaded_libraries};
use memprof_ptrace::maps::mappings;
use memprof_ptrace::memory::Memory;
use memprof_ptrace::process::ProcStatus;
use memprof_ptrace::process_copy::ProcessCopy;
use memprof_ptrace::remote_call::{
    self, Gadgets, SavedContext, build_clone_frames, clone_frames_size,
};
use memprof_ptrace::{Purpose, Refusal, examine_for};

use crate::error::Error;
pub use reap::{SearchEnd, reap_copies};
pub use threads::Registers;
use uncopied::SavePlan;
pub(crate) use uncopied::UncopiedMemory;

/// How long the copy may take after the threads stopped, beyond what was estimated: a machine may be busy.
const CLONE_PATIENCE: Duration = Duration::from_secs(2);
/// Until a memprof that cleans up is done with a process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How much of a process's code is searched for the instructions that lead a thread home.
const CODE_MAPPINGS: usize = 64;

/// A process that can be copied.
#[derive(Debug)]
pub struct CopyTarget {
    /// In this program's pid namespace.
    pub pid: u32,
    /// What /proc/PID/status says.
    pub status: ProcStatus,
    memory: Memory,
    gadgets: Gadgets,
}

/// A process as it was at one moment.
#[derive(Debug)]
pub struct Snapshot {
    twin: Option<ProcessCopy>,
    /// The process that was copied.
    pub pid: u32,
    /// How long its threads stood still, at the most.
    pub stopped: Duration,
    /// How long that had been estimated.
    pub estimate: Duration,
    /// What each thread had in its registers.
    pub threads: Vec<Registers>,
    pub(crate) uncopied: Arc<UncopiedMemory>,
    /// Memory of devices, which cannot be read from outside.
    pub(crate) devices: Vec<Range<u64>>,
}

/// Whether a file is called as glibc's is, since 2.34 or before.
fn is_c_library(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.starts_with(b"libc.so") || name.starts_with(b"libc-2.")
}

impl CopyTarget {
    /// Looks at a process without touching it.
    ///
    /// # Errors
    /// Why it cannot be copied.
    pub fn inspect(pid: u32) -> Result<Self, Error> {
        let memory = Memory::open_by_child(pid);
        // First, because it traces the process meanwhile.
        let locked = memory.as_ref().map(wait_for_lock);
        // It says why, where the memory could not be opened.
        let status = examine_for(Purpose::Read, pid)?.status;
        locked
            .unwrap_or(Ok(()))
            .map_err(Error::io("another memprof is at work on it"))?;
        let memory = memory.map_err(Error::io(format!("/proc/{pid}/mem")))?;
        let maps = read(pid, "maps")?;
        let code = || mappings(&maps).filter(|each| each.is_executable() && each.inode != 0);
        // A program may have more libraries than are searched. A name proves nothing: the instructions do.
        let gadgets = code()
            .filter(|each| is_c_library(each.path))
            .chain(code())
            .take(CODE_MAPPINGS)
            .find_map(|each| Gadgets::find(&memory, &each.range));
        memory.go_direct()?;
        let gadgets = gadgets.ok_or(Error::NoThread(
            "memprof does not know the signal return code of its C library",
        ))?;
        Ok(Self {
            pid,
            status,
            memory,
            gadgets,
        })
    }

    /// Copies it. `limit` is the longest that its threads may stand still, `room` what may be taken of memory for
    /// what a copy lacks, in bytes.
    ///
    /// # Errors
    /// Why not; it goes on as before.
    pub fn snapshot(&self, limit: Duration, room: u64) -> Result<Snapshot, Error> {
        let figures = smaps::parse(&read(self.pid, "smaps")?);
        headroom::require_room(self.pid, &figures)?;
        let estimate = smaps::estimate(&figures, self.status.threads);
        if estimate > limit {
            return Err(Error::LongPause { estimate, limit });
        }
        let plan = SavePlan::of(&figures, limit - estimate, room);
        let estimate = estimate + plan.estimate;
        let begun = Instant::now();
        let mut threads = threads::stop_all(self.pid, limit)?;
        if !self.is_same() {
            // First, because it is told who traces a process.
            drop(threads);
            return Err(process_gone_refusal(self.pid).into());
        }
        let maps = read(self.pid, "maps")?;
        let (chosen, stopped) = threads.pick_thread(|thread| self.can_clone(&maps, thread))?;
        let home = chosen.home();
        let end = self
            .room(&maps, &home, chosen.tid)
            .ok_or(Error::NoThread("its stacks have no room"))?;
        let frames =
            build_clone_frames(libc::CLONE_FILES as u64, end, u64::MAX, self.gadgets, &home);
        for (address, bytes) in &frames.writes {
            let written = self.memory.write(*address, bytes);
            written.map_err(Error::io("failed to write to a stack"))?;
        }
        let cloned = stopped.run_clone(
            &frames.registers,
            &home,
            Instant::now() + estimate + CLONE_PATIENCE,
        );
        let uncopied = cloned.as_ref().map(|(twin, _)| {
            let copy_maps = read(twin.pid(), "maps")?;
            UncopiedMemory::save(self.pid, &copy_maps, &figures, plan, begun + limit)
        });
        let uncopied = uncopied.unwrap_or_else(|_| Ok(UncopiedMemory::default()));
        let twin = cloned.map(|(twin, stopped)| {
            drop(stopped);
            twin
        });
        // Unread, all registers count, those that functions of it leave behind too.
        let loaded = loaded_libraries(&self.memory, &maps).unwrap_or_default();
        let registers = threads.resume_all(&maps, &loaded);
        let stopped = begun.elapsed();
        let twin = twin.map_err(Error::NotCloned)?;
        let mut snapshot = Snapshot {
            twin: Some(twin),
            pid: self.pid,
            stopped,
            estimate,
            threads: registers,
            devices: figures
                .iter()
                .filter(|each| each.is_device)
                .map(|each| each.range.clone())
                .collect(),
            uncopied: Arc::default(),
        };
        match uncopied {
            Ok(uncopied) => snapshot.uncopied = Arc::new(uncopied),
            Err(error) => {
                // What matters more is why.
                snapshot.release(self);
                return Err(error);
            }
        }
        Ok(snapshot)
    }

    fn can_clone(&self, maps: &[u8], thread: &threads::SnapshotThread) -> bool {
        self.room(maps, &thread.home(), thread.tid).is_some()
    }

    fn room(&self, maps: &[u8], home: &SavedContext<'_>, tid: u32) -> Option<u64> {
        let owner = StackOwner {
            is_main: tid == self.pid,
            end_on_stack: remote_call::stack_limit(home),
            control_block: home.registers.fs_base,
        };
        find_frame_memory(&self.memory, maps, owner, clone_frames_size(home))
    }

    /// Whether it still executes the program that was looked up: the opened memory is that one's.
    fn is_same(&self) -> bool {
        let code = self.memory.bytes(self.gadgets.system_call);
        code.is_ok_and(|code| code == remote_call::SYSTEM_CALL)
    }
}

impl Snapshot {
    /// Of a program that is about to end: it stands still itself.
    pub(crate) fn at_exit(ending: &ExitingProgram) -> Result<Self, Error> {
        let pid = ending.pid();
        let maps = read(pid, "maps")?;
        let loaded = Memory::open(pid).and_then(|memory| loaded_libraries(&memory, &maps));
        let loaded = loaded.unwrap_or_default();
        let registers = Registers::read(pid, ending.thread(), &maps, &loaded);
        Ok(Self {
            twin: None,
            pid,
            stopped: Duration::ZERO,
            estimate: Duration::ZERO,
            threads: vec![registers.map_err(Error::io("failed to read its registers"))?],
            uncopied: Arc::default(),
            devices: Vec::new(),
        })
    }

    /// The pid of the copy, whose memory can be read.
    pub fn copy(&self) -> u32 {
        self.twin.as_ref().map_or(self.pid, ProcessCopy::pid)
    }

    /// Ends the copy, and has its parent reap it. Whether that has: a zombie stays otherwise, until the process
    /// ends.
    pub fn release(mut self, subject: &CopyTarget) -> bool {
        let Some(twin) = self.twin.take() else {
            return true;
        };
        let pid = twin.pid();
        let status = ProcStatus::read_thread(pid);
        drop(twin);
        let reaped = status
            .map_err(Error::from)
            .and_then(|status| subject.reap(&status, pid));
        reaped.is_ok() && !reap::is_alive(pid)
    }

    /// Fails where the pages that were copied meanwhile leave too little memory.
    ///
    /// # Errors
    /// `Headroom`.
    pub(crate) fn require_room(&self) -> Result<(), Error> {
        headroom::require_memory(self.pid, 0)
    }
}

/// Excludes other processes of memprof that write to the stacks of the process. One that cleans up after a killed
/// search holds the lock for a moment only.
fn wait_for_lock(memory: &Memory) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match memory.try_lock() {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > LOCK_TIMEOUT => return Err(error.into()),
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

fn read(pid: u32, name: &str) -> Result<Vec<u8>, Error> {
    match fs::read(format!("/proc/{pid}/{name}")) {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => Err(process_gone_refusal(pid).into()),
    }
}

/// Why a process cannot be reached any more.
fn process_gone_refusal(pid: u32) -> Refusal {
    match examine_for(Purpose::Read, pid) {
        Ok(_) => Refusal::Executed,
        Err(Refusal::NoSuchProcess | Refusal::Zombie) => Refusal::Ended,
        Err(refusal) => refusal,
    }
}
