//! Writes the history of the loaded code to a dump: comment lines, and the generations of the stacks that need one.
//!
//! ```text
//! # code generations: 3 marked
//! # unloaded: 0-1 7f1c2a001000-7f1c2a002000 00001000 5b3c… /srv/plugins/libx.so
//! # loaded: 2 7f1c2a001000-7f1c2a003000
//! ```
//!
//! Stacks without a mark belong to generation 0. The header ends with `unmarked` instead of `marked` if some stacks of
//! other generations lack a mark. A file without a build id has `-`.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::MutexGuard;
use std::thread;
use std::time::Duration;

use super::super::installed_walker::{walked_every_stack, without_code_generation};
use super::{CodeHistory, CodeSegment, HISTORY};
use crate::allocators::loaded_objects::ForkGuard;

/// Maximum number of waits of one millisecond for another thread that records loaded code.
const MAX_WAITS: u32 = 100;

/// Address ranges with code that changed since sampling began.
#[derive(Debug)]
pub(crate) struct ChangedCode {
    /// Sorted and disjoint ranges.
    ranges: Vec<Range<u64>>,
}

impl ChangedCode {
    /// Lists the addresses of code that changed, up to the history's last update. If another thread keeps the history
    /// locked, all addresses count as changed.
    pub(crate) fn from_history() -> Self {
        // A child that is forked meanwhile would inherit the history locked.
        let _no_fork = ForkGuard::acquire();
        let ranges = match lock_history() {
            Some(history) => changed_segments(&history)
                .map(|segment| segment.start as u64..segment.end as u64)
                .collect(),
            None => std::iter::once(0..u64::MAX).collect(),
        };
        Self::from_ranges(ranges)
    }

    /// Sorts the ranges, and joins those that overlap or touch.
    fn from_ranges(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let is_joined = next.start <= range.end;
            if is_joined {
                range.end = range.end.max(next.end);
            }
            is_joined
        });
        Self { ranges }
    }

    /// Returns a stack as a dump contains it. Removes the pseudo frame with the code generation, unless a frame of the
    /// stack is in changed code.
    pub(crate) fn frames_to_write<'a>(&self, frames: &'a [u64]) -> &'a [u64] {
        let code = without_code_generation(frames);
        let is_changed = |frame: &u64| {
            // A frame is a return address: after a call at the end of a range, it is the range's end.
            let after = self.ranges.partition_point(|range| range.start < *frame);
            after > 0 && *frame <= self.ranges[after - 1].end
        };
        match code.len() < frames.len() && code.iter().any(is_changed) {
            true => frames,
            false => code,
        }
    }
}

/// Updates the history of the loaded code, and returns the comment lines about code that was unloaded, or loaded after
/// the first generation: after some object was unloaded. Empty if there is no such code, or if another thread keeps the
/// history locked. `is_marked` means that every stack has its generation, as memprof's sampler ensures.
pub(crate) fn code_history_comment_lines(is_marked: bool) -> Vec<String> {
    let no_fork = ForkGuard::acquire();
    let Some(mut history) = lock_history() else {
        return Vec::new();
    };
    history.update_if_changed(&no_fork);
    let marks = match is_marked || walked_every_stack() {
        true => "marked",
        false => "unmarked",
    };
    let mut changed = changed_segments(&history).peekable();
    let header = format!("# code generations: {} {marks}", history.generation + 1);
    let header = changed.peek().map(|_| header);
    let lines = changed.map(|segment| history.segment_line(segment));
    header.into_iter().chain(lines).collect()
}

/// Iterates over the segments that were not loaded in every generation.
fn changed_segments(history: &CodeHistory) -> impl Iterator<Item = &CodeSegment> {
    let segments = history.segments[..history.count].iter();
    segments.filter(|segment| !segment.is_loaded || segment.first > 0)
}

/// Locks the history; the caller holds a [`ForkGuard`]. Waits up to [`MAX_WAITS`] milliseconds. `None` if it stays
/// locked, for example in a child that clone(2) created while another thread held the lock.
fn lock_history() -> Option<MutexGuard<'static, CodeHistory>> {
    (0..MAX_WAITS).find_map(|_| {
        let history = HISTORY.try_lock().ok();
        if history.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        history
    })
}

impl CodeHistory {
    /// Formats the comment line of a segment: `# loaded:` with the first generation and the addresses, or `# unloaded:`
    /// with the generations, addresses, file offset, build id and path.
    fn segment_line(&self, segment: &CodeSegment) -> String {
        let CodeSegment {
            start,
            end,
            offset,
            first,
            last,
            ..
        } = segment;
        if segment.is_loaded {
            return format!("# loaded: {first} {start:x}-{end:x}");
        }
        let id = self.recorded_text(segment.build_id).iter();
        let id: String = id.map(|byte| format!("{byte:02x}")).collect();
        let id = if id.is_empty() { "-" } else { &id };
        let path = self.path_with_deletion_mark(segment, id != "-");
        format!("# unloaded: {first}-{last} {start:x}-{end:x} {offset:08x} {id} {path}")
    }

    /// Absolute path of an unloaded segment's file. Ends with ` (deleted)`, like the kernel's paths, if another file
    /// may be there now. A relative path alone does not identify the file, because the working directory may have
    /// changed, so it needs a build id.
    fn path_with_deletion_mark(&self, segment: &CodeSegment, has_build_id: bool) -> String {
        let path = Path::new(OsStr::from_bytes(self.recorded_text(segment.path)));
        let absolute = std::path::absolute(path);
        let text = absolute.as_deref().unwrap_or(path).display().to_string();
        let changed = std::fs::metadata(path)
            .map(|file| Duration::new(file.ctime() as u64, file.ctime_nsec() as u32));
        // The file was replaced or renamed after the segment was found.
        let is_other = changed.is_ok_and(|changed| changed > segment.found_at);
        match is_other || path.is_relative() && !has_build_id {
            true => format!("{text} (deleted)"),
            false => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: u64 = 0x4d_5003 << 40 | 5;

    #[test]
    fn generation_is_written_only_with_changed_code() {
        let changed =
            ChangedCode::from_ranges(vec![0x9000..0xa000, 0x3000..0x4000, 0x3800..0x5000]);
        assert_eq!(changed.ranges, [0x3000..0x5000, 0x9000..0xa000]);
        let check = |frames: &[u64], is_written: bool| {
            let expected = if is_written { frames } else { &frames[..1] };
            assert_eq!(changed.frames_to_write(frames), expected, "{frames:x?}");
        };
        check(&[0x2000, GENERATION], false);
        // A return address is behind its call.
        check(&[0x3000, GENERATION], false);
        check(&[0x3001, GENERATION], true);
        check(&[0x5000, GENERATION], true);
        check(&[0x5001, GENERATION], false);
        check(&[0x9fff, GENERATION], true);
        check(&[0x3001], true);
        assert_eq!(changed.frames_to_write(&[]), [] as [u64; 0]);
    }
}
