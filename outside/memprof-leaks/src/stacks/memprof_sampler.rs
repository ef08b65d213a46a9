//! The stacks that memprof's own sampler keeps, where the plugin is in the process.

use std::ops::Range;

use memprof_sampler::{MARK, MAX_FRAMES, RemoteTables};

use super::{Stack, is_code};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// The tables of the samplers in a process: each copy of the plugin's file has some.
#[derive(Debug)]
pub(crate) struct SamplerTables(Vec<RemoteTables>);

impl SamplerTables {
    /// Looks for them in the variables of all files.
    pub(crate) fn find(view: &SnapshotMemory) -> Self {
        let [first, second] = [0, 8].map(|at| {
            let half = MARK[at..at + 8].try_into();
            u64::from_le_bytes(half.expect("eight bytes"))
        });
        let mut memory = CachedReader::new(view);
        let files = view
            .regions
            .iter()
            .filter(|region| region.is_file && region.is_writable);
        let places = files.flat_map(|region| &region.pages);
        let places = places.flat_map(|pages| (pages.start..pages.end).step_by(8));
        let marks = places.filter(|place| {
            memory.word(*place) == Some(first) && memory.word(place + 8) == Some(second)
        });
        let found =
            marks.filter_map(|mark| RemoteTables::read_after(mark, |address| view.word(address)));
        Self(found.collect())
    }

    /// Memory that has the addresses of all samples, and holds none.
    pub(crate) fn table_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let ranges = self.0.iter().flat_map(RemoteTables::address_ranges);
        ranges.filter(|range| range.start < range.end)
    }

    /// The numbers in it, among which are the addresses of all samples.
    pub(super) fn sample_addresses<'a>(
        &'a self,
        view: &'a SnapshotMemory,
    ) -> impl Iterator<Item = u64> + 'a {
        let mut memory = CachedReader::new(view);
        let places = self.table_ranges().flat_map(|range| range.step_by(8));
        let words = places.filter_map(move |place| memory.word(place));
        words.filter(|word| *word != 0)
    }

    /// The stack of the sample that begins at an address.
    pub(super) fn stack(&self, view: &SnapshotMemory, start: u64) -> Option<Stack> {
        let mut room = [0; MAX_FRAMES];
        self.0.iter().find_map(|remote| {
            let stack = remote.stack(start, |address| view.word(address), &mut room)?;
            let is_code = stack.first().is_some_and(|leaf| is_code(view, *leaf));
            is_code.then(|| Stack::from(stack))
        })
    }
}
