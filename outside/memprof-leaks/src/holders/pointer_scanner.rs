//! Pointers from objects to objects.

use std::ops::{ControlFlow, Range};

use super::python_pointers::PythonPointers;
use crate::analysis::AnalyzedSnapshot;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::{GC_HEAD_SIZE, Object, ObjectIndex};
use crate::snapshot_memory::CachedReader;
use crate::words::{WORD, word_between};

/// Size in bytes above which only the resident pages of an object are read.
const LARGE_OBJECT_SIZE: u64 = 1 << 20;

/// Finds the objects to which an object of the snapshot points.
pub(super) struct PointerScanner<'a> {
    pub(super) analyzed: &'a AnalyzedSnapshot<'a>,
    pub(super) object_index: &'a ObjectIndex<'a>,
    /// Numbers of objects that hold no pointers, sorted.
    opaque: Vec<u32>,
    pub(super) python: PythonPointers,
}

impl<'a> PointerScanner<'a> {
    /// Prepares a scan of the objects in the index: finds the pointers of Python's variables, and reserves memory for
    /// them. The scan will omit the objects that the allocator uses itself, such as its caches.
    ///
    /// # Errors
    /// `Memory`: the search needs more memory than `--max-memory`.
    pub(super) fn new(
        analyzed: &'a AnalyzedSnapshot<'a>,
        object_index: &'a ObjectIndex<'a>,
        budget: &mut MemoryBudget,
    ) -> Result<Self, Error> {
        let python = PythonPointers::find(analyzed, object_index);
        budget.reserve(python.memory_size())?;
        let opaque = analyzed.opaque.iter();
        let mut opaque: Vec<_> = opaque
            .filter_map(|start| object_index.number(*start))
            .collect();
        opaque.sort_unstable();
        Ok(Self {
            analyzed,
            object_index,
            opaque,
            python,
        })
    }

    /// Total size of all objects and roots, in bytes.
    pub(super) fn searched_bytes(&self) -> u64 {
        let objects = self.object_index.all().map(|object| object.size());
        let roots = self.analyzed.roots.ranges.iter();
        objects.sum::<u64>() + roots.map(|range| range.end - range.start).sum::<u64>()
    }

    /// Reader of the snapshot's memory, with a cache of its own.
    pub(super) fn new_reader(&self) -> CachedReader<'a> {
        CachedReader::new(&self.analyzed.view)
    }

    /// Calls `found` with the number of each other object to which the object points, until it returns `Break`, which
    /// is then returned. An array may point to the same objects repeatedly. Does nothing for an opaque object. Skips a
    /// `PyGC_Head`, words behind the pointers of a Python object, and pointers that are variables of Python, because
    /// these are holders themselves. Reads only the resident pages of a large object.
    pub(super) fn for_each_target(
        &self,
        number: u32,
        object: &Object,
        memory: &mut CachedReader<'_>,
        mut found: impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.opaque.binary_search(&number).is_ok() {
            return ControlFlow::Continue(());
        }
        let mut last = number;
        let has_variables = self.python.has_variables(number);
        let mut visit = |word: u64| match self.object_index.target_number(word) {
            Some(target) if target != number && target != last => {
                last = target;
                match has_variables && self.python.is_variable_pointer(number, target) {
                    true => ControlFlow::Continue(()),
                    false => found(target),
                }
            }
            _ => ControlFlow::Continue(()),
        };
        let mut words = |range: Range<u64>| {
            let mut before = None;
            range.step_by(WORD).try_for_each(|address| {
                let word = memory.read_word(address);
                if let (Some(before), Some(word)) = (before, word) {
                    visit(word_between(before, word))?;
                }
                before = word;
                word.map_or(ControlFlow::Continue(()), &mut visit)
            })
        };
        let Range { mut start, end } = self.python.pointer_range(number, object);
        let end = end & !7;
        // The collector's lists, whose links are in the `PyGC_Head`, hold nothing. The ends of a list point to the
        // interpreter's own state, from which all threads are reached.
        let behind_head = self.analyzed.objects.python_object_in(object);
        if let Some(behind_head) = behind_head.filter(|behind| *behind <= end) {
            words(start..behind_head - GC_HEAD_SIZE)?;
            start = behind_head;
        }
        if end - start <= LARGE_OBJECT_SIZE {
            return words(start..end);
        }
        let region = self.analyzed.view.region(start);
        let pages = region.map_or(&[][..], |region| &region.pages);
        let first = pages.partition_point(|pages| pages.end <= start);
        let mut within = pages[first..].iter().take_while(|pages| pages.start < end);
        within.try_for_each(|pages| words(pages.start.max(start)..pages.end.min(end)))
    }
}
