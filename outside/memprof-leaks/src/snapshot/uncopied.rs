//! Uncopied memory, which clone(2) does not copy (`MADV_DONTFORK`, `MADV_WIPEONFORK`). It is read while all
//! threads are stopped, because they write to it afterwards. V8 has its heap in such memory, and moves
//! objects in it all the time.

use std::ops::Range;
use std::time::{Duration, Instant};

use memprof_ptrace::maps::mappings;

use super::smaps::MappingUsage;
use crate::address_filter::AddressFilter;
use crate::error::Error;
use crate::regions::{ProcessMemory, Region, ViewedParts, read_regions};
use crate::unsearched::Unsearched;
use crate::words::{WORD, WORD_STEP, word_between};

/// Bytes that are read between two checks of the deadline.
const BYTES_PER_CHECK: u64 = 1 << 20;
/// Time to save a MiB, measured on 32 MiB; limited by the memory.
const SAVE_TIME_PER_MIB: Duration = Duration::from_micros(900);
/// Time to scan a MiB for words that may be pointers, measured on 192 MiB.
const SCAN_TIME_PER_MIB: Duration = Duration::from_micros(550);

/// Kind of memory that a copy lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UncopiedKind {
    /// Memory that the program excludes from copies (`MADV_DONTFORK`, `MADV_WIPEONFORK`).
    #[default]
    Excluded,
    /// Shared memory: the copy has the mapping, but its content changes, and its page tables are not copied.
    Shared,
}

impl UncopiedKind {
    /// Whether a mapping is of this kind. Shared memory is not saved if the process cannot have written to it.
    fn includes(self, usage: &MappingUsage) -> bool {
        match self {
            Self::Excluded => usage.is_not_copied && !usage.is_shared,
            Self::Shared => usage.is_shared && !usage.is_unwritable,
        }
    }

    /// Name of the kind in notes, for users.
    fn name(self) -> &'static str {
        match self {
            Self::Excluded => "memory that a copy lacks (MADV_DONTFORK)",
            Self::Shared => "shared memory",
        }
    }
}

/// Mappings that the copy does not have, with their content.
#[derive(Debug, Default)]
pub(crate) struct UncopiedMemory {
    kind: UncopiedKind,
    /// Bytes that could not be read in the stop.
    unreadable: u64,
    /// The mappings, by address.
    pub(crate) regions: Vec<Region>,
    saved: Option<SavedMemory>,
}

/// Content of uncopied memory.
#[derive(Debug)]
enum SavedMemory {
    /// Resident pages, one after the other. Each run has its offset in `bytes`.
    Pages {
        runs: Vec<(Range<u64>, usize)>,
        bytes: Vec<u8>,
    },
    /// Words that may point to memory which the copy has, with their addresses, by address.
    Pointers(Vec<(u64, u64)>),
}

/// Plan by which uncopied memory will be read.
#[derive(Debug)]
pub(super) struct SavePlan {
    kind: UncopiedKind,
    /// Most memory for the content, in bytes.
    max_bytes: u64,
    method: SaveMethod,
    /// Estimated time to read it.
    pub(super) estimate: Duration,
}

/// Method to save uncopied memory.
#[derive(Debug, PartialEq, Eq)]
enum SaveMethod {
    /// Copies the pages into this buffer. Its memory is resident beforehand, because making it resident takes longer
    /// than reading the pages.
    CopyPages(Vec<u8>),
    /// Saves only words that may be pointers.
    PointersOnly,
    /// Reads nothing, because there is no time.
    Skip,
}

impl SavePlan {
    /// Plans how to save uncopied memory within `time` and `max_bytes`: all pages if they fit into both; else only
    /// words that may be pointers, if scanning all pages fits into `time`; else nothing. Allocates the buffer for the
    /// pages.
    pub(super) fn new(
        kind: UncopiedKind,
        mappings: &[MappingUsage],
        time: Duration,
        max_bytes: u64,
    ) -> Self {
        let uncopied = mappings
            .iter()
            .filter(|each| kind.includes(each) && !each.is_device);
        let bytes: u64 = uncopied.map(|each| each.resident + each.swapped).sum();
        // The times are per MiB; the size is in KiB first, so that a remainder counts.
        let total_time =
            |mib: Duration| Duration::from_nanos((mib.as_nanos() as u64 * (bytes >> 10)) >> 10);
        // The memory may grow until the threads are stopped.
        let capacity = bytes + bytes / 8;
        let (method, estimate) = if capacity <= max_bytes && total_time(SAVE_TIME_PER_MIB) <= time {
            // The buffer is filled with ones, because the kernel makes zeros resident only when they are
            // written.
            (
                SaveMethod::CopyPages(vec![1; capacity as usize]),
                total_time(SAVE_TIME_PER_MIB),
            )
        } else if total_time(SCAN_TIME_PER_MIB) <= time {
            (SaveMethod::PointersOnly, total_time(SCAN_TIME_PER_MIB))
        } else {
            (SaveMethod::Skip, Duration::ZERO)
        };
        Self {
            kind,
            max_bytes,
            method,
            estimate,
        }
    }

    /// Bytes that the saved content will take at most.
    pub(super) fn planned_bytes(&self) -> u64 {
        match &self.method {
            SaveMethod::CopyPages(bytes) => bytes.len() as u64,
            SaveMethod::PointersOnly => self.max_bytes,
            SaveMethod::Skip => 0,
        }
    }
}

impl UncopiedMemory {
    /// Reads the uncopied memory of a process whose threads are all stopped, by the method of `plan`; if its pages no
    /// longer fit, saves only words that may be pointers. Saves nothing if reading is not done by `deadline`, a page
    /// does not arrive in time, or the pointers need too much memory. `copy_maps` is the copy's /proc/PID/maps; `usage`
    /// are the mappings of the process. Fails if the process was killed.
    pub(super) fn save(
        pid: u32,
        copy_maps: &[u8],
        usage: &[MappingUsage],
        plan: SavePlan,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let copied: Vec<_> = mappings(copy_maps).collect();
        let is_copied = |range: &Range<u64>| {
            let index = copied.partition_point(|copied| copied.range.end <= range.start);
            copied
                .get(index)
                .is_some_and(|copied| copied.range.contains(&range.start))
        };
        let ranges = |is_selected: fn(&MappingUsage) -> bool| -> Vec<Range<u64>> {
            let selected = usage.iter().filter(|each| is_selected(each));
            selected.map(|each| each.range.clone()).collect()
        };
        let mut regions = match plan.kind {
            UncopiedKind::Excluded => {
                let emptied = ranges(|each| each.is_emptied);
                read_regions(pid, |mapping| {
                    let is_shared = mapping.access[3] == b's';
                    let is_lacking =
                        !is_copied(&mapping.range) || overlaps_any(&mapping.range, &emptied);
                    !is_shared && is_lacking
                })?
            }
            UncopiedKind::Shared => {
                let unwritable = ranges(|each| each.is_unwritable);
                read_regions(pid, |mapping| {
                    mapping.access[3] == b's' && !overlaps_any(&mapping.range, &unwritable)
                })?
            }
        };
        ViewedParts::drop_second_views(&mut regions);
        for region in &mut regions {
            region.is_uncopied = true;
        }
        let devices = ranges(|each| each.is_device);
        let readable = regions
            .iter()
            .filter(|region| !overlaps_any(&region.range, &devices));
        let pages = readable.flat_map(|region| {
            let pages = region.pages.iter();
            pages.map(|pages| (pages.clone(), region.supports_direct_read()))
        });
        let pages: Vec<_> = pages.collect();
        let size: u64 = pages.iter().map(|(pages, _)| pages.end - pages.start).sum();
        let process = ProcessMemory::open(pid)?;
        let mut unreadable = 0;
        let saved = match plan.method {
            SaveMethod::Skip => None,
            SaveMethod::CopyPages(mut bytes) if size <= plan.max_bytes => {
                // The size may be larger or smaller than planned.
                bytes.reserve_exact((size as usize).saturating_sub(bytes.len()));
                bytes.resize(size as usize, 0);
                save_pages(&process, &pages, bytes, deadline, &mut unreadable)
            }
            _ => {
                // Heaps lie in private writable memory.
                let private = copied.iter().filter(|each| each.access[1..] == *b"w-p");
                let targets = AddressFilter::new(private.map(|each| &each.range));
                save_pointers(
                    &process,
                    &pages,
                    &targets,
                    plan.max_bytes,
                    deadline,
                    &mut unreadable,
                )
            }
        };
        Ok(Self {
            kind: plan.kind,
            unreadable,
            regions,
            saved,
        })
    }

    /// Whether a range overlaps one of the mappings.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        let index = self
            .regions
            .partition_point(|region| region.range.end <= range.start);
        self.regions
            .get(index)
            .is_some_and(|region| region.range.start < range.end)
    }

    /// Whether the content was read while all threads were stopped.
    pub(crate) fn is_saved(&self) -> bool {
        self.saved.is_some()
    }

    /// Notes about content that could not be saved.
    pub(crate) fn notes(&self) -> impl Iterator<Item = Unsearched> {
        let name = self.kind.name();
        let pages = self.regions.iter().flat_map(|region| &region.pages);
        let bytes: u64 = pages.map(|pages| pages.end - pages.start).sum();
        let late = (bytes > 0 && self.saved.is_none()).then(|| {
            let why =
                "it was read later, because reading it takes more than --max-pause or --max-memory";
            Unsearched::for_bytes(bytes, format!("{name}, as it was at the snapshot"), why)
        });
        let unreadable = (self.unreadable > 0).then(|| {
            let why = "the kernel lets no other process read it, as memory of memfd_secret(2)";
            Unsearched::for_bytes(self.unreadable, name, why)
        });
        late.into_iter().chain(unreadable)
    }

    /// Memory that the saved content takes, in bytes.
    pub(crate) fn memory_size(&self) -> u64 {
        match &self.saved {
            Some(SavedMemory::Pages { bytes, .. }) => bytes.capacity() as u64,
            Some(SavedMemory::Pointers(words)) => {
                (words.capacity() * size_of::<(u64, u64)>()) as u64
            }
            None => 0,
        }
    }

    /// Copies the saved content at an address into a buffer. Bytes that were not saved are left unchanged.
    pub(crate) fn copy_saved_bytes_into(&self, address: u64, buffer: &mut [u8]) {
        let end = address + buffer.len() as u64;
        match &self.saved {
            Some(SavedMemory::Pages { runs, bytes }) => {
                let first = runs.partition_point(|(run, _)| run.end <= address);
                for (run, offset) in runs[first..].iter().take_while(|(run, _)| run.start < end) {
                    let (start, stop) = (run.start.max(address), run.end.min(end));
                    let length = (stop - start) as usize;
                    let (source, target) = (
                        offset + (start - run.start) as usize,
                        (start - address) as usize,
                    );
                    buffer[target..target + length]
                        .copy_from_slice(&bytes[source..source + length]);
                }
            }
            Some(SavedMemory::Pointers(words)) => {
                // A saved word may begin before the address.
                let first = words.partition_point(|(start, _)| start + 8 <= address);
                for (start, word) in words[first..].iter().take_while(|(start, _)| *start < end) {
                    for (byte_address, byte) in (*start..).zip(word.to_le_bytes()) {
                        let offset = byte_address.checked_sub(address);
                        if let Some(target) =
                            offset.and_then(|offset| buffer.get_mut(offset as usize))
                        {
                            *target = byte;
                        }
                    }
                }
            }
            None => {}
        }
    }
}

/// Run of pages, and whether it is read [directly](ProcessMemory::read).
type UncopiedRun = (Range<u64>, bool);

/// Saves all pages in `bytes`. `None` if the deadline passes or a page does not arrive in time; bytes that cannot
/// be read are 0, and are added to `unreadable`.
fn save_pages(
    process: &ProcessMemory,
    pages: &[UncopiedRun],
    mut bytes: Vec<u8>,
    deadline: Instant,
    unreadable: &mut u64,
) -> Option<SavedMemory> {
    let (mut runs, mut end) = (Vec::new(), 0);
    for (run, is_direct) in pages {
        runs.push((run.clone(), end));
        for block in blocks_between_checks(run) {
            if Instant::now() > deadline {
                return None;
            }
            let length = (block.end - block.start) as usize;
            let read = process.read(block.start, &mut bytes[end..end + length], *is_direct);
            bytes[end + read..end + length].fill(0);
            *unreadable += (length - read) as u64;
            end += length;
        }
    }
    process.memory().require_responsive_memory().ok()?;
    Some(SavedMemory::Pages { runs, bytes })
}

/// Saves the words that may point to `targets`. `None` if the deadline passes, they need more than a third of
/// `max_bytes`, or a page does not arrive in time. Adds bytes that cannot be read to `unreadable`.
fn save_pointers(
    process: &ProcessMemory,
    pages: &[UncopiedRun],
    targets: &AddressFilter,
    max_bytes: u64,
    deadline: Instant,
    unreadable: &mut u64,
) -> Option<SavedMemory> {
    let max_words = max_bytes as usize / size_of::<(u64, u64)>();
    let mut bytes = vec![0; BYTES_PER_CHECK as usize];
    let mut found = Vec::new();
    for (run, is_direct) in pages {
        let mut before = None;
        for block in blocks_between_checks(run) {
            let block_bytes = &mut bytes[..(block.end - block.start) as usize];
            let read = process.read(block.start, block_bytes, *is_direct);
            *unreadable += (block_bytes.len() - read) as u64;
            let words = block_bytes[..read].chunks_exact(WORD);
            let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
            for (address, word) in (block.start..).step_by(WORD).zip(words) {
                let packed = before.map(|before| word_between(before, word));
                if let Some(packed) = packed.filter(|packed| targets.may_contain(*packed)) {
                    found.push((address - WORD_STEP as u64, packed));
                }
                if targets.may_contain(word) {
                    found.push((address, word));
                }
                before = Some(word);
            }
            if read < block_bytes.len() {
                before = None;
            }
            // A vector that grows needs three times its memory for a moment.
            if Instant::now() > deadline || found.len() > max_words / 3 {
                return None;
            }
        }
    }
    process.memory().require_responsive_memory().ok()?;
    Some(SavedMemory::Pointers(found))
}

/// Splits a range into blocks of [`BYTES_PER_CHECK`] bytes.
fn blocks_between_checks(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    let starts = range.clone().step_by(BYTES_PER_CHECK as usize);
    starts.map(move |start| start..end.min(start + BYTES_PER_CHECK))
}

/// Whether a range overlaps any of the others.
fn overlaps_any(range: &Range<u64>, others: &[Range<u64>]) -> bool {
    let mut others = others.iter();
    others.any(|other| other.start < range.end && range.start < other.end)
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn plan_saves_as_much_as_time_and_memory_allow() {
        let usage = |mib: u64| {
            let not_copied = |resident| MappingUsage {
                resident,
                is_not_copied: true,
                ..MappingUsage::default()
            };
            let copied = MappingUsage {
                resident: 100 << 30,
                ..MappingUsage::default()
            };
            let device = MappingUsage {
                is_device: true,
                ..not_copied(100 << 30)
            };
            [not_copied(mib * MIB), copied, device]
        };
        let plan = |time, max_mib: u64| {
            let SavePlan {
                method, estimate, ..
            } = SavePlan::new(
                UncopiedKind::Excluded,
                &usage(16),
                Duration::from_millis(time),
                max_mib * MIB,
            );
            (method, estimate)
        };
        let all_pages = SaveMethod::CopyPages(vec![1; 18 << 20]);
        assert_eq!(plan(20, 18), (all_pages, 16 * SAVE_TIME_PER_MIB));
        assert_eq!(
            plan(20, 17),
            (SaveMethod::PointersOnly, 16 * SCAN_TIME_PER_MIB)
        );
        assert_eq!(
            plan(10, 18),
            (SaveMethod::PointersOnly, 16 * SCAN_TIME_PER_MIB)
        );
        assert_eq!(plan(5, 18), (SaveMethod::Skip, Duration::ZERO));
        let none = SavePlan::new(UncopiedKind::Excluded, &usage(0), Duration::ZERO, 0);
        assert_eq!(
            (none.method, none.estimate),
            (SaveMethod::CopyPages(vec![]), Duration::ZERO)
        );
    }

    fn read(saved: SavedMemory, address: u64, length: usize) -> Vec<u8> {
        let saved = Some(saved);
        let regions = Vec::new();
        let mut buffer = vec![9; length];
        let memory = UncopiedMemory {
            regions,
            saved,
            ..UncopiedMemory::default()
        };
        memory.copy_saved_bytes_into(address, &mut buffer);
        buffer
    }

    #[test]
    fn saved_pages_are_read_at_their_addresses() {
        let saved = || SavedMemory::Pages {
            runs: vec![(0x1000..0x1004, 0), (0x1008..0x100c, 4)],
            bytes: vec![1, 2, 3, 4, 5, 6, 7, 8],
        };
        let check =
            |address, expected: &[u8]| assert_eq!(read(saved(), address, expected.len()), expected);
        check(0x0fff, &[9, 1, 2]);
        check(0x1002, &[3, 4, 9, 9, 9, 9, 5, 6]);
        check(0x100b, &[8, 9]);
        check(0x2000, &[9]);
    }

    #[test]
    fn saved_pointers_are_read_at_their_addresses() {
        let saved = || SavedMemory::Pointers(vec![(0x1000, 0x0807_0605_0403_0201), (0x1010, 0x11)]);
        let check =
            |address, expected: &[u8]| assert_eq!(read(saved(), address, expected.len()), expected);
        check(0x0fff, &[9, 1, 2]);
        check(0x1006, &[7, 8, 9]);
        check(0x1008, &[9, 9, 9, 9, 9, 9, 9, 9, 0x11, 0]);
        check(0x1018, &[9]);
    }

    #[test]
    fn pointers_at_multiples_of_4_are_saved() {
        const TARGET: u64 = 0x5555_5000_1000;
        let targets = iter::once(TARGET..TARGET + 0x1000);
        let targets = AddressFilter::new(targets.collect::<Vec<_>>().iter());
        let process = ProcessMemory::open(std::process::id()).unwrap();
        let mut memory = vec![0x11_u8; 2 * BYTES_PER_CHECK as usize];
        let first = memory.as_ptr().align_offset(WORD);
        // In the middle of a block, and in two blocks.
        let offsets = [8, 20, BYTES_PER_CHECK as usize - 4];
        for offset in offsets {
            memory[first + offset..][..WORD].copy_from_slice(&TARGET.to_le_bytes());
        }
        let start = memory.as_ptr().addr() as u64 + first as u64;
        let run = (start..start + BYTES_PER_CHECK + 64, false);
        let deadline = Instant::now() + Duration::from_secs(600);
        let mut unreadable = 0;
        let runs = [run];
        let saved = save_pointers(&process, &runs, &targets, MIB, deadline, &mut unreadable);
        let Some(SavedMemory::Pointers(saved)) = saved else {
            panic!("{saved:?}");
        };
        assert_eq!(saved, offsets.map(|offset| (start + offset as u64, TARGET)));
        assert_eq!(unreadable, 0);
    }

    #[test]
    fn unsaved_memory_has_note() {
        let region = Region {
            pages: iter::once(0x1000..0x3000).collect(),
            ..Region::anonymous(0x1000..0x9000)
        };
        let mut uncopied = UncopiedMemory {
            regions: vec![region],
            ..UncopiedMemory::default()
        };
        let note = uncopied.notes().next().unwrap().to_string();
        assert!(
            note.starts_with("8.00KiB of memory that a copy lacks"),
            "{note}"
        );
        uncopied.saved = Some(SavedMemory::Pointers(Vec::new()));
        assert_eq!(uncopied.notes().count(), 0);
        uncopied.unreadable = 4096;
        assert_eq!(uncopied.notes().count(), 1);
        assert_eq!(UncopiedMemory::default().notes().count(), 0);
    }
}
