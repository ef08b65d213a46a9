//! Stacks with lists of functions of their own: the functions of all are in one list, and a stack is found by its hash.

use hashbrown::HashTable;

use super::folded_stack::{FoldedStack, TimedAmounts};
use crate::comparison::Comparison;
use crate::names::StringId;
use crate::stacks::StackHasher;

/// Stacks with their functions, in the order of the functions' names once they are sorted.
#[derive(Debug, Default)]
pub(super) struct StackLists {
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

impl StackLists {
    /// Returns the stack at `position`: in the order of the function names once the stacks are sorted, before that in
    /// the order in which they were added. `None` after the last stack.
    pub(super) fn get(&self, position: usize) -> Option<FoldedStack<'_>> {
        let index = self.order.get(position)?;
        Some(self.stack_of_record(*index as usize))
    }

    /// Number of stacks.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Stack with the number `index` in `records`.
    fn stack_of_record(&self, index: usize) -> FoldedStack<'_> {
        FoldedStack {
            functions: self.functions_of_record(index),
            values: self.records[index].values,
            alloc_times: self.alloc_times.get(index).map_or(&[], Vec::as_slice),
        }
    }

    /// Functions of the record with the number `index`, root first.
    fn functions_of_record(&self, index: usize) -> &[StringId] {
        let start = match index {
            0 => 0,
            _ => self.records[index - 1].end,
        };
        &self.functions[start..self.records[index].end]
    }

    /// Adds values to the stack with these functions, root first; creates the stack and enters it into `index` if it is
    /// new. Appends `alloc_times`, the amounts of memory in use with their allocation times, to those of the stack.
    pub(super) fn add_values(
        &mut self,
        index: &mut StackIndex,
        functions: &[StringId],
        values: Comparison,
        alloc_times: &[TimedAmounts],
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
        if !alloc_times.is_empty() {
            // Records after the last one with times have no entry.
            if self.alloc_times.len() <= record {
                self.alloc_times.resize_with(record + 1, Vec::new);
            }
            self.alloc_times[record].extend_from_slice(alloc_times);
        }
    }

    /// Sorts the stacks by the names of their functions, root first. `by_rank` has the ids of all functions, sorted by
    /// name.
    pub(super) fn sort_by_names(&mut self, by_rank: &[StringId]) {
        let mut rank = vec![StringId(0); by_rank.len()];
        for (position, id) in by_rank.iter().enumerate() {
            rank[id.0 as usize] = StringId(position as u32);
        }
        // While the ids are ranks, lists of ids are in the order of their names.
        self.replace_function_ids(&rank);
        let mut order = std::mem::take(&mut self.order);
        order.sort_unstable_by_key(|index| self.functions_of_record(*index as usize));
        self.order = order;
        self.replace_function_ids(by_rank);
    }

    /// Replaces the id of each function in the lists by the entry of `by_id` at that id.
    fn replace_function_ids(&mut self, by_id: &[StringId]) {
        for function in &mut self.functions {
            *function = by_id[function.0 as usize];
        }
    }
}

impl StackIndex {
    /// Index of the record in `stacks` that has these functions. `None` if no record has them.
    fn find(&self, stacks: &StackLists, functions: &[StringId]) -> Option<usize> {
        let is_equal = |record: &u32| stacks.functions_of_record(*record as usize) == functions;
        let found = self.records.find(self.hash(functions), is_equal);
        found.map(|record| *record as usize)
    }

    /// Adds the record with this index in `stacks`, which must not be in the index yet.
    fn insert(&mut self, stacks: &StackLists, record: u32) {
        let seed = self.seed;
        let hash =
            |record: &u32| hash_functions(seed, stacks.functions_of_record(*record as usize));
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
