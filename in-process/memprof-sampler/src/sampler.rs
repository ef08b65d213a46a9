//! The one sampler of the process: what hooks tell it, and what it is told to do.
#![expect(unsafe_code, reason = "tables that only one thread may clear")]

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use memprof_unwind::{PseudoFrames, Registers, WORKSPACE_FRAMES, Workspace, walk_this_thread};

use crate::address_hash::AddressHash;
use crate::countdown;
use crate::filter::Filter;
use crate::fork_sentinel::ForkSentinel;
use crate::gate::Gate;
use crate::live_table::{ClaimedCell, LiveTable, Sample};
use crate::own_code::own_code;
use crate::probes;
use crate::remote_tables::MARK;
use crate::stack_table::{MOST_FRAMES, StackRecord, StackRecordId, StackTable};
use crate::tally;

// Among the other tables: what lies between two of them would have a page of its own as soon as it is written.
#[unsafe(link_section = ".bss.tables")]
static FILTER: Filter = Filter::new();
/// Its mark is read from outside: it stays, whatever an optimizer thinks of it.
#[used]
static TABLES: SampleTables = SampleTables {
    mark: MARK,
    live: LiveTable::new(),
    records: StackTable::new(),
};
static GATE: Gate = Gate {
    is_closed: AtomicBool::new(false),
};
static LOST: AtomicU64 = AtomicU64::new(0);
static UNSEEN_FREES: AtomicU64 = AtomicU64::new(0);
/// The process that samples: a child of `_Fork(3)` runs no handler of fork(2).
static PROCESS: ForkSentinel = ForkSentinel::new();

/// How often [`clear`] waits for a hook to leave the tables, each time for a millisecond.
const PATIENCE: u32 = 1000;

/// Frames of hooks that a walk meets before the program's own.
const OWN_FRAMES: usize = 8;
const _: () = assert!(MOST_FRAMES + OWN_FRAMES <= WORKSPACE_FRAMES);

/// What is known of samples, as [`RemoteTables`](crate::RemoteTables) finds it.
#[repr(C)]
struct SampleTables {
    mark: [u8; MARK.len()],
    live: LiveTable,
    records: StackTable,
}

/// Why it cannot be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerError {
    /// The kernel has no memory for the tables.
    NoMemory,
    /// A thread has been inside of a hook for too long: stopped by a debugger, say.
    InUse,
}

/// What it did since the last [`clear`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerStats {
    /// Allocations that were sampled.
    pub samples: u64,
    /// Of these, not freed.
    pub live_samples: u64,
    /// Of these, not remembered: the tables were full.
    pub lost: u64,
    /// Blocks that were allocated again while their samples lived: they were freed where no hook is.
    pub unseen_frees: u64,
    /// What the tables take, in bytes.
    pub table_bytes: u64,
}

/// Samples from now on, one allocation in `interval` bytes. Samples so far stay.
///
/// # Errors
/// `NoMemory`.
pub fn start(interval: u64) -> Result<(), SamplerError> {
    PROCESS.adopt_process();
    if TABLES.live.prepare() && TABLES.records.prepare() {
        countdown::set_interval(interval);
        Ok(())
    } else {
        Err(SamplerError::NoMemory)
    }
}

/// Samples no more. Samples so far stay, and are forgotten as they are freed.
pub fn stop() {
    countdown::set_interval(0);
}

/// Mean bytes between samples; 0 while nothing is sampled.
pub fn interval() -> u64 {
    countdown::interval()
}

/// Forgets all samples, gives their memory back, and goes on as before.
///
/// # Errors
/// `InUse`; some samples count as freed then. `NoMemory`: nothing is sampled any more.
pub fn clear() -> Result<(), SamplerError> {
    let interval = countdown::interval();
    stop();
    GATE.close();
    let mut looks = 0..PATIENCE;
    let wait = || looks.next().map(|_| wait_a_millisecond()).is_some();
    let drained = |claim: &ClaimedCell<'_>| {
        discount(claim);
    };
    if !TABLES.live.drain(drained, wait) {
        GATE.open();
        countdown::set_interval(interval);
        return Err(SamplerError::InUse);
    }
    FILTER.clear();
    // SAFETY: the gate is closed, and no place is claimed: no hook is in the records, and none enters. `each_record` is
    // the caller's, who clears.
    unsafe { TABLES.records.clear() };
    LOST.store(0, Relaxed);
    UNSEEN_FREES.store(0, Relaxed);
    GATE.open();
    match interval {
        0 => Ok(()),
        interval => start(interval),
    }
}

fn wait_a_millisecond() {
    let millisecond = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    // SAFETY: nanosleep(2): a time; nobody wants to know what is left of it.
    unsafe { libc::nanosleep(&raw const millisecond, core::ptr::null_mut()) };
}

/// Begins in a forked child, which lacks the other threads: those that were inside of a hook will
/// never leave it.
pub fn reset_in_child() {
    PROCESS.adopt_process();
    tally::enter_child();
    TABLES.live.clear_claimed();
    Workspace::enter_child();
    GATE.open();
}

/// Visits what is known of all samples, live or freed, in no order. Counters of stacks that are
/// being sampled move meanwhile.
///
/// # Safety
/// [`clear`] is not called meanwhile.
pub unsafe fn for_each_record(visit: impl FnMut(StackRecord<'_>)) {
    // SAFETY: promised by the caller.
    unsafe { TABLES.records.for_each(visit) };
}

/// A sample that was not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSample {
    /// Where its block lies, which the program may free at any moment.
    pub address: usize,
    /// As the program asked for it.
    pub size: u64,
    /// The record that counts it.
    pub record: StackRecordId,
}

/// Visits each sample that was not freed, in no order, but those that come or go meanwhile.
pub fn for_each_live(mut visit: impl FnMut(LiveSample)) {
    TABLES.live.for_each(|address, sample| {
        visit(LiveSample {
            address,
            size: sample.size,
            record: TABLES.records.id(sample.record),
        });
    });
}

/// What it did so far.
pub fn counts() -> SamplerStats {
    let (live, all) = TABLES.records.objects();
    let lost = LOST.load(Relaxed);
    SamplerStats {
        samples: all + lost,
        live_samples: live,
        lost,
        unseen_frees: UNSEEN_FREES.load(Relaxed),
        table_bytes: (TABLES.live.bytes() + TABLES.records.bytes()) as u64,
    }
}

/// False: the block is certainly no sample.
#[inline(always)]
pub(crate) fn may_be_sample(block: usize) -> bool {
    FILTER.may_hold(block)
}

/// A sample that was forgotten, and the record that counted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgotten {
    pub(crate) sample: Sample,
    record: StackRecordId,
}

/// Forgets the sample at `block`, where there is one.
#[cold]
#[inline(never)]
pub(crate) fn remove_sample(block: usize) -> Option<Forgotten> {
    // Its counter may be another's, and an empty place holds 0 too.
    if block == 0 || !FILTER.tag_may_hold(block) {
        return None;
    }
    let claim = TABLES.live.find(AddressHash::of(block), block)?;
    let record = discount(&claim);
    probes::free(block);
    Some(Forgotten {
        sample: claim.sample(),
        record,
    })
}

/// Counts a sample as freed.
fn discount(claim: &ClaimedCell<'_>) -> StackRecordId {
    let sample = claim.sample();
    FILTER.subtract(claim.address());
    TABLES.records.remove_sample(sample.record, sample.size)
}

/// Takes a sample back that [`remove_sample`] gave away: its block was not freed after all.
#[cold]
#[inline(never)]
pub(crate) fn restore_sample(block: usize, forgotten: Forgotten) {
    let Forgotten { sample, record } = forgotten;
    if let Some(claim) = claim(block) {
        match TABLES.records.restore_sample(record, sample.size) {
            true => insert(claim, sample),
            false => count_lost(),
        }
    }
}

/// Remembers a block with the stack of this call.
#[cold]
#[inline(never)]
pub(crate) fn sample(block: usize, size: usize) {
    if block == 0 || countdown::interval() == 0 || !PROCESS.is_current() {
        return;
    }
    let Some(claim) = claim(block) else {
        return;
    };
    let Some(mut workspace) = Workspace::acquire() else {
        return count_lost();
    };
    // SAFETY: the registers of this function.
    let (count, _) = unsafe { walk_this_thread(caller_registers(), &mut workspace) };
    let room = workspace.frames();
    let walked = room.get(..count).unwrap_or_default();
    // SAFETY: the walk wrote so many.
    let walked = unsafe { &*(&raw const *walked as *const [usize]) };
    let own = own_code();
    let is_own = |frame: &&usize| own.contains(*frame);
    let start = walked.iter().take_while(is_own).count();
    let tail = PseudoFrames::for_this_thread();
    let end = count.min(start + tail.frames_left(MOST_FRAMES));
    let end = tail.append_to(room, end);
    let frames = room.get(start..end).unwrap_or_default();
    // SAFETY: the walk wrote these, and the tail the last ones.
    let frames = unsafe { &*(&raw const *frames as *const [usize]) };
    let size = size as u64;
    match TABLES.records.intern(frames, size) {
        Some(record) => {
            TABLES.records.add_sample(record, size);
            insert(claim, Sample { size, record });
        }
        None => count_lost(),
    }
}

/// A place for a block's sample. None where the table of live samples is full, or is being cleared.
fn claim(block: usize) -> Option<ClaimedCell<'static>> {
    if may_be_sample(block) && remove_sample(block).is_some() {
        UNSEEN_FREES.fetch_add(1, Relaxed);
    }
    let claim = TABLES.live.claim(AddressHash::of(block), block);
    if claim.is_none() {
        count_lost();
    }
    claim.filter(|_| GATE.may_pass())
}

fn insert(claim: ClaimedCell<'_>, sample: Sample) {
    let block = claim.address();
    // Before somebody else can free it.
    FILTER.add(block);
    claim.fill(sample);
    probes::alloc(block, sample.size, countdown::interval());
}

fn count_lost() {
    LOST.fetch_add(1, Relaxed);
}

/// Where this function is, and its caller's stack: what a walk starts from.
#[inline(always)]
fn caller_registers() -> Registers {
    let (pc, sp, bp);
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "lea {}, [rip]",
            "mov {}, rsp",
            "mov {}, rbp",
            out(reg) pc,
            out(reg) sp,
            out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    Registers { pc, sp, bp }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;

    use super::*;
    use crate::RemoteTables;

    /// A word of this process, where the tables lie.
    fn word_of_own(address: u64) -> Option<u64> {
        // SAFETY: only places of the tables are asked for, which stay until they are cleared.
        Some(unsafe { (address as *const u64).read_volatile() })
    }

    /// Sums of all records: objects, bytes, in all objects, bytes.
    fn sums() -> [u64; 4] {
        let mut sums = [0_u64; 4];
        // SAFETY: only this test clears.
        unsafe {
            for_each_record(|record| {
                assert!(record.objects <= record.total_objects, "{record:?}");
                sums[0] += record.objects;
                sums[1] += record.bytes;
                sums[2] += record.total_objects;
                sums[3] += record.total_bytes;
            });
        }
        sums
    }

    #[test]
    fn counts_follow_what_lives() {
        // SAFETY: dlsym(3) with a NUL-terminated name.
        let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        // SAFETY: dlfcn.h gives the function of this name this type.
        let find =
            unsafe { core::mem::transmute::<*mut libc::c_void, memprof_unwind::FindObject>(find) };
        // SAFETY: getauxval(3) reads a constant of this process.
        memprof_unwind::prepare(find, unsafe { libc::getauxval(libc::AT_RANDOM) } as usize);
        start(1 << 20).unwrap();
        let mut live = HashMap::new();
        let mut state = 1_u64;
        for step in 0..3_000_000_u64 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let block = 0x5500_0000_0000 + (state % 20_000) as usize * 16 * 97;
            let size = if state >> 60 == 0 {
                100_000
            } else {
                16 + (state >> 20) % 3000
            };
            assert!(remove_sample(0).is_none());
            if live.contains_key(&block) || !state.is_multiple_of(3) {
                let known = live.remove(&block);
                let found = may_be_sample(block).then(|| remove_sample(block)).flatten();
                assert_eq!(
                    found.map(|forgotten| forgotten.sample.size),
                    known,
                    "{step}"
                );
            } else {
                sample(block, size as usize);
                live.insert(block, size);
            }
        }
        let remote = RemoteTables::read_after(&raw const TABLES as u64, word_of_own).unwrap();
        let mut room = [0; MOST_FRAMES];
        for block in live.keys() {
            let stack = remote.stack(*block as u64, word_of_own, &mut room);
            assert!(stack.is_some_and(|stack| stack.len() > 1), "{block:x}");
        }
        assert_eq!(remote.stack(0x5500_0000_0008, word_of_own, &mut room), None);
        let sums = sums();
        assert_eq!(sums[0], live.len() as u64);
        assert_eq!(sums[1], live.values().sum::<u64>());
        let counts = counts();
        assert_eq!((counts.live_samples, counts.lost), (sums[0], 0));
        // A block that is given out again was freed unseen: its older sample is no leak.
        let again = *live.keys().next().unwrap();
        sample(again, 7);
        let after = self::counts();
        assert_eq!((after.live_samples, after.unseen_frees), (sums[0], 1));
        stop();
        clear().unwrap();
        assert_eq!(self::counts().samples, 0);
    }
}
