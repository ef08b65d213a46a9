//! The process's sampler: records what the hooks report. It is started, stopped and cleared here.
#![expect(unsafe_code, reason = "tables that only one thread may clear")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use memprof_languages::{NameMemory, NativeStack, set_name_memory};
use memprof_unwind::{PseudoFrames, WORKSPACE_FRAMES, Workspace, walk_this_thread};

use crate::address_hash::AddressHash;
use crate::caller_registers::caller_registers;
use crate::countdown;
use crate::early_ends;
use crate::filter::Filter;
use crate::fork_sentinel::ForkSentinel;
use crate::gate::Gate;
use crate::live_table::{ClaimedCell, LiveTable, Sample};
use crate::mapping;
use crate::own_code::own_code;
use crate::patching_guard;
use crate::probes;
use crate::remote_tables::MARK;
use crate::sleep::wait_a_millisecond;
use crate::stack_table::{MAX_FRAMES, StackRecord, StackRecordId, StackTable};
use crate::tally;

// All large tables share a section: a small variable between two of them would make a page of its own resident.
#[unsafe(link_section = ".bss.tables")]
static FILTER: Filter = Filter::new();
/// Tables that other processes find by their mark. `used` keeps the optimizer from removing or moving them.
#[used]
static TABLES: SampleTables = SampleTables {
    mark: MARK,
    finest_interval: AtomicU64::new(0),
    live: LiveTable::new(),
    records: StackTable::new(),
};
/// Closed while [`clear`] empties the tables.
static GATE: Gate = Gate {
    is_closed: AtomicBool::new(false),
};
/// Number of samples that were not recorded, because a table was full.
static LOST: AtomicU64 = AtomicU64::new(0);
/// Number of samples whose blocks were allocated again although no hook saw a free.
static UNSEEN_FREES: AtomicU64 = AtomicU64::new(0);
/// Process that samples. Each sample checks it, because a child of `_Fork(3)` runs no fork handler.
static SAMPLING_PROCESS: ForkSentinel = ForkSentinel::new();

/// Maximum number of waits of one millisecond in [`clear`] for hooks to leave the tables.
const MAX_CLEAR_WAITS: u32 = 1000;

/// Maximum number of frames of memprof's hooks at the leaf of a walked stack.
const MAX_HOOK_FRAMES: usize = 8;
const _: () = assert!(MAX_FRAMES + MAX_HOOK_FRAMES <= WORKSPACE_FRAMES);

/// Live table and stack table. [`RemoteTables`](crate::RemoteTables) finds them by their mark.
#[repr(C)]
struct SampleTables {
    mark: [u8; MARK.len()],
    /// Least mean bytes between the samples since the last [`clear`]; 0 before the first.
    finest_interval: AtomicU64,
    live: LiveTable,
    records: StackTable,
}

/// Reason why the sampler could not start, or could not clear its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerError {
    /// The kernel has no memory for the tables.
    NoMemory,
    /// A thread has been inside a hook for more than a second, for example because a debugger stopped it.
    InUse,
}

/// Counts since the last [`clear`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerStats {
    /// Allocations that were sampled, lost ones included.
    pub samples: u64,
    /// Samples in the live table: recorded and not freed.
    pub live_samples: u64,
    /// Samples that were not recorded, because a table was full.
    pub lost: u64,
    /// Blocks that were allocated again while they were in the live table: a function without a hook had freed them.
    pub unseen_frees: u64,
    /// Bytes mapped for the tables.
    pub table_bytes: u64,
}

/// Starts sampling in the calling process: one allocation per `interval` bytes on average. Maps the tables at the first
/// call. Earlier samples are kept.
///
/// # Errors
/// `NoMemory`: the kernel has no memory for the tables.
pub fn start(interval: u64) -> Result<(), SamplerError> {
    SAMPLING_PROCESS.adopt_process();
    if TABLES.live.map_first_table() && TABLES.records.map_memory() {
        let finest = match TABLES.finest_interval.load(Relaxed) {
            0 => interval,
            before => before.min(interval),
        };
        TABLES.finest_interval.store(finest, Relaxed);
        countdown::vary_seeds();
        countdown::set_interval(interval);
        Ok(())
    } else {
        Err(SamplerError::NoMemory)
    }
}

/// Maps the table of the names of interpreted functions, and passes it to `memprof_languages`. Does so once per
/// process.
///
/// # Errors
/// `NoMemory`: the kernel has no memory for the table.
pub fn map_name_table() -> Result<(), SamplerError> {
    static MAPPED: AtomicBool = AtomicBool::new(false);
    if MAPPED.load(Relaxed) {
        return Ok(());
    }
    let memory = mapping::map_zeros::<NameMemory>(1).ok_or(SamplerError::NoMemory)?;
    // SAFETY: the mapping has room for one table, of which zeros are a valid value, and is never unmapped.
    set_name_memory(unsafe { &*memory });
    MAPPED.store(true, Relaxed);
    Ok(())
}

/// Stops sampling. Earlier samples are kept, and are removed when their blocks are freed.
pub fn stop() {
    countdown::set_interval(0);
}

/// Returns the mean bytes between samples; 0 while sampling is stopped.
pub fn interval() -> u64 {
    countdown::interval()
}

/// Deletes all samples, releases their memory to the kernel, sets all counts to 0, and continues with the same
/// interval. Waits up to a second for hooks that are using the tables.
///
/// # Errors
/// `InUse` if a hook uses the tables for a second: sampling continues, and the samples already removed count as freed.
/// `NoMemory` if the kernel has no memory for the tables: sampling is stopped.
pub fn clear() -> Result<(), SamplerError> {
    let interval = countdown::interval();
    stop();
    GATE.close();
    let mut waits = 0..MAX_CLEAR_WAITS;
    let wait = || waits.next().map(|_| wait_a_millisecond()).is_some();
    let drained = |claim: &ClaimedCell<'_>| {
        count_freed_sample(claim);
    };
    if !TABLES.live.drain(drained, wait) {
        GATE.open();
        countdown::set_interval(interval);
        return Err(SamplerError::InUse);
    }
    FILTER.clear();
    // SAFETY: the gate is closed and no cell is claimed, so no hook uses or enters the stack table. Callers of
    // `for_each_record` promise not to call `clear` during their visits.
    unsafe { TABLES.records.clear() };
    LOST.store(0, Relaxed);
    UNSEEN_FREES.store(0, Relaxed);
    TABLES.finest_interval.store(0, Relaxed);
    early_ends::clear();
    GATE.open();
    match interval {
        0 => Ok(()),
        interval => start(interval),
    }
}

/// Resets the sampler in a forked child, which then samples as a process of its own. Releases the cells, workspaces and
/// locks that threads of the parent held, begins a tally of the child, and draws new random numbers. Keeps the samples.
pub fn reset_in_child() {
    SAMPLING_PROCESS.adopt_process();
    tally::reset_in_child();
    patching_guard::release_in_child();
    TABLES.live.clear_claimed_cells();
    Workspace::release_all_in_child();
    countdown::reset_in_child();
    GATE.open();
}

/// Visits all stack records, live or freed, in no particular order. Their counters may change during the visits.
///
/// # Safety
/// The caller does not call [`clear`] during the visits.
pub unsafe fn for_each_record(visit: impl FnMut(StackRecord<'_>)) {
    // SAFETY: the caller of this function does not call `clear` during the visits.
    unsafe { TABLES.records.for_each(visit) };
}

/// Sampled block that was not freed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSample {
    /// Address of the block. The program may free it at any moment.
    pub address: usize,
    /// Bytes that the program requested.
    pub size: u64,
    /// Stack record that counts the sample.
    pub record: StackRecordId,
}

/// Visits each live sample, in no particular order. May miss samples that are inserted or removed during the visits.
pub fn for_each_live_sample(mut visit: impl FnMut(LiveSample)) {
    TABLES.live.for_each(|address, sample| {
        visit(LiveSample {
            address,
            size: sample.size,
            record: TABLES.records.record_id(sample.record),
        });
    });
}

/// Returns counts since the last [`clear`]. Reads the whole stack table.
pub fn counts() -> SamplerStats {
    let (live, all) = TABLES.records.count_objects();
    let lost = LOST.load(Relaxed);
    SamplerStats {
        samples: all + lost,
        live_samples: live,
        lost,
        unseen_frees: UNSEEN_FREES.load(Relaxed),
        table_bytes: (TABLES.live.mapped_bytes() + TABLES.records.used_bytes()) as u64,
    }
}

/// Returns whether a block is possibly sampled, by one load from the filter. False only if it is certainly not sampled.
#[inline(always)]
pub(crate) fn may_be_sampled(block: usize) -> bool {
    FILTER.may_hold(block)
}

/// Sample that was removed from the live table, with the stack record that counted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemovedSample {
    pub(crate) sample: Sample,
    record: StackRecordId,
}

/// Removes the sample at `block`, counts it as freed, and fires the probe for frees. `None` if the block is not
/// sampled, or another thread has claimed its cell.
#[cold]
#[inline(never)]
pub(crate) fn remove_sample(block: usize) -> Option<RemovedSample> {
    // The filter may report a block that is not sampled. Null never is, but empty cells hold 0.
    if block == 0 || !FILTER.may_hold_by_tag(block) {
        return None;
    }
    let hash = AddressHash::new(block);
    let claim = TABLES.live.claim_sample_cell(hash, block)?;
    let (sample, record) = (claim.sample(), count_freed_sample(&claim));
    probes::fire_free_probe(block);
    Some(RemovedSample { sample, record })
}

/// Counts the sample in a claimed cell as freed, in the filter and the stack table. Returns the id of its stack record.
/// The cell stays claimed.
fn count_freed_sample(claim: &ClaimedCell<'_>) -> StackRecordId {
    let sample = claim.sample();
    FILTER.subtract(claim.address());
    TABLES.records.remove_sample(sample.record, sample.size)
}

/// Restores a sample that [`remove_sample`] removed, because its block was not freed after all. Counts it as lost if
/// its record was evicted in the meantime or no cell is free. Drops it while the tables are being cleared.
#[cold]
#[inline(never)]
pub(crate) fn restore_sample(block: usize, removed: RemovedSample) {
    let RemovedSample { sample, record } = removed;
    if let Some(claim) = claim_cell(block) {
        match TABLES.records.restore_sample(record, sample.size) {
            true => insert_sample(claim, sample),
            false => count_lost_sample(),
        }
    }
}

/// Samples an allocated block: records it with the stack of this call, or counts it as lost. Does nothing for null,
/// while sampling is stopped, or in a forked child before [`reset_in_child`].
#[inline(always)]
pub(crate) fn record_sample(block: usize, size: usize) {
    record_sample_with_leaf(block, size, 0);
}

/// Samples a block of `size` bytes with the stack of this call. The recorded stack consists of `leaf` (unless it is 0),
/// the native frames merged with those of interpreters, and the thread's pseudo frames, which hold data such as labels.
///
/// Counts the sample as lost if there is no room for it, or no workspace for the stack walk. Does nothing for null,
/// while sampling is stopped, or in a forked child before [`reset_in_child`].
#[cold]
#[inline(never)]
pub(crate) fn record_sample_with_leaf(block: usize, size: usize, leaf: usize) {
    if block == 0 || countdown::interval() == 0 || !SAMPLING_PROCESS.is_sampling_process() {
        return;
    }
    let Some(claim) = claim_cell(block) else {
        return;
    };
    let Some(mut workspace) = Workspace::acquire() else {
        return count_lost_sample();
    };
    let (start, saved) = caller_registers();
    // SAFETY: registers of this function, whose frame stays during the walk.
    let (count, walk_end) = unsafe { walk_this_thread(start, saved, &mut workspace) };
    // SAFETY: this walk wrote `count` frames.
    let (walked, stack_pointers, scratch) = unsafe { workspace.walked_frames(count) };
    let own = own_code();
    let is_own = |frame: &&usize| own.contains(*frame);
    // The walk starts in memprof's own functions.
    let start = walked.iter().take_while(is_own).count();
    let last = walked.last().copied().unwrap_or(0);
    let native = NativeStack {
        frames: walked.get(start..).unwrap_or_default(),
        stack_pointers: stack_pointers.skip(start),
    };
    // Interpreted frames go into the native stack; the merged stack has no frames of memprof.
    let (mut start, mut count) = (start, count);
    if let Some(mut merged) = memprof_languages::merge_interpreted_frames(native, scratch) {
        let before = merged.start.wrapping_sub(1);
        if let Some(free) = scratch.get_mut(before).filter(|_| leaf != 0) {
            *free = leaf;
            merged.start = before;
        }
        (start, count) = (0, workspace.set_frames_from_scratch(merged));
    } else if leaf != 0 {
        let before = start.wrapping_sub(1);
        if let Some(own) = workspace.frames().get_mut(before) {
            // In place of a frame of memprof's.
            own.write(leaf);
            start = before;
        }
    }
    let buffer = workspace.frames();
    let tail = PseudoFrames::for_this_thread();
    let end = count.min(start + tail.frames_left_for_stack(MAX_FRAMES));
    early_ends::count_if_early(walk_end, end < count, last);
    let end = tail.append_to(buffer, end);
    let frames = buffer.get(start..end).unwrap_or_default();
    // SAFETY: the walk wrote these frames, and `append_to` the pseudo frames behind them.
    let frames = unsafe { &*(&raw const *frames as *const [usize]) };
    let size = size as u64;
    match TABLES.records.intern(frames, size) {
        Some(record) => {
            TABLES.records.add_sample(record, size);
            insert_sample(claim, Sample { size, record });
        }
        None => count_lost_sample(),
    }
}

/// Claims an empty cell of the live table for a block's sample. First removes an older sample at the same address,
/// whose free no hook has seen. `None` if the live table is full, which counts the sample as lost, or if the tables are
/// being cleared.
fn claim_cell(block: usize) -> Option<ClaimedCell<'static>> {
    if may_be_sampled(block) && remove_sample(block).is_some() {
        UNSEEN_FREES.fetch_add(1, Relaxed);
    }
    let claim = TABLES.live.claim_empty_cell(AddressHash::new(block), block);
    if claim.is_none() {
        count_lost_sample();
    }
    claim.filter(|_| GATE.may_pass())
}

/// Stores a sample in a claimed cell, counts the block in the filter, and fires the probe for allocations.
fn insert_sample(claim: ClaimedCell<'_>, sample: Sample) {
    let block = claim.address();
    // Counted before the cell is filled: another thread may find the sample and remove it from then on.
    FILTER.add(block);
    claim.fill(sample);
    probes::fire_allocation_probe(block, sample.size, countdown::interval());
}

/// Counts a sample that cannot be recorded, because a table is full or no workspace for the stack walk is free.
fn count_lost_sample() {
    LOST.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;

    use super::*;
    use crate::RemoteTables;

    /// Reads eight bytes of this process's memory, where the tables are.
    fn read_own_word(address: u64) -> Option<u64> {
        // SAFETY: the tables are read only at addresses inside them, which stay mapped.
        Some(unsafe { (address as *const u64).read_volatile() })
    }

    /// Sums of all records: live objects, live bytes, total objects, total bytes.
    fn sums() -> [u64; 4] {
        let mut sums = [0_u64; 4];
        // SAFETY: only this test clears the tables.
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
    fn counts_after_random_allocations_match_live_blocks() {
        // SAFETY: dlsym(3) with a NUL-terminated name.
        let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        // SAFETY: dlfcn.h gives the function of this name this type.
        let find =
            unsafe { core::mem::transmute::<*mut libc::c_void, memprof_unwind::FindObject>(find) };
        // SAFETY: getauxval(3) reads a constant of this process.
        memprof_unwind::prepare_walks(find, unsafe { libc::getauxval(libc::AT_RANDOM) } as usize);
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
                let found = may_be_sampled(block)
                    .then(|| remove_sample(block))
                    .flatten();
                assert_eq!(found.map(|removed| removed.sample.size), known, "{step}");
            } else {
                record_sample(block, size as usize);
                live.insert(block, size);
            }
        }
        let remote =
            RemoteTables::read_after_mark(&raw const TABLES as u64, read_own_word).unwrap();
        assert_eq!(remote.interval(), 1 << 20);
        let mut buffer = [0; MAX_FRAMES];
        for block in live.keys() {
            let stack = remote.read_stack(*block as u64, read_own_word, &mut buffer);
            assert!(stack.is_some_and(|stack| stack.len() > 1), "{block:x}");
        }
        assert_eq!(
            remote.read_stack(0x5500_0000_0008, read_own_word, &mut buffer),
            None
        );
        let sums = sums();
        assert_eq!(sums[0], live.len() as u64);
        assert_eq!(sums[1], live.values().sum::<u64>());
        let counts = counts();
        assert_eq!((counts.live_samples, counts.lost), (sums[0], 0));
        // A function without a hook freed this block, because it is allocated again: its older sample is no leak.
        let again = *live.keys().next().unwrap();
        record_sample(again, 7);
        let after = self::counts();
        assert_eq!((after.live_samples, after.unseen_frees), (sums[0], 1));
        stop();
        clear().unwrap();
        assert_eq!(self::counts().samples, 0);
    }
}
