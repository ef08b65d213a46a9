//! Groups by one shortest path to each object, in two bytes for each: the path itself is not kept.

use std::mem;
use std::ops::ControlFlow;

use super::external::ExternalHolders;
use super::groups::{GroupBuilder, HolderGroup, max_groups};
use super::kinds::KindNumbers;
use super::pointer_scanner::PointerScanner;
use crate::names::NameResolver;

/// Objects of a frontier that are listed. Further ones have a bit each.
const MAX_LISTED: usize = 1 << 18;
/// Bytes of the lists of two frontiers.
const LIST_BYTES: u64 = 2 * 4 * MAX_LISTED as u64;
/// Most groups: their numbers have 16 bits.
const MAX_GROUPS: u64 = u16::MAX as u64;

/// Group number of an object that was not found yet. It is the number of the process's group, which has no objects.
const NO_GROUP: u16 = 0;

/// Bytes that [`find_groups`] takes for a number of objects, without the groups that it returns.
pub(super) fn memory_size(objects: u64) -> u64 {
    let bitmaps = 2 * (objects / 8 + 8);
    objects * size_of::<u16>() as u64 + bitmaps + LIST_BYTES
}

/// Finds the objects that the holders reach: rank by rank, where a holder's rank is its precedence, and within a rank
/// the nearest objects first. Returns their groups, for which `max_bytes` may be used, and whether each object is in a
/// group of its kind. `None` if the holders alone are more than [`MAX_GROUPS`].
pub(super) fn find_groups(
    scanner: &PointerScanner<'_>,
    holders: &ExternalHolders,
    names: &mut NameResolver<'_>,
    max_bytes: u64,
) -> Option<(Vec<HolderGroup>, bool)> {
    let count = scanner.object_index.count();
    let used = holders.all.len() as u64 + 1;
    let max_groups = max_groups(max_bytes).min(MAX_GROUPS.checked_sub(used)?);
    let mut groups = GroupBuilder::new(holders.all.iter().cloned(), max_groups);
    let mut kinds = KindNumbers::default();
    // A found object has the group of its holder until its own pointers are read.
    let mut group_of = vec![NO_GROUP; count as usize];
    let mut memory = scanner.new_reader();
    let mut current = Frontier::new(count);
    let mut next = Frontier::new(count);
    for same in holders.roots.chunk_by(|one, next| one.rank == next.rank) {
        for root in same {
            for target in &root.targets {
                // The groups of the holders follow that of the process.
                add_to_frontier(*target, root.holder as u16 + 1, &mut group_of, &mut next);
            }
        }
        while !next.is_empty() {
            mem::swap(&mut current, &mut next);
            current.drain(|number| {
                let object = scanner.object_index.object(number);
                let kind = kinds.find_or_add_kind(&object, names);
                let above = group_of[number as usize].into();
                let group =
                    groups.add_object(above, (kind, kinds.kind(kind)), false, object.size()) as u16;
                group_of[number as usize] = group;
                // The closure returns `Continue`, so all targets are visited.
                let _whole = scanner.for_each_target(number, &object, &mut memory, |target| {
                    add_to_frontier(target, group, &mut group_of, &mut next);
                    ControlFlow::Continue(())
                });
            });
        }
    }
    Some(groups.finish())
}

/// Adds an object to the frontier, the objects whose pointers are read next, and stores its holder's group. Does
/// nothing if the object was found before.
fn add_to_frontier(target: u32, group: u16, group_of: &mut [u16], frontier: &mut Frontier) {
    let own = &mut group_of[target as usize];
    if *own == NO_GROUP {
        *own = group;
        frontier.push(target);
    }
}

/// Objects whose pointers are read next, by number.
struct Frontier {
    listed: Vec<u32>,
    /// Bits of the objects that are not listed, for objects with numbers below `count`; empty if all are.
    bits: Vec<u64>,
    count: u32,
}

impl Frontier {
    /// Creates an empty frontier for objects with numbers below `count`.
    fn new(count: u32) -> Self {
        Self {
            listed: Vec::new(),
            bits: Vec::new(),
            count,
        }
    }

    /// Whether the frontier has no object. Tests only the list, because the bitmap has objects only while the list is
    /// full.
    fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Adds an object by its number: to a list of up to [`MAX_LISTED`], or else to a bitmap of fixed size.
    fn push(&mut self, number: u32) {
        if self.listed.len() < MAX_LISTED {
            self.listed.push(number);
            return;
        }
        if self.bits.is_empty() {
            self.bits = vec![0; (self.count as usize).div_ceil(64)];
        }
        self.bits[number as usize / 64] |= 1 << (number % 64);
    }

    /// Removes all objects, and calls `visit` with the number of each: first those in the list, then those in the
    /// bitmap, each in ascending order.
    fn drain(&mut self, mut visit: impl FnMut(u32)) {
        self.listed.sort_unstable();
        self.listed.drain(..).for_each(&mut visit);
        for (index, mut word) in mem::take(&mut self.bits).into_iter().enumerate() {
            while word != 0 {
                visit(index as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontier_holds_each_object_once() {
        let count = MAX_LISTED as u32 * 3;
        let mut frontier = Frontier::new(count);
        for round in 0..2 {
            let numbers = (0..count).rev().step_by(1 + round);
            numbers.clone().for_each(|number| frontier.push(number));
            assert!(!frontier.is_empty());
            let mut drained = Vec::new();
            frontier.drain(|number| drained.push(number));
            assert!(frontier.is_empty());
            drained.sort_unstable();
            assert!(drained.into_iter().rev().eq(numbers), "{round}");
        }
    }
}
