//! Snapshot: a copy of a process that never runs, with the registers of its threads.
//!
//! All threads are stopped while one of them makes the copy, by clone(2) without `CLONE_VM`: both processes
//! share each page until one of them writes to it. The threads are set up so that they continue even if
//! memprof is killed at any moment.

mod emulator;
mod headroom;
mod headroom_watch;
mod reap;
mod signal_stacks;
pub(crate) mod smaps;
mod threads;
mod uncopied;
mod userfault;

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
use memprof_ptrace::{Purpose, Refusal, examine_process_for};

use crate::c_library::is_c_library;
use crate::error::Error;
use headroom_watch::HeadroomWatch;
pub use reap::{SearchEnd, reap_copies};
use smaps::MappingUsage;
pub use threads::Registers;
pub(crate) use uncopied::UncopiedMemory;
use uncopied::{SavePlan, UncopiedKind};

/// Time that the copy may take beyond its estimate: the machine may be busy.
const CLONE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for another memprof that cleans up in the process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest limit of a pause: a longer one counts as this one, because the clock could pass its end otherwise.
const MAX_PAUSE_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// Time between two attempts to lock or to reap.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Most bytes of code that are searched for the instructions of remote calls.
const MAX_CODE_BYTES: u64 = 1 << 30;

/// Process that can be copied.
#[derive(Debug)]
pub struct CopyTarget {
    /// Process id in memprof's pid namespace.
    pub pid: u32,
    /// Values of /proc/PID/status.
    pub status: ProcStatus,
    memory: Memory,
    gadgets: Gadgets,
}

/// State of a process at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Ends before the copy, which it may kill.
    watch: Option<HeadroomWatch>,
    copy: Option<ProcessCopy>,
    /// Id of the process that was copied.
    pub pid: u32,
    /// Time for which its threads were stopped.
    pub stopped: Duration,
    /// Estimate of that time.
    pub estimate: Duration,
    /// Registers of each thread.
    pub threads: Vec<Registers>,
    pub(crate) uncopied: Arc<UncopiedMemory>,
    /// Shared memory, as it was when the threads were stopped.
    pub(crate) shared: Arc<UncopiedMemory>,
    /// Shared mappings of files to which the process cannot have written.
    pub(crate) unwritable: Vec<Range<u64>>,
    /// Memory of devices, which cannot be read from outside the process.
    pub(crate) devices: Vec<Range<u64>>,
}

impl CopyTarget {
    /// Checks without stopping the process whether it can be copied. Locks the process against other instances of
    /// memprof, and waits for the lock up to a second.
    ///
    /// # Errors
    /// A reason why the process cannot be copied.
    pub fn inspect(pid: u32) -> Result<Self, Error> {
        let memory = Memory::open_by_child(pid);
        // Locked first: another memprof that holds the lock also traces the process, which an examination would refuse.
        let locked = memory.as_ref().map(lock_process_with_timeout);
        // The examination comes before the result of the opening, because its refusal has the reason.
        let status = examine_process_for(Purpose::Read, pid)?.status;
        locked
            .unwrap_or(Ok(()))
            .map_err(Error::with_action("another memprof is at work on it"))?;
        let memory = memory.map_err(Error::with_action(format!("/proc/{pid}/mem")))?;
        let maps = read_proc_file(pid, "maps")?;
        if let Some(program) = emulator::find_emulated_program(&maps, &memory) {
            return Err(Error::Emulated { program });
        }
        let code = || mappings(&maps).filter(|each| each.is_executable() && each.inode != 0);
        // The C library is searched first, because a program may have more libraries than are searched. Its
        // name proves nothing; the instructions do.
        let mut unread = MAX_CODE_BYTES;
        let gadgets = code()
            .filter(|each| is_c_library(each.path))
            .chain(code())
            .take_while(|each| {
                unread = unread.saturating_sub(each.range.end - each.range.start);
                unread > 0
            })
            .find_map(|each| Gadgets::find(&memory, &each.range));
        // Reads through the child are too slow while threads are stopped.
        memory.switch_to_direct_reads()?;
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

    /// Copies the process. `limit` is the longest time for which its threads may be stopped, `max_bytes` the
    /// most memory for data that a copy does not have.
    ///
    /// # Errors
    /// A reason why it could not be copied; it runs on as before.
    pub fn take_snapshot(&self, limit: Duration, max_bytes: u64) -> Result<Snapshot, Error> {
        let limit = limit.min(MAX_PAUSE_LIMIT);
        let mappings = read_mapping_usage(self.pid)?;
        let pinned = self.status.pinned.min(smaps::private_bytes(&mappings));
        headroom::require_headroom(self.pid, &mappings, pinned)?;
        userfault::require_no_fork_events(self.pid, &mappings)?;
        let estimate = smaps::estimate_pause(&mappings, self.status.threads, pinned);
        if estimate > limit {
            return Err(Error::LongPause { estimate, limit });
        }
        let plan = SavePlan::new(
            UncopiedKind::Excluded,
            &mappings,
            limit - estimate,
            max_bytes,
        );
        let estimate = estimate + plan.estimate;
        let rest = max_bytes.saturating_sub(plan.planned_bytes());
        let shared_plan = SavePlan::new(UncopiedKind::Shared, &mappings, limit - estimate, rest);
        let estimate = estimate + shared_plan.estimate;
        let start = Instant::now();
        let mut threads = threads::stop_all(self.pid, limit)?;
        // The copy cannot be interrupted: a long one does not begin if the threads took too long to stop.
        let copy_time = estimate.saturating_sub(smaps::estimate_stop_time(self.status.threads));
        let needed = start.elapsed() + copy_time;
        if copy_time > smaps::MEASURED_FROM && needed > limit {
            drop(threads);
            return Err(Error::LongPause {
                estimate: needed,
                limit,
            });
        }
        if !self.is_same_program() {
            // The threads are resumed first: while they are traced, an examination would refuse the process.
            drop(threads);
            return Err(process_gone_refusal(self.pid).into());
        }
        let maps = read_proc_file(self.pid, "maps")?;
        let (chosen, stopped) =
            threads.pick_thread(|thread| self.has_frame_memory(&maps, thread))?;
        let context = chosen.saved_context();
        let end = self
            .frame_memory_end(&maps, &context, chosen.tid)
            .ok_or(Error::NoThread("its stacks have no room"))?;
        // The copy shares the table of descriptors (`CLONE_FILES`). The mask of ones blocks all signals during the
        // call.
        let frames = build_clone_frames(
            libc::CLONE_FILES as u64,
            end,
            u64::MAX,
            self.gadgets,
            &context,
        );
        for (address, bytes) in &frames.writes {
            let written = self.memory.write(*address, bytes);
            written.map_err(Error::with_action("failed to write to a stack"))?;
        }
        let cloned = stopped.run_clone(
            &frames.registers,
            &context,
            Instant::now() + estimate + CLONE_TIMEOUT,
        );
        let uncopied = cloned.as_ref().map(|(copy, _)| {
            let copy_maps = read_proc_file(copy.pid(), "maps")?;
            let save =
                |plan| UncopiedMemory::save(self.pid, &copy_maps, &mappings, plan, start + limit);
            Ok((save(plan)?, save(shared_plan)?))
        });
        let uncopied = uncopied.unwrap_or_else(|_| Ok(Default::default()));
        let copy = cloned.map(|(copy, stopped)| {
            drop(stopped);
            copy
        });
        let watch = copy.as_ref().ok();
        let watch = watch.map(|copy| HeadroomWatch::start(self.pid, copy.pid()));
        // If the libraries cannot be read, all registers count as roots, also those with values that
        // functions have left behind.
        let loaded = loaded_libraries(&self.memory, &maps).unwrap_or_default();
        let registers = threads.resume_all(&maps, &loaded);
        let stopped = start.elapsed();
        let copy = copy.map_err(Error::NotCloned)?;
        let mut snapshot = Snapshot {
            watch,
            copy: Some(copy),
            pid: self.pid,
            stopped,
            estimate,
            threads: registers,
            devices: smaps::device_ranges(&mappings),
            unwritable: smaps::unwritable_ranges(&mappings),
            uncopied: Arc::default(),
            shared: Arc::default(),
        };
        match uncopied {
            Ok((uncopied, shared)) => {
                (snapshot.uncopied, snapshot.shared) = (Arc::new(uncopied), Arc::new(shared));
            }
            Err(error) => {
                let error = if snapshot.has_copy_ended() {
                    Error::CopyEnded
                } else {
                    error
                };
                // The error matters more than whether the copy was reaped.
                snapshot.release(self);
                return Err(error);
            }
        }
        Ok(snapshot)
    }

    /// Whether there is memory for the call frames with which `thread` copies the process or makes another remote call.
    fn has_frame_memory(&self, maps: &[u8], thread: &threads::SnapshotThread) -> bool {
        self.frame_memory_end(maps, &thread.saved_context(), thread.tid)
            .is_some()
    }

    /// Address of the end of free memory for a thread's call frames. `None` if its stack has no room and no other
    /// memory is found.
    fn frame_memory_end(&self, maps: &[u8], context: &SavedContext<'_>, tid: u32) -> Option<u64> {
        let owner = StackOwner {
            is_main: tid == self.pid,
            stack_end: remote_call::top_below_red_zone(context),
            control_block: context.registers.fs_base,
        };
        find_frame_memory(&self.memory, maps, owner, clone_frames_size(context))
    }

    /// Whether the process still executes the program that was inspected, to which the opened memory belongs.
    fn is_same_program(&self) -> bool {
        let code = self.memory.read_array(self.gadgets.system_call);
        code.is_ok_and(|code| code == remote_call::SYSTEM_CALL)
            && !self.memory.was_program_replaced()
    }
}

impl Snapshot {
    /// Creates the snapshot of a program that is stopped in exit. Its memory is read in place, without a copy, because
    /// it no longer changes. Fails with `Io` if its registers cannot be read, and with `Refused` if it has ended.
    pub(crate) fn for_exiting_program(exiting: &ExitingProgram) -> Result<Self, Error> {
        let pid = exiting.last_tid();
        let maps = read_proc_file(pid, "maps")?;
        let mappings = read_mapping_usage(pid)?;
        let loaded = Memory::open(pid).and_then(|memory| loaded_libraries(&memory, &maps));
        let loaded = loaded.unwrap_or_default();
        let threads = Registers::read_at_exit(exiting, &maps, &loaded);
        Ok(Self {
            watch: None,
            copy: None,
            pid,
            stopped: Duration::ZERO,
            estimate: Duration::ZERO,
            threads: threads.map_err(Error::with_action("failed to read its registers"))?,
            uncopied: Arc::default(),
            shared: Arc::default(),
            devices: smaps::device_ranges(&mappings),
            unwritable: smaps::unwritable_ranges(&mappings),
        })
    }

    /// Process id of the copy, whose memory is read; of the process itself if there is no copy.
    pub fn copy_pid(&self) -> u32 {
        self.copy.as_ref().map_or(self.pid, ProcessCopy::pid)
    }

    /// Ends the copy, and makes its parent reap it. Returns false if the parent did not: the copy stays a
    /// zombie until the process ends.
    pub fn release(mut self, target: &CopyTarget) -> bool {
        let Some(copy) = self.copy.take() else {
            return true;
        };
        self.watch = None;
        let pid = copy.pid();
        let status = ProcStatus::read_thread(pid);
        copy.kill();
        let reaped = status
            .map_err(Error::from)
            .and_then(|status| target.reap_child(&status, pid, Some(copy)));
        reaped.is_ok() && !reap::process_exists(pid)
    }

    /// Whether the copy was killed, so that its memory cannot be read. False if there is no copy.
    pub(crate) fn has_copy_ended(&self) -> bool {
        self.copy.as_ref().is_some_and(ProcessCopy::has_ended)
    }

    /// Fails with `Headroom` if too little memory is left for the pages that the process still writes, each of which
    /// the kernel duplicates, and with `CopyEnded` if the copy was killed. Never fails if there is no copy.
    pub(crate) fn require_headroom(&self) -> Result<(), Error> {
        match &self.copy {
            Some(copy) if copy.has_ended() => Err(Error::CopyEnded),
            Some(_) => headroom::require_reserve(self.pid),
            None => Ok(()),
        }
    }
}

/// Locks the process against other instances of memprof that write to its stacks. Waits for one that cleans up
/// after a killed search: it holds the lock only for a moment. Fails after [`LOCK_TIMEOUT`].
fn lock_process_with_timeout(memory: &Memory) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match memory.try_lock_process() {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > LOCK_TIMEOUT => return Err(error.into()),
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Reads a file of /proc/PID. Fails if the process has ended: the file is missing, or that of a zombie is empty.
fn read_proc_file(pid: u32, name: &str) -> Result<Vec<u8>, Error> {
    match fs::read(format!("/proc/{pid}/{name}")) {
        Ok(text) if !text.is_empty() => Ok(text),
        _ => Err(process_gone_refusal(pid).into()),
    }
}

/// Reads the mappings of a process with their values of /proc/PID/smaps. Fails if the process has ended, or a value is
/// malformed.
fn read_mapping_usage(pid: u32) -> Result<Vec<MappingUsage>, Error> {
    let mappings = smaps::parse_smaps(&read_proc_file(pid, "smaps")?);
    mappings.map_err(Error::with_action(format!("/proc/{pid}/smaps")))
}

/// Reason why a process cannot be reached any more: it has ended or executed another program.
fn process_gone_refusal(pid: u32) -> Refusal {
    match examine_process_for(Purpose::Read, pid) {
        Ok(_) => Refusal::Executed,
        Err(Refusal::NoSuchProcess | Refusal::Zombie) => Refusal::Ended,
        Err(refusal) => refusal,
    }
}
