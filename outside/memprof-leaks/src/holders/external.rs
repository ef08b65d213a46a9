//! Pointers from outside the heap, grouped by holder.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use super::holder::{Holder, find_holder_at, thread_name};
use super::pointer_scanner::PointerScanner;
use super::thread_memory::ThreadMemory;
use crate::analysis::AnalyzedSnapshot;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::names::NameResolver;
use crate::snapshot_memory::{MAX_BLOCK_LEN, split_into_blocks};
use crate::words::WORD;

/// Number of holders up to which each word without a symbol counts as a variable. Beyond it, each page does.
const MAX_EXACT_HOLDERS: usize = 1 << 16;
/// Estimated bytes per holder.
const BYTES_PER_HOLDER: u64 = 512;
/// Bytes per target of a holder.
const BYTES_PER_TARGET: u64 = 8;
/// Number of targets below which they are not sorted.
const MIN_SORTED: usize = 1024;

/// Targets of one holder.
#[derive(Debug)]
pub(super) struct ExternalHolder {
    pub(super) holder: u32,
    pub(super) rank: u8,
    /// Numbers of the objects to which it points, without duplicates.
    pub(super) targets: Vec<u32>,
}

/// Holders of a process, and their targets sorted by rank.
#[derive(Debug)]
pub(super) struct ExternalHolders {
    pub(super) all: Vec<Holder>,
    pub(super) roots: Vec<ExternalHolder>,
}

impl ExternalHolders {
    /// Finds the holders outside the heap: variables of Python, memory that is a root, registers and the kernel.
    /// Reserves the memory for them and their targets in `budget`. Fails with `Memory` if that exceeds `--max-memory`.
    pub(super) fn find(
        analyzed: &AnalyzedSnapshot<'_>,
        scanner: &PointerScanner<'_>,
        names: &mut NameResolver<'_>,
        budget: &mut MemoryBudget,
    ) -> Result<Self, Error> {
        let mut found = HolderBuilder::new(*budget);
        for (holder, value) in &scanner.python.variables {
            let mut target = TargetSet::default();
            target.push(*value);
            found.add_targets(holder.clone(), target)?;
        }
        let frames = analyzed
            .python
            .as_ref()
            .map_or(&[][..], |python| &python.frames);
        let threads = ThreadMemory::new(&analyzed.view, &analyzed.snapshot.threads, frames);
        for range in &analyzed.roots.ranges {
            add_holders_in_range(analyzed, scanner, names, &threads, range, &mut found)?;
        }
        for thread in &analyzed.snapshot.threads {
            let targets = TargetSet::from_words(&thread.words, scanner);
            if !targets.all.is_empty() {
                let (thread, name) = (thread.tid, thread_name(analyzed, thread.tid));
                found.add_targets(Holder::Registers { thread, name }, targets)?;
            }
        }
        found.add_targets(
            Holder::Kernel,
            TargetSet::from_words(&analyzed.roots.kernel, scanner),
        )?;
        budget.reserve(found.memory_size())?;
        Ok(found.into())
    }
}

/// Adds the holders in a range outside the heap with the objects to which they point. Fails with `Memory` if the
/// holders and targets exceed `--max-memory`.
fn add_holders_in_range(
    analyzed: &AnalyzedSnapshot<'_>,
    scanner: &PointerScanner<'_>,
    names: &mut NameResolver<'_>,
    threads: &ThreadMemory,
    range: &Range<u64>,
    found: &mut HolderBuilder,
) -> Result<(), Error> {
    let step = analyzed.view.word_step(range.start);
    let range = range.start.next_multiple_of(step as u64)..range.end;
    let mut block = vec![0; MAX_BLOCK_LEN];
    let mut current: Option<(Holder, Range<u64>)> = None;
    let mut targets = TargetSet::default();
    for Range { start, end } in split_into_blocks(range) {
        let length = (end - start) as usize;
        let read = analyzed.view.read(start, &mut block[..length]);
        // Words come by address, so the holder of one is mostly that of the last; a search for each would take long.
        let words = block[..read].windows(WORD).step_by(step);
        for (address, word) in (start..).step_by(step).zip(words) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let Some(target) = scanner.object_index.target_number(word) else {
                continue;
            };
            let is_current = current
                .as_ref()
                .is_some_and(|(_, range)| range.contains(&address));
            if !is_current {
                let is_exact = found.holders.len() < MAX_EXACT_HOLDERS;
                let next = find_holder_at(analyzed, names, threads, address, is_exact);
                if let Some((holder, _)) = current.replace(next) {
                    found.add_targets(holder, mem::take(&mut targets))?;
                }
            }
            targets.push(target);
        }
    }
    match current {
        Some((holder, _)) => found.add_targets(holder, targets),
        None => Ok(()),
    }
}

/// Objects to which a holder points. Duplicates are removed from time to time, because an array may point to
/// the same objects repeatedly.
#[derive(Debug, Default)]
struct TargetSet {
    all: Vec<u32>,
    /// Number of targets when duplicates were last removed.
    unique: usize,
}

impl TargetSet {
    /// Set of the objects to which words point.
    fn from_words(words: &[u64], scanner: &PointerScanner<'_>) -> Self {
        let mut targets = Self::default();
        let found = words
            .iter()
            .filter_map(|word| scanner.object_index.target_number(*word));
        found.for_each(|target| targets.push(target));
        targets
    }

    /// Adds a target, unless it is the last one already. Removes duplicates whenever the number of targets has doubled.
    fn push(&mut self, target: u32) {
        if self.all.last() == Some(&target) {
            return;
        }
        self.all.push(target);
        if self.all.len() >= MIN_SORTED.max(2 * self.unique) {
            self.sort_and_dedup();
        }
    }

    /// Sorts the targets, removes duplicates, and stores the number of those that are left.
    fn sort_and_dedup(&mut self) {
        self.all.sort_unstable();
        self.all.dedup();
        self.unique = self.all.len();
    }
}

/// Holders found so far.
struct HolderBuilder {
    holders: BTreeMap<Holder, TargetSet>,
    /// Number of targets of all holders.
    targets: usize,
    budget: MemoryBudget,
}

impl HolderBuilder {
    /// Creates a builder without holders. Its result may need at most as many bytes as `budget` has left.
    fn new(budget: MemoryBudget) -> Self {
        Self {
            holders: BTreeMap::new(),
            targets: 0,
            budget,
        }
    }

    /// Adds targets to a holder; a holder without targets is not recorded. Fails with `Memory` if the result then
    /// exceeds `--max-memory`.
    fn add_targets(&mut self, holder: Holder, new: TargetSet) -> Result<(), Error> {
        if new.all.is_empty() {
            return Ok(());
        }
        let targets = self.holders.entry(holder).or_default();
        let before = targets.all.len();
        match before {
            0 => *targets = new,
            _ => new.all.iter().for_each(|target| targets.push(*target)),
        }
        self.targets = self.targets - before + targets.all.len();
        self.budget.require_bytes(self.memory_size())
    }

    /// Estimated memory of the result, in bytes.
    fn memory_size(&self) -> u64 {
        self.holders.len() as u64 * BYTES_PER_HOLDER + self.targets as u64 * BYTES_PER_TARGET
    }
}

impl From<HolderBuilder> for ExternalHolders {
    /// Numbers the holders in their order, removes duplicate targets, and sorts the roots by rank.
    fn from(found: HolderBuilder) -> Self {
        let mut holders = Self {
            all: Vec::new(),
            roots: Vec::new(),
        };
        for (number, (holder, mut targets)) in found.holders.into_iter().enumerate() {
            targets.sort_and_dedup();
            targets.all.shrink_to_fit();
            holders.roots.push(ExternalHolder {
                holder: number as u32,
                rank: holder.rank(),
                targets: targets.all,
            });
            holders.all.push(holder);
        }
        holders.roots.sort_by_key(|root| root.rank);
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_targets_use_bounded_memory() {
        let mut targets = TargetSet::default();
        for number in 0..1_000_000 {
            targets.push(number % 3000);
            assert!(targets.all.capacity() <= 8192);
        }
        targets.sort_and_dedup();
        assert!(targets.all.into_iter().eq(0..3000));
    }
}
