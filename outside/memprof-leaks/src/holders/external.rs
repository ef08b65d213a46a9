//! Pointers from outside of the heap, by the holders in which they lie.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use super::edges::PointerScanner;
use super::holder::{Holder, holder_of, name_of};
use crate::analysis::AnalyzedSnapshot;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::names::NameResolver;
use crate::snapshot_memory::BLOCK;

/// Words without a symbol count as variables of their own up to so many holders, then those of a page as one.
const EXACT: usize = 1 << 16;
/// What a holder takes, and each of its targets, with what is made of them, in bytes.
const OF_HOLDER: u64 = 512;
const OF_TARGET: u64 = 8;
/// Fewer targets are not put in order.
const FEW: usize = 1024;

/// What one holder points to.
#[derive(Debug)]
pub(super) struct ExternalHolder {
    pub(super) holder: u32,
    pub(super) rank: u8,
    /// Each once.
    pub(super) targets: Vec<u32>,
}

/// All holders of a process, and what they point to, by rank.
#[derive(Debug)]
pub(super) struct ExternalHolders {
    pub(super) all: Vec<Holder>,
    pub(super) roots: Vec<ExternalHolder>,
}

impl ExternalHolders {
    /// Takes of the budget what they take.
    ///
    /// # Errors
    /// `Memory`.
    pub(super) fn find(
        seen: &AnalyzedSnapshot<'_>,
        edges: &PointerScanner<'_>,
        names: &mut NameResolver<'_>,
        budget: &mut MemoryBudget,
    ) -> Result<Self, Error> {
        let mut found = HolderBuilder::new(*budget);
        for range in &seen.roots.ranges {
            search(seen, edges, names, range, &mut found)?;
        }
        for thread in &seen.snapshot.threads {
            let targets = TargetSet::of(&thread.words, edges);
            if !targets.all.is_empty() {
                let (thread, name) = (thread.tid, name_of(seen, thread.tid));
                found.add(Holder::Registers { thread, name }, targets)?;
            }
        }
        found.add(Holder::Kernel, TargetSet::of(&seen.roots.kernel, edges))?;
        budget.take(found.memory())?;
        Ok(found.into())
    }
}

/// Adds the holders in memory that is no heap.
fn search(
    seen: &AnalyzedSnapshot<'_>,
    edges: &PointerScanner<'_>,
    names: &mut NameResolver<'_>,
    range: &Range<u64>,
    found: &mut HolderBuilder,
) -> Result<(), Error> {
    let range = range.start.next_multiple_of(8)..range.end;
    let mut block = vec![0; BLOCK];
    let mut same: Option<(Holder, Range<u64>)> = None;
    let mut targets = TargetSet::default();
    for start in range.clone().step_by(BLOCK) {
        let length = (range.end - start).min(BLOCK as u64) as usize;
        let read = seen.view.read(start, &mut block[..length]);
        for (at, word) in block[..read].chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let Some(target) = edges.numbers.target(word) else {
                continue;
            };
            let address = start + at as u64 * 8;
            let is_same = same
                .as_ref()
                .is_some_and(|(_, range)| range.contains(&address));
            if !is_same {
                let is_exact = found.holders.len() < EXACT;
                let next = holder_of(seen, names, address, is_exact);
                if let Some((holder, _)) = same.replace(next) {
                    found.add(holder, mem::take(&mut targets))?;
                }
            }
            targets.push(target);
        }
    }
    match same {
        Some((holder, _)) => found.add(holder, targets),
        None => Ok(()),
    }
}

/// Objects to which a holder points: an array may point to the same ones over and over.
#[derive(Debug, Default)]
struct TargetSet {
    all: Vec<u32>,
    /// So many were left when they were last put in order.
    unique: usize,
}

impl TargetSet {
    fn of(words: &[u64], edges: &PointerScanner<'_>) -> Self {
        let mut targets = Self::default();
        let found = words.iter().filter_map(|word| edges.numbers.target(*word));
        found.for_each(|target| targets.push(target));
        targets
    }

    fn push(&mut self, target: u32) {
        if self.all.last() == Some(&target) {
            return;
        }
        self.all.push(target);
        if self.all.len() >= FEW.max(2 * self.unique) {
            self.sort_and_dedup();
        }
    }

    fn sort_and_dedup(&mut self) {
        self.all.sort_unstable();
        self.all.dedup();
        self.unique = self.all.len();
    }
}

/// The holders that were found so far.
struct HolderBuilder {
    holders: BTreeMap<Holder, TargetSet>,
    /// Of all of them.
    targets: usize,
    budget: MemoryBudget,
}

impl HolderBuilder {
    fn new(budget: MemoryBudget) -> Self {
        Self {
            holders: BTreeMap::new(),
            targets: 0,
            budget,
        }
    }

    fn add(&mut self, holder: Holder, new: TargetSet) -> Result<(), Error> {
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
        self.budget.require(self.memory())
    }

    /// In bytes.
    fn memory(&self) -> u64 {
        self.holders.len() as u64 * OF_HOLDER + self.targets as u64 * OF_TARGET
    }
}

impl From<HolderBuilder> for ExternalHolders {
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
    fn the_same_targets_over_and_over_take_no_more_memory() {
        let mut targets = TargetSet::default();
        for at in 0..1_000_000 {
            targets.push(at % 3000);
            assert!(targets.all.capacity() <= 8192);
        }
        targets.sort_and_dedup();
        assert!(targets.all.into_iter().eq(0..3000));
    }
}
