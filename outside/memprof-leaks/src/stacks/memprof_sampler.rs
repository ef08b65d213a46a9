//! Stacks of memprof's sampler, if the plugin is in the process.

use std::ops::Range;

use memprof_sampler::{MARK, MAX_FRAMES, RemoteTables};

use super::{Stack, may_be_return_address};
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Tables of the samplers in a process: each loaded copy of the plugin has its own.
#[derive(Debug)]
pub(crate) struct SamplerTables(Vec<RemoteTables>);

impl SamplerTables {
    /// Finds the tables of memprof's samplers by their marks among the variables of all files.
    pub(crate) fn find(view: &SnapshotMemory) -> Self {
        let [first, second] = [0, 8].map(|start| {
            let half = MARK[start..start + 8].try_into();
            u64::from_le_bytes(half.expect("eight bytes"))
        });
        let mut memory = CachedReader::new(view);
        let files = view
            .regions
            .iter()
            .filter(|region| region.is_file && region.is_writable);
        let pages = files.flat_map(|region| &region.pages);
        let addresses = pages.flat_map(|pages| (pages.start..pages.end).step_by(8));
        let marks = addresses.filter(|address| {
            memory.read_word(*address) == Some(first)
                && memory.read_word(address + 8) == Some(second)
        });
        let found = marks.filter_map(|mark| {
            RemoteTables::read_after_mark(mark, |address| view.read_word(address))
        });
        Self(found.collect())
    }

    /// Address ranges of the tables with the addresses of all samples. They are no roots: a sample does not hold its
    /// object.
    pub(crate) fn table_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let ranges = self.0.iter().flat_map(RemoteTables::address_ranges);
        ranges.filter(|range| range.start < range.end)
    }

    /// Least mean bytes between the samples of a sampler. `None` if there is no sampler, or none with an interval.
    pub(super) fn min_sample_interval(&self) -> Option<u64> {
        let intervals = self.0.iter().map(RemoteTables::interval);
        intervals.filter(|interval| *interval > 0).min()
    }

    /// Words of the [`table_ranges`](Self::table_ranges) that are not 0, among which are the addresses of all samples.
    pub(super) fn candidate_sample_addresses<'a>(
        &'a self,
        view: &'a SnapshotMemory,
    ) -> impl Iterator<Item = u64> + 'a {
        let mut memory = CachedReader::new(view);
        let addresses = self.table_ranges().flat_map(|range| range.step_by(8));
        let words = addresses.filter_map(move |address| memory.read_word(address));
        words.filter(|word| *word != 0)
    }

    /// Stack of the sample at `start`. `None` if there is no sample, or if its first frame is not in code.
    pub(super) fn read_stack(&self, view: &SnapshotMemory, start: u64) -> Option<Stack> {
        let mut frames = [0; MAX_FRAMES];
        self.0.iter().find_map(|remote| {
            let stack = remote.read_stack(start, |address| view.read_word(address), &mut frames)?;
            let is_code = stack
                .first()
                .is_some_and(|leaf| may_be_return_address(view, *leaf));
            is_code.then(|| Stack::from(stack))
        })
    }
}
