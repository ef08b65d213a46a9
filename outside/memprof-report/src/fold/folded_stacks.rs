//! Folded stacks in few bytes each: the functions of all stacks are in one list, and a stack is found by its hash.

use hashbrown::HashTable;

use crate::alloc_time::AllocTime;
use crate::comparison::Comparison;
use crate::names::StringId;
use crate::stacks::StackHasher;

/// Bytes and objects in use of an allocation time.
pub(crate) type TimedAmounts = (AllocTime, [i64; 2]);

/// One folded stack.
#[derive(Clone, Copy, Debug)]
pub struct FoldedStack<'f> {
    /// Functions, root first.
    pub functions: &'f [StringId],
    /// Values in the profile and in its base.
    pub values: Comparison,
    /// Bytes and objects in use in the profile, by allocation time; unordered, empty if the profile has no ages.
    pub(crate) alloc_times: &'f [TimedAmounts],
}

/// Folded stacks in the order of their function names.
#[derive(Debug, Default)]
pub struct FoldedStacks {
    /// Functions of the stacks, in the order of `records`.
    functions: Vec<StringId>,
    records: Vec<StackRecord>,
    /// By record; empty if the profile has no ages.
    alloc_times: Vec<Vec<TimedAmounts>>,
    /// Indexes of the records, in the order of the function names.
    order: Vec<u32>,
}

/// Values of a stack, and the end of its functions, which start where those of the record before end.
#[derive(Clone, Copy, Debug)]
struct StackRecord {
    end: usize,
    values: Comparison,
}

/// Index of records by their functions.
#[derive(Default)]
pub(super) struct StackIndex {
    records: HashTable<u32>,
    seed: StackHasher,
}

impl FoldedStacks {
    /// Iterates over the stacks, in the order of their function names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FoldedStack<'_>> + Clone {
        let indexes = self.order.iter();
        indexes.map(|index| self.record(*index as usize))
    }

    /// Number of stacks.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Stack with the number `index` in `records`.
    fn record(&self, index: usize) -> FoldedStack<'_> {
        FoldedStack {
            functions: self.functions_of(index),
            values: self.records[index].values,
            alloc_times: self.alloc_times.get(index).map_or(&[], Vec::as_slice),
        }
    }

    /// Functions of the record with the number `index`, root first.
    fn functions_of(&self, index: usize) -> &[StringId] {
        let start = match index {
            0 => 0,
            _ => self.records[index - 1].end,
        };
        &self.functions[start..self.records[index].end]
    }

    /// Adds values to the stack with these functions, root first. A new stack is also entered into `index`.
    /// `alloc_time` is the memory in use with its allocation time; `None` if the sample has no time.
    pub(super) fn add(
        &mut self,
        index: &mut StackIndex,
        functions: &[StringId],
        values: Comparison,
        alloc_time: Option<TimedAmounts>,
    ) {
        let record = index.find(self, functions).unwrap_or_else(|| {
            let record = self.records.len();
            self.functions.extend_from_slice(functions);
            self.records.push(StackRecord {
                end: self.functions.len(),
                values: Comparison::default(),
            });
            self.order.push(record as u32);
            index.insert(self, record as u32);
            record
        });
        self.records[record].values += values;
        if let Some(alloc_time) = alloc_time {
            if self.alloc_times.len() <= record {
                self.alloc_times.resize_with(record + 1, Vec::new);
            }
            self.alloc_times[record].push(alloc_time);
        }
    }

    /// Sets the variance of unchanged stacks to 0: equal values mean the same samples, so chance has no part in
    /// their difference.
    pub(super) fn clear_unchanged_variance(&mut self) {
        for StackRecord { values, .. } in &mut self.records {
            if values.new == values.base {
                values.confidence.variance = 0.0;
            }
        }
    }

    /// Reduces each stack, in place, to its visible functions, and merges stacks that are equal then. `visibility` gets
    /// all functions of a stack, and returns the test whether one of them is visible. Leaves the stacks unsorted.
    pub(super) fn retain_functions<V: Fn(StringId) -> bool>(
        &mut self,
        visibility: impl Fn(&[StringId]) -> V,
    ) {
        let (mut start, mut kept_end) = (0, 0);
        let mut stack = Vec::new();
        for record in &mut self.records {
            stack.clear();
            stack.extend_from_slice(&self.functions[start..record.end]);
            start = record.end;
            let is_visible = visibility(&stack);
            for function in &stack {
                if is_visible(*function) {
                    self.functions[kept_end] = *function;
                    kept_end += 1;
                }
            }
            record.end = kept_end;
        }
        self.functions.truncate(kept_end);
        let mut index = StackIndex::default();
        let mut kept = Vec::new();
        for record in std::mem::take(&mut self.order) {
            let at = record as usize;
            let Some(first) = index.find(self, self.functions_of(at)) else {
                index.insert(self, record);
                kept.push(record);
                continue;
            };
            let values = self.records[at].values;
            self.records[first].values += values;
            if let Some(times) = self.alloc_times.get_mut(at) {
                let times = std::mem::take(times);
                // Records after the last one with times have no entry.
                if self.alloc_times.len() <= first {
                    self.alloc_times.resize_with(first + 1, Vec::new);
                }
                self.alloc_times[first].extend(times);
            }
        }
        self.order = kept;
    }

    /// Sorts the stacks by the ranks of their functions. `by_rank` has the function of each rank.
    pub(super) fn sort(&mut self, by_rank: &[StringId]) {
        let mut rank = vec![StringId(0); by_rank.len()];
        for (position, id) in by_rank.iter().enumerate() {
            rank[id.0 as usize] = StringId(position as u32);
        }
        self.replace_functions(&rank);
        let mut order = std::mem::take(&mut self.order);
        order.sort_unstable_by_key(|index| self.functions_of(*index as usize));
        self.order = order;
        self.replace_functions(by_rank);
    }

    /// Replaces each id of a function by the one that `by_id` has at its number.
    fn replace_functions(&mut self, by_id: &[StringId]) {
        for function in &mut self.functions {
            *function = by_id[function.0 as usize];
        }
    }
}

impl StackIndex {
    /// Number of the record with these functions. `None` if there is none.
    fn find(&self, stacks: &FoldedStacks, functions: &[StringId]) -> Option<usize> {
        let is_equal = |record: &u32| stacks.functions_of(*record as usize) == functions;
        let found = self.records.find(self.hash(functions), is_equal);
        found.map(|record| *record as usize)
    }

    /// Adds a record, which must not be in the index yet.
    fn insert(&mut self, stacks: &FoldedStacks, record: u32) {
        let seed = self.seed;
        let hash = |record: &u32| hash_functions(seed, stacks.functions_of(*record as usize));
        self.records.insert_unique(hash(&record), record, hash);
    }

    /// Hash of a stack's functions, root first, with the seed of this index.
    fn hash(&self, functions: &[StringId]) -> u64 {
        hash_functions(self.seed, functions)
    }
}

/// Hash of a stack's functions, root first. Equal seeds give equal hashes.
fn hash_functions(seed: StackHasher, functions: &[StringId]) -> u64 {
    seed.hash_ids(functions, |function| function.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_with_ages_merges_into_one_that_was_added_later() {
        let [x, a, b] = [0, 1, 2].map(StringId);
        let (mut stacks, mut index) = (FoldedStacks::default(), StackIndex::default());
        let aged = AllocTime::new(7).map(|time| (time, [8, 1]));
        stacks.add(&mut index, &[b, x], Comparison::default(), aged);
        stacks.add(&mut index, &[a, x], Comparison::default(), None);
        stacks.sort(&[x, a, b]);
        stacks.retain_functions(|_| move |function| function == x);
        let merged: Vec<_> = stacks.iter().collect();
        assert_eq!(merged.len(), 1);
        assert_eq!(merged[0].alloc_times.len(), 1);
    }
}
