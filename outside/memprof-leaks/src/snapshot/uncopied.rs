//! What a copy lacks (`MADV_DONTFORK`, `MADV_WIPEONFORK`): it is read while all threads still stand still, because
//! they write to it afterwards. V8 has its heap in such memory, and moves what lies there all the time.

use std::ops::Range;
use std::time::{Duration, Instant};

use memprof_ptrace::maps::mappings;

use super::smaps::MappingUsage;
use crate::address_filter::AddressFilter;
use crate::error::Error;
use crate::regions::{ProcessMemory, Region, read_regions};

/// Bytes that are read between two looks at the clock.
const BLOCK: u64 = 1 << 20;
/// What it takes to keep a MiB, measured on 32 MiB: the memory is what is slow.
const KEEP: Duration = Duration::from_micros(900);
/// And to search it for words that may be pointers, measured on 192 MiB.
const SEARCH: Duration = Duration::from_micros(550);

/// What a copy lacks.
#[derive(Debug, Default)]
pub(crate) struct UncopiedMemory {
    /// Its mappings, by address.
    pub(crate) regions: Vec<Region>,
    kept: Option<SavedMemory>,
}

/// What lay there.
#[derive(Debug)]
enum SavedMemory {
    /// The pages that exist, one after the other, and where those of each run begin.
    Pages {
        runs: Vec<(Range<u64>, usize)>,
        bytes: Vec<u8>,
    },
    /// The words that may point to memory which the copy has, by address.
    Pointers(Vec<(u64, u64)>),
}

/// How what a copy will lack is to be read.
#[derive(Debug)]
pub(super) struct SavePlan {
    /// For all that is kept, in bytes.
    room: u64,
    how: SaveMethod,
    /// How long that takes, estimated.
    pub(super) estimate: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum SaveMethod {
    /// Into this memory. The kernel has given it already, which takes longer than to read the pages.
    CopyPages(Vec<u8>),
    PointersOnly,
    /// There is no time for it.
    Skip,
}

impl SavePlan {
    /// A plan that takes so much time and memory at the most.
    pub(super) fn of(figures: &[MappingUsage], time: Duration, room: u64) -> Self {
        let uncopied = figures
            .iter()
            .filter(|each| each.is_not_copied && !each.is_device);
        let bytes: u64 = uncopied.map(|each| each.resident + each.swapped).sum();
        let takes =
            |mib: Duration| Duration::from_nanos((mib.as_nanos() as u64 * (bytes >> 10)) >> 10);
        // It may grow until its threads stand still.
        let space = bytes + bytes / 8;
        let (how, estimate) = if space <= room && takes(KEEP) <= time {
            // Not zeros, for which the kernel gives no memory yet.
            (SaveMethod::CopyPages(vec![1; space as usize]), takes(KEEP))
        } else if takes(SEARCH) <= time {
            (SaveMethod::PointersOnly, takes(SEARCH))
        } else {
            (SaveMethod::Skip, Duration::ZERO)
        };
        Self {
            room,
            how,
            estimate,
        }
    }
}

impl UncopiedMemory {
    /// What a copy lacks of a process all of whose threads stand still; reads it as planned, and not longer than
    /// `until`.
    ///
    /// # Errors
    /// One of both was killed.
    pub(super) fn save(
        pid: u32,
        copy_maps: &[u8],
        figures: &[MappingUsage],
        plan: SavePlan,
        until: Instant,
    ) -> Result<Self, Error> {
        let copied: Vec<_> = mappings(copy_maps).collect();
        let is_copied = |range: &Range<u64>| {
            let at = copied.partition_point(|copied| copied.range.end <= range.start);
            copied
                .get(at)
                .is_some_and(|copied| copied.range.contains(&range.start))
        };
        let ranges = |is_one: fn(&MappingUsage) -> bool| -> Vec<Range<u64>> {
            let chosen = figures.iter().filter(|each| is_one(each));
            chosen.map(|each| each.range.clone()).collect()
        };
        let emptied = ranges(|each| each.is_emptied);
        let mut regions =
            read_regions(pid, |range| !is_copied(range) || overlaps(range, &emptied))?;
        for region in &mut regions {
            region.is_uncopied = true;
        }
        let devices = ranges(|each| each.is_device);
        let readable = regions
            .iter()
            .filter(|region| !overlaps(&region.range, &devices));
        let pages = readable.flat_map(|region| {
            let pages = region.pages.iter();
            pages.map(|pages| (pages.clone(), region.is_direct()))
        });
        let pages: Vec<_> = pages.collect();
        let size: u64 = pages.iter().map(|(pages, _)| pages.end - pages.start).sum();
        let process = ProcessMemory::open(pid)?;
        let kept = match plan.how {
            SaveMethod::Skip => None,
            SaveMethod::CopyPages(mut bytes) if size <= plan.room => {
                // More than was planned, or less.
                bytes.reserve_exact((size as usize).saturating_sub(bytes.len()));
                bytes.resize(size as usize, 0);
                save_pages(&process, &pages, bytes, until)
            }
            _ => {
                let private = copied.iter().filter(|each| each.access[1..] == *b"w-p");
                let units = AddressFilter::new(private.map(|each| &each.range));
                save_pointers(&process, &pages, &units, plan.room, until)
            }
        };
        Ok(Self { regions, kept })
    }

    /// Whether a range belongs to what the copy lacks.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        let at = self
            .regions
            .partition_point(|region| region.range.end <= range.start);
        self.regions
            .get(at)
            .is_some_and(|region| region.range.start < range.end)
    }

    /// Whether it was read while all threads stood still.
    pub(crate) fn is_saved(&self) -> bool {
        self.kept.is_some()
    }

    /// What is not known of it: the same words in each look, which are told once.
    pub(crate) fn unread_note(&self) -> Option<String> {
        let mut pages = self.regions.iter().flat_map(|region| &region.pages);
        let message = "memory that a copy lacks (MADV_DONTFORK), as it was at the snapshot; it was read later, because \
                       reading it takes more than --max-pause or --max-memory";
        (pages.next().is_some() && self.kept.is_none()).then(|| message.to_owned())
    }

    /// What is taken of memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        match &self.kept {
            Some(SavedMemory::Pages { bytes, .. }) => bytes.capacity() as u64,
            Some(SavedMemory::Pointers(words)) => {
                (words.capacity() * size_of::<(u64, u64)>()) as u64
            }
            None => 0,
        }
    }

    /// Puts what was kept from an address on into a buffer; the rest of that stays as it is.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) {
        let end = address + buffer.len() as u64;
        match &self.kept {
            Some(SavedMemory::Pages { runs, bytes }) => {
                let first = runs.partition_point(|(run, _)| run.end <= address);
                for (run, at) in runs[first..].iter().take_while(|(run, _)| run.start < end) {
                    let (from, to) = (run.start.max(address), run.end.min(end));
                    let length = (to - from) as usize;
                    let (source, target) =
                        (at + (from - run.start) as usize, (from - address) as usize);
                    buffer[target..target + length]
                        .copy_from_slice(&bytes[source..source + length]);
                }
            }
            Some(SavedMemory::Pointers(words)) => {
                // One may begin before.
                let first = words.partition_point(|(place, _)| place + 8 <= address);
                for (place, word) in words[first..].iter().take_while(|(place, _)| *place < end) {
                    for (place, byte) in (*place..).zip(word.to_le_bytes()) {
                        let at = place.checked_sub(address);
                        if let Some(target) = at.and_then(|at| buffer.get_mut(at as usize)) {
                            *target = byte;
                        }
                    }
                }
            }
            None => {}
        }
    }
}

/// Pages, and whether they are read [directly](ProcessMemory::read).
type UncopiedRun = (Range<u64>, bool);

/// Reads all; `None` where there is no time for that.
fn save_pages(
    process: &ProcessMemory,
    pages: &[UncopiedRun],
    mut bytes: Vec<u8>,
    until: Instant,
) -> Option<SavedMemory> {
    let (mut runs, mut end) = (Vec::new(), 0);
    for (run, is_direct) in pages {
        runs.push((run.clone(), end));
        for block in blocks(run) {
            if Instant::now() > until {
                return None;
            }
            let length = (block.end - block.start) as usize;
            let read = process.read(block.start, &mut bytes[end..end + length], *is_direct);
            bytes[end + read..end + length].fill(0);
            end += length;
        }
    }
    process.memory().require_answers().ok()?;
    Some(SavedMemory::Pages { runs, bytes })
}

/// Keeps words that may point to `units`; `None` where there is no time for that, or no room.
fn save_pointers(
    process: &ProcessMemory,
    pages: &[UncopiedRun],
    units: &AddressFilter,
    room: u64,
    until: Instant,
) -> Option<SavedMemory> {
    let most = room as usize / size_of::<(u64, u64)>();
    let mut bytes = vec![0; BLOCK as usize];
    let mut found = Vec::new();
    for (run, is_direct) in pages {
        for block in blocks(run) {
            let block_bytes = &mut bytes[..(block.end - block.start) as usize];
            let read = process.read(block.start, block_bytes, *is_direct);
            let words = block_bytes[..read].chunks_exact(8);
            let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
            let places = (block.start..).step_by(8);
            found.extend(
                places
                    .zip(words)
                    .filter(|(_, word)| units.may_contain(*word)),
            );
            // Growing takes three times the memory for a while.
            if Instant::now() > until || found.len() > most / 3 {
                return None;
            }
        }
    }
    process.memory().require_answers().ok()?;
    Some(SavedMemory::Pointers(found))
}

fn blocks(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    let starts = range.clone().step_by(BLOCK as usize);
    starts.map(move |start| start..end.min(start + BLOCK))
}

fn overlaps(range: &Range<u64>, others: &[Range<u64>]) -> bool {
    let mut others = others.iter();
    others.any(|other| other.start < range.end && range.start < other.end)
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn as_much_is_kept_as_time_and_memory_allow() {
        let figures = |mib: u64| {
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
        let plan = |time, room: u64| {
            let SavePlan { how, estimate, .. } =
                SavePlan::of(&figures(16), Duration::from_millis(time), room * MIB);
            (how, estimate)
        };
        let whole = SaveMethod::CopyPages(vec![1; 18 << 20]);
        assert_eq!(plan(20, 18), (whole, 16 * KEEP));
        assert_eq!(plan(20, 17), (SaveMethod::PointersOnly, 16 * SEARCH));
        assert_eq!(plan(10, 18), (SaveMethod::PointersOnly, 16 * SEARCH));
        assert_eq!(plan(5, 18), (SaveMethod::Skip, Duration::ZERO));
        let none = SavePlan::of(&figures(0), Duration::ZERO, 0);
        assert_eq!(
            (none.how, none.estimate),
            (SaveMethod::CopyPages(vec![]), Duration::ZERO)
        );
    }

    fn read(kept: SavedMemory, address: u64, length: usize) -> Vec<u8> {
        let kept = Some(kept);
        let regions = Vec::new();
        let mut buffer = vec![9; length];
        UncopiedMemory { regions, kept }.read(address, &mut buffer);
        buffer
    }

    #[test]
    fn pages_are_told_where_they_lay() {
        let kept = || SavedMemory::Pages {
            runs: vec![(0x1000..0x1004, 0), (0x1008..0x100c, 4)],
            bytes: vec![1, 2, 3, 4, 5, 6, 7, 8],
        };
        let check =
            |address, expected: &[u8]| assert_eq!(read(kept(), address, expected.len()), expected);
        check(0x0fff, &[9, 1, 2]);
        check(0x1002, &[3, 4, 9, 9, 9, 9, 5, 6]);
        check(0x100b, &[8, 9]);
        check(0x2000, &[9]);
    }

    #[test]
    fn pointers_are_told_where_they_lay() {
        let kept = || SavedMemory::Pointers(vec![(0x1000, 0x0807_0605_0403_0201), (0x1010, 0x11)]);
        let check =
            |address, expected: &[u8]| assert_eq!(read(kept(), address, expected.len()), expected);
        check(0x0fff, &[9, 1, 2]);
        check(0x1006, &[7, 8, 9]);
        check(0x1008, &[9, 9, 9, 9, 9, 9, 9, 9, 0x11, 0]);
        check(0x1018, &[9]);
    }

    #[test]
    fn what_could_not_be_kept_is_said() {
        let region = Region {
            pages: iter::once(0x1000..0x3000).collect(),
            ..Region::of(0x1000..0x9000)
        };
        let mut uncopied = UncopiedMemory {
            regions: vec![region],
            kept: None,
        };
        let message = uncopied.unread_note().unwrap();
        assert!(message.starts_with("memory that a copy lacks"), "{message}");
        uncopied.kept = Some(SavedMemory::Pointers(Vec::new()));
        assert_eq!(uncopied.unread_note(), None);
        assert_eq!(UncopiedMemory::default().unread_note(), None);
    }
}
