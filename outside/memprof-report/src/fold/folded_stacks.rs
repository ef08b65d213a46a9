//! Folded stacks in the order of their function names, read one after the other: each is made when it is read, so that
//! none needs memory.

use super::folded_stack::{FoldedStack, TimedAmounts};
use super::sample_stacks::SampleStacks;
use super::stack_lists::StackLists;
use crate::comparison::Comparison;
use crate::names::StringId;

/// Folded stacks in the order of their function names.
#[derive(Debug)]
pub struct FoldedStacks<'p>(StackStore<'p>);

/// Source of the stacks.
#[derive(Debug)]
enum StackStore<'p> {
    /// Samples of a profile and its base, whose addresses stand for functions.
    Samples(Box<SampleStacks<'p>>),
    /// Lists of functions.
    Lists(StackLists),
}

impl<'p> FoldedStacks<'p> {
    /// Creates stacks that are built from samples anew whenever they are read, which saves the memory for them.
    pub(super) fn from_samples(samples: SampleStacks<'p>) -> Self {
        Self(StackStore::Samples(Box::new(samples)))
    }

    /// Creates stacks from lists of functions, which must be sorted.
    pub(super) fn from_lists(lists: StackLists) -> Self {
        Self(StackStore::Lists(lists))
    }

    /// Number of stacks.
    pub fn len(&self) -> usize {
        match &self.0 {
            StackStore::Samples(samples) => samples.stack_count(),
            StackStore::Lists(lists) => lists.len(),
        }
    }

    /// Whether there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a cursor before the first stack.
    pub fn cursor(&self) -> StackCursor<'_> {
        StackCursor {
            stacks: self,
            next: 0,
            functions: Vec::new(),
            alloc_times: Vec::new(),
        }
    }

    /// Calls `visit` with each stack, in order.
    pub fn for_each(&self, mut visit: impl FnMut(FoldedStack<'_>)) {
        let mut cursor = self.cursor();
        while let Some(stack) = cursor.next_stack() {
            visit(stack);
        }
    }

    /// Iterates over the values of the stacks, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = Comparison> {
        let mut cursor = self.cursor();
        std::iter::from_fn(move || Some(cursor.next_stack()?.values))
    }
}

/// Reads stacks in order. The functions of one stack are in memory at a time.
#[derive(Debug)]
pub struct StackCursor<'f> {
    stacks: &'f FoldedStacks<'f>,
    /// Position of the next stack: in the samples, or in the lists.
    next: usize,
    functions: Vec<StringId>,
    alloc_times: Vec<TimedAmounts>,
}

impl StackCursor<'_> {
    /// Returns the next stack; `None` after the last one.
    pub fn next_stack(&mut self) -> Option<FoldedStack<'_>> {
        match &self.stacks.0 {
            StackStore::Samples(samples) => {
                self.functions.clear();
                self.alloc_times.clear();
                let values = samples.read_stack(
                    &mut self.next,
                    &mut self.functions,
                    &mut self.alloc_times,
                )?;
                Some(FoldedStack {
                    functions: &self.functions,
                    values,
                    alloc_times: &self.alloc_times,
                })
            }
            StackStore::Lists(lists) => {
                let stack = lists.get(self.next)?;
                self.next += 1;
                Some(stack)
            }
        }
    }
}
