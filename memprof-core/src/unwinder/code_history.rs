//! History of the loaded code: which file was at which addresses, by generation.
//!
//! Between a sample and the dump with its stack, a library may be unloaded and another loaded at its addresses. A
//! generation ends when an object is found to be unloaded. Samples of later generations carry its number as a pseudo
//! frame, so an address belongs to the file that was there in the generation of its sample. If two files were at one
//! address in the same generation, both are listed, because nothing distinguishes them.
//!
//! Threads of the program that call the loader also update the history, so [`update_code_history`] allocates nothing
//! and does not wait.

mod comments;

use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use libc::{PF_X, PT_LOAD};

use super::installed_walker::set_code_generation;
use crate::allocators::loaded_objects::{
    ForkGuard, ListedObject, memory_range, visit_objects, with_loader_list_locked,
};

pub(crate) use self::comments::{ChangedCode, code_history_comment_lines};

/// Maximum number of recorded segments.
const MAX_SEGMENTS: usize = 1024;
/// Maximum total length of build ids and paths, in bytes.
const TEXT_BYTES: usize = 128 << 10;

/// Page size to which the addresses of segments are rounded.
const PAGE: usize = 4096;

static HISTORY: Mutex<CodeHistory> = Mutex::new(CodeHistory::new());

/// Code segment of an object that is or was loaded.
#[derive(Clone, Copy, Debug)]
struct CodeSegment {
    start: usize,
    end: usize,
    /// Offset of `start` in the file.
    offset: u64,
    /// Start and end in the history's texts.
    build_id: [u32; 2],
    /// Start and end in the history's texts: the path as the loader has it.
    path: [u32; 2],
    /// First generation, and last one if it is unloaded.
    first: u32,
    last: u32,
    is_loaded: bool,
    /// Number of the last update that found it loaded.
    seen: u64,
    /// Time of the first update that found it, since the epoch.
    found_at: Duration,
}

impl CodeSegment {
    const EMPTY: Self = Self {
        start: 0,
        end: 0,
        offset: 0,
        build_id: [0; 2],
        path: [0; 2],
        first: 0,
        last: 0,
        is_loaded: false,
        seen: 0,
        found_at: Duration::ZERO,
    };

    /// Returns the range of addresses that the segment occupies, or occupied.
    fn address_range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Whether the two segments have an address in common, perhaps at different times.
    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The segments in the order in which they were found, and their texts. Tables have a fixed size, because nothing may
/// be allocated.
#[derive(Debug)]
struct CodeHistory {
    /// Numbers of objects ever loaded and unloaded, at the last update.
    counts: (u64, u64),
    updates: u64,
    generation: u32,
    segments: [CodeSegment; MAX_SEGMENTS],
    count: usize,
    /// Index of the segment that should come next in the loader's list.
    expected: usize,
    texts: [u8; TEXT_BYTES],
    text_len: usize,
}

/// Records the code that is loaded now. If an object was unloaded since the last call, begins a new generation, whose
/// number later samples carry. Does nothing while another thread updates or reads the history. `no_fork` is the guard
/// that delays forks meanwhile.
pub(crate) fn update_code_history(no_fork: &ForkGuard) {
    // A child created by clone(2) may have inherited a locked mutex, so this must not wait.
    if let Ok(mut history) = HISTORY.try_lock() {
        history.update_if_changed(no_fork);
    }
}

impl CodeHistory {
    const fn new() -> Self {
        Self {
            counts: (0, 0),
            updates: 0,
            generation: 0,
            segments: [CodeSegment::EMPTY; MAX_SEGMENTS],
            count: 0,
            expected: 0,
            texts: [0; TEXT_BYTES],
            text_len: 0,
        }
    }

    /// Records the loaded code if an object was loaded or unloaded since the last update. If one was unloaded, a new
    /// generation begins, whose number further samples carry. The loader's list stays locked meanwhile: otherwise,
    /// another object could be loaded at the addresses of an unloaded one before the new generation begins.
    fn update_if_changed(&mut self, no_fork: &ForkGuard) {
        with_loader_list_locked(no_fork, &mut |counts| {
            if self.counts == counts {
                return;
            }
            self.begin_update();
            visit_objects(no_fork, &mut |object| self.add_object(&object));
            if self.end_update(counts) {
                set_code_generation(Some(self.generation));
            }
        });
    }

    /// Begins an update, in which each object that is loaded is passed to [`Self::add_object`].
    fn begin_update(&mut self) {
        self.updates += 1;
        self.expected = 0;
    }

    /// Ends an update: marks the segments that it did not find as unloaded, and stores `counts`, the numbers of objects
    /// ever loaded and unloaded. If an object was unloaded since the last update, begins a new generation of the code,
    /// and returns true.
    fn end_update(&mut self, counts: (u64, u64)) -> bool {
        for segment in &mut self.segments[..self.count] {
            if segment.is_loaded && segment.seen != self.updates {
                segment.is_loaded = false;
                segment.last = self.generation;
            }
        }
        // The count also covers unloaded objects without a record. The first update has no earlier count to compare.
        let is_changed = self.updates > 1 && self.counts.1 != counts.1;
        self.counts = counts;
        self.generation += u32::from(is_changed);
        is_changed
    }

    /// Records the executable segments of an object. Skips the program, whose path in the loader's list is empty,
    /// because it is never unloaded.
    fn add_object(&mut self, object: &ListedObject<'_>) {
        if object.path.is_empty() {
            return;
        }
        let headers = object.headers.iter();
        for header in headers.filter(|each| each.p_type == PT_LOAD && each.p_flags & PF_X != 0) {
            let Some(range) = memory_range(header, object.bias) else {
                continue;
            };
            let start = range.start & !(PAGE - 1);
            let offset = header.p_offset & !(PAGE as u64 - 1);
            let range = start..range.end.next_multiple_of(PAGE);
            self.record_segment(
                range,
                offset,
                object.build_id.unwrap_or_default(),
                object.path,
            );
        }
    }

    /// Records that a segment is loaded. Its entry stays if the segment was loaded all the time, or if no other code
    /// was at its addresses since it was unloaded. Otherwise appends a new entry.
    fn record_segment(&mut self, range: Range<usize>, offset: u64, build_id: &[u8], path: &[u8]) {
        let is_same = |index: &usize| {
            let segment = &self.segments[*index];
            segment.address_range() == range
                && segment.offset == offset
                && self.recorded_text(segment.build_id) == build_id
                && self.recorded_text(segment.path) == path
        };
        // The loader's list rarely changes its order, so the expected segment is nearly always the right one.
        let expected = Some(self.expected).filter(|index| *index < self.count);
        let found = expected
            .filter(|index| self.segments[*index].is_loaded && is_same(index))
            .or_else(|| (0..self.count).rev().find(is_same));
        match found {
            Some(index)
                if self.segments[index].is_loaded || self.is_range_unused_since_unload(index) =>
            {
                let segment = &mut self.segments[index];
                segment.is_loaded = true;
                segment.seen = self.updates;
                self.expected = index + 1;
            }
            _ => self.append_segment(range, offset, build_id, path),
        }
    }

    /// Whether no other code was found at the addresses of this segment since it was unloaded.
    fn is_range_unused_since_unload(&self, index: usize) -> bool {
        let gone = &self.segments[index];
        let others = self.segments[..self.count].iter().enumerate();
        others
            .filter(|(other, segment)| *other != index && segment.overlaps(gone))
            .all(|(_, segment)| !segment.is_loaded && segment.last <= gone.last)
    }

    /// Appends a loaded segment. Does nothing if there is no room.
    fn append_segment(&mut self, range: Range<usize>, offset: u64, build_id: &[u8], path: &[u8]) {
        let text_len = self.text_len + build_id.len() + path.len();
        if self.count == MAX_SEGMENTS || text_len > TEXT_BYTES {
            return;
        }
        // May run in a thread of the program, which may be forbidden RDTSC. Only coarse clocks do without it.
        let found_at = memprof_own::coarse_wall_time()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.segments[self.count] = CodeSegment {
            start: range.start,
            end: range.end,
            offset,
            build_id: self.append_text(build_id),
            path: self.append_text(path),
            first: self.generation,
            last: 0,
            is_loaded: true,
            seen: self.updates,
            found_at,
        };
        self.count += 1;
        self.expected = self.count;
    }

    /// Appends a text, for which there must be room. Returns its start and end.
    fn append_text(&mut self, text: &[u8]) -> [u32; 2] {
        let start = self.text_len;
        self.text_len += text.len();
        self.texts[start..self.text_len].copy_from_slice(text);
        [start as u32, self.text_len as u32]
    }

    /// Returns the build id or path of a segment, given by its start and end in the texts.
    fn recorded_text(&self, [start, end]: [u32; 2]) -> &[u8] {
        &self.texts[start as usize..end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects as `START PATH`, of one page each, with the path as build id.
    fn update(history: &mut CodeHistory, unloaded: u64, objects: &[(usize, &str)]) {
        history.begin_update();
        for (start, path) in objects {
            let range = *start..start + PAGE;
            history.record_segment(range, 0, path.as_bytes(), path.as_bytes());
        }
        history.end_update((0, unloaded));
    }

    /// Segments as `PATH FIRST-LAST`; without `LAST` while they are loaded.
    fn segments(history: &CodeHistory) -> Vec<String> {
        let segments = history.segments[..history.count].iter();
        segments
            .map(|segment| {
                let path = String::from_utf8_lossy(history.recorded_text(segment.path));
                let last = match segment.is_loaded {
                    true => String::new(),
                    false => segment.last.to_string(),
                };
                format!("{path} {}-{last}", segment.first)
            })
            .collect()
    }

    #[test]
    fn place_has_one_file_in_each_generation_that_was_seen_between_two() {
        let mut history = Box::new(CodeHistory::new());
        update(&mut history, 0, &[(0x1000, "libc")]);
        update(&mut history, 0, &[(0x1000, "libc"), (0x8000, "a")]);
        // Gone, before another one is loaded there.
        update(&mut history, 1, &[(0x1000, "libc")]);
        update(&mut history, 1, &[(0x1000, "libc"), (0x8000, "b")]);
        assert_eq!(segments(&history), ["libc 0-", "a 0-0", "b 1-"]);
        // Exchanged between two updates: in generation 1, both were there.
        update(&mut history, 2, &[(0x1000, "libc"), (0x8000, "c")]);
        assert_eq!(segments(&history), ["libc 0-", "a 0-0", "b 1-1", "c 1-"]);
        assert_eq!(history.generation, 2);
    }

    #[test]
    fn library_that_comes_back_is_recorded_again_only_after_another_one() {
        let mut history = Box::new(CodeHistory::new());
        for cycle in 0..10 {
            update(&mut history, cycle, &[(0x8000, "a")]);
            update(&mut history, cycle + 1, &[]);
        }
        assert_eq!(segments(&history), ["a 0-9"]);
        update(&mut history, 10, &[(0x8000, "b")]);
        update(&mut history, 11, &[]);
        update(&mut history, 11, &[(0x8000, "a")]);
        assert_eq!(segments(&history), ["a 0-9", "b 10-10", "a 11-"]);
    }

    #[test]
    fn full_history_keeps_its_segments_and_counts_generations() {
        let mut history = Box::new(CodeHistory::new());
        for index in 0..MAX_SEGMENTS + 7 {
            update(&mut history, index as u64, &[(index * PAGE, "lib")]);
        }
        assert_eq!(history.count, MAX_SEGMENTS);
        assert_eq!(history.generation as usize, MAX_SEGMENTS + 6);
    }
}
