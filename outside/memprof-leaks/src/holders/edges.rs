//! Who points to whom.

use std::ops::{ControlFlow, Range};

use crate::analysis::AnalyzedSnapshot;
use crate::objects::{Object, ObjectIndex};
use crate::snapshot_memory::CachedReader;

/// Of an object that is larger, only pages that exist are read.
const LARGE: u64 = 1 << 20;

/// The objects of a process, and what they hold.
pub(super) struct PointerScanner<'a> {
    pub(super) seen: &'a AnalyzedSnapshot<'a>,
    pub(super) numbers: &'a ObjectIndex<'a>,
    /// Numbers of objects whose words hold nothing.
    silent: Vec<u32>,
}

impl<'a> PointerScanner<'a> {
    pub(super) fn new(seen: &'a AnalyzedSnapshot<'a>, numbers: &'a ObjectIndex<'a>) -> Self {
        let silent = seen.silent.iter();
        let mut silent: Vec<_> = silent.filter_map(|start| numbers.number(*start)).collect();
        silent.sort_unstable();
        Self {
            seen,
            numbers,
            silent,
        }
    }

    /// How many bytes objects and roots have.
    pub(super) fn searched(&self) -> u64 {
        let objects = self.numbers.all().map(|object| object.size());
        let roots = self.seen.roots.ranges.iter();
        objects.sum::<u64>() + roots.map(|range| range.end - range.start).sum::<u64>()
    }

    pub(super) fn window(&self) -> CachedReader<'a> {
        CachedReader::new(&self.seen.view)
    }

    /// Calls `found` with each object to which one points, until it says to stop: an array may point to the same
    /// objects over and over.
    pub(super) fn of(
        &self,
        number: u32,
        object: &Object,
        memory: &mut CachedReader<'_>,
        mut found: impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.silent.binary_search(&number).is_ok() {
            return ControlFlow::Continue(());
        }
        let mut last = number;
        let mut words = |range: Range<u64>| {
            range.step_by(8).try_for_each(|address| {
                match memory
                    .word(address)
                    .and_then(|word| self.numbers.target(word))
                {
                    Some(target) if target != number && target != last => {
                        last = target;
                        found(target)
                    }
                    _ => ControlFlow::Continue(()),
                }
            })
        };
        let Range { start, end } = object.range;
        let end = end & !7;
        if end - start <= LARGE {
            return words(start..end);
        }
        let region = self.seen.view.region(start);
        let pages = region.map_or(&[][..], |region| &region.pages);
        let first = pages.partition_point(|pages| pages.end <= start);
        let mut within = pages[first..].iter().take_while(|pages| pages.start < end);
        within.try_for_each(|pages| words(pages.start.max(start)..pages.end.min(end)))
    }
}
