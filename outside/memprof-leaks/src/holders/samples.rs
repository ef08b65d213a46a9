//! Reachable objects whose stacks a profiler has. The stacks are symbolized after the snapshot is released;
//! only then the requested ones can be selected.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use memprof_report::Mapping;

use super::{HolderTree, NO_NODE};
use crate::analysis::{AnalysisReport, AnalyzedSnapshot};
use crate::error::Error;
use crate::objects::ObjectIndex;
use crate::stacks::{self, Stack, Stacks};

/// Bytes per sample: its entries in a table and a list.
const BYTES_PER_SAMPLE: u64 = 64;

/// Sampled objects of a process that are reachable.
#[derive(Clone, Debug)]
pub struct HeldSamples {
    /// Functions of each stack, leaf first.
    stacks: Vec<Vec<String>>,
    /// The objects, each after those that hold it.
    all: Vec<HeldSample>,
}

/// A sampled object.
#[derive(Clone, Debug)]
struct HeldSample {
    stack: u32,
    /// Index of its group.
    group: u32,
    /// Index of the nearest sample that holds it; [`NO_NODE`] if there is none.
    parent: u32,
    /// Objects that it holds but no other sample below it does, including itself.
    held: ObjectTotals,
    /// Bytes of the object.
    size: u64,
}

/// Number and bytes of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectTotals {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// Sampled objects of one group with requested stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledGroup {
    /// Index of the group.
    pub group: usize,
    /// The sampled objects.
    pub own: ObjectTotals,
    /// The sampled objects, and those that they hold.
    pub held: ObjectTotals,
}

/// Stacks of sampled objects by the objects' `object_index`, before their holders are known.
pub(super) struct SampledObjects {
    stacks: Vec<Stack>,
    by_object: HashMap<u32, u32>,
}

/// Samples with unsymbolized stacks.
pub(super) struct UnsymbolizedSamples {
    stacks: Vec<Stack>,
    all: Vec<HeldSample>,
    mappings: Vec<Mapping>,
}

impl SampledObjects {
    /// Finds the sampled objects of a snapshot, and their stacks. Fails with `NoSamples` if no object has a sample.
    pub(super) fn find(
        analyzed: &AnalyzedSnapshot<'_>,
        object_index: &ObjectIndex<'_>,
    ) -> Result<Self, Error> {
        let mut known = Stacks::new(&analyzed.view, &analyzed.contexts, &analyzed.sampled);
        let mut found = Self {
            stacks: Vec::new(),
            by_object: HashMap::new(),
        };
        let mut indices: HashMap<Stack, u32> = HashMap::new();
        for start in stacks::candidate_starts(&analyzed.view, &analyzed.contexts, &analyzed.sampled)
        {
            let object = object_index
                .find(start)
                .filter(|(_, first)| *first == start);
            let Some((number, stack)) =
                object.and_then(|(number, _)| Some((number, known.stack_of(start)?)))
            else {
                continue;
            };
            let next = found.stacks.len() as u32;
            let index = *indices.entry(stack).or_insert_with_key(|stack| {
                found.stacks.push(Rc::clone(stack));
                next
            });
            found.by_object.insert(number, index);
        }
        match found.by_object.is_empty() {
            true => Err(Error::NoSamples),
            false => Ok(found),
        }
    }

    /// Estimated memory of the stacks and of the table of sampled objects, in bytes.
    pub(super) fn memory_size(&self) -> u64 {
        let frames = self.stacks.iter().map(|stack| stack.len() as u64);
        frames.sum::<u64>() * 8 + self.by_object.len() as u64 * BYTES_PER_SAMPLE
    }

    /// Drops the samples of objects that are not reachable. Counts for each other sample the objects and bytes that it
    /// holds: those below it in the tree, but not those below the next samples, which have their own counts. `group_of`
    /// has the group of each node of the tree.
    pub(super) fn restrict_to_reachable(
        self,
        analyzed: &AnalyzedSnapshot<'_>,
        tree: &HolderTree,
        object_index: &ObjectIndex<'_>,
        group_of: &[u32],
    ) -> UnsymbolizedSamples {
        let mut nearest = vec![NO_NODE; tree.nodes.len()];
        let mut all: Vec<HeldSample> = Vec::new();
        for (position, node) in tree.nodes.iter().enumerate().skip(1) {
            if *node >= object_index.count() {
                continue;
            }
            let size = object_index.object(*node).size();
            nearest[position] = nearest[tree.parents[position] as usize];
            if let Some(stack) = self.by_object.get(node) {
                all.push(HeldSample {
                    stack: *stack,
                    group: group_of[position],
                    parent: nearest[position],
                    held: ObjectTotals::default(),
                    size,
                });
                nearest[position] = all.len() as u32 - 1;
            }
            // `NO_NODE` is no index: no sample holds the object.
            if let Some(sample) = all.get_mut(nearest[position] as usize) {
                sample.held.add(ObjectTotals {
                    objects: 1,
                    bytes: size,
                });
            }
        }
        UnsymbolizedSamples {
            stacks: self.stacks,
            all,
            mappings: stacks::executable_mappings(&analyzed.view),
        }
    }
}

impl UnsymbolizedSamples {
    /// Symbolizes the stacks by the files of the process. If that fails, adds a warning and returns empty stacks.
    pub(super) fn symbolize(self, pid: u32, report: &mut AnalysisReport) -> HeldSamples {
        let stacks = stacks::symbolize(self.stacks.iter(), self.mappings, pid);
        let stacks = match stacks {
            Ok(named) => named.into_iter().map(|stack| stack.functions).collect(),
            Err(message) => {
                report.add_warning(message);
                vec![Vec::new(); self.stacks.len()]
            }
        };
        HeldSamples {
            stacks,
            all: self.all,
        }
    }
}

impl HeldSamples {
    /// Number of sampled objects that are reachable.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Sums, by group, the sampled objects whose stacks `matches` accepts: their own number and size, and those of all
    /// that they hold. If one selected object of a group holds another, the other one's share counts once. `matches`
    /// gets the functions of a stack, leaf first. The groups are sorted by index.
    pub fn select_by_stack(&self, matches: impl Fn(&[String]) -> bool) -> Vec<SampledGroup> {
        let is_selected: Vec<_> = self.stacks.iter().map(|stack| matches(stack)).collect();
        let mut totals: Vec<_> = self.all.iter().map(|sample| sample.held).collect();
        // A sample follows those that hold it.
        for (index, sample) in self.all.iter().enumerate().rev() {
            let held = totals[index];
            if let Some(parent) = totals.get_mut(sample.parent as usize) {
                parent.add(held);
            }
        }
        let mut groups: BTreeMap<u32, SampledGroup> = BTreeMap::new();
        self.visit_selected_samples(&is_selected, |index, is_outermost| {
            let sample = &self.all[index];
            let group = groups.entry(sample.group).or_default();
            group.group = sample.group as usize;
            group.own.add(ObjectTotals {
                objects: 1,
                bytes: sample.size,
            });
            if is_outermost {
                group.held.add(totals[index]);
            }
        });
        groups.into_values().collect()
    }

    /// Calls `visit` with the index of each selected sample, and whether no other selected sample of its group holds
    /// it: the objects of a list hold each other, and must be counted once. `is_selected` says for each stack whether
    /// its samples are selected.
    fn visit_selected_samples(&self, is_selected: &[bool], mut visit: impl FnMut(usize, bool)) {
        // Lists of the children of each sample, for a walk in depth-first order.
        let mut first_child = vec![NO_NODE; self.all.len()];
        let mut next = vec![NO_NODE; self.all.len()];
        let mut outermost = NO_NODE;
        for (index, sample) in self.all.iter().enumerate().rev() {
            let first = first_child.get_mut(sample.parent as usize);
            next[index] = std::mem::replace(first.unwrap_or(&mut outermost), index as u32);
        }
        // By group: number of selected samples that hold the current one.
        let mut selected_above: HashMap<u32, u32> = HashMap::new();
        let mut open = Vec::new();
        let mut current = outermost;
        loop {
            if current == NO_NODE {
                let Some(parent) = open.pop() else { break };
                let sample: &HeldSample = &self.all[parent as usize];
                if is_selected[sample.stack as usize] {
                    *selected_above.entry(sample.group).or_default() -= 1;
                }
                current = next[parent as usize];
                continue;
            }
            let sample = &self.all[current as usize];
            if is_selected[sample.stack as usize] {
                let above = selected_above.entry(sample.group).or_default();
                visit(current as usize, *above == 0);
                *above += 1;
            }
            open.push(current);
            current = first_child[current as usize];
        }
    }
}

impl ObjectTotals {
    /// Adds the objects and bytes of another total.
    fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of 8 bytes that each hold another object of 2 bytes, given by stack, group and parent.
    fn samples(all: &[(u32, u32, u32)]) -> HeldSamples {
        let all = all.iter().map(|(stack, group, parent)| HeldSample {
            stack: *stack,
            group: *group,
            parent: *parent,
            held: ObjectTotals {
                objects: 2,
                bytes: 10,
            },
            size: 8,
        });
        HeldSamples {
            stacks: vec![vec!["make".to_owned()], vec!["load".to_owned()]],
            all: all.collect(),
        }
    }

    #[test]
    fn with_stacks_counts_nested_samples_of_group_once() {
        let check = |all: &[(u32, u32, u32)], function: &str, expected: &[(usize, u64, u64)]| {
            let found = samples(all).select_by_stack(|stack| stack[0].contains(function));
            let found: Vec<_> = found
                .iter()
                .map(|each| {
                    assert_eq!(each.own.bytes, each.own.objects * 8);
                    assert_eq!(each.held.bytes, each.held.objects * 5);
                    (each.group, each.own.objects, each.held.objects)
                })
                .collect();
            assert_eq!(found, expected, "{all:?} {function}");
        };
        check(&[(0, 1, NO_NODE), (0, 1, NO_NODE)], "make", &[(1, 2, 4)]);
        check(&[(0, 1, NO_NODE)], "load", &[]);
        // A list, whose second object another function allocated.
        let list = [(0, 1, NO_NODE), (1, 1, 0), (0, 1, 1)];
        check(&list, "make", &[(1, 2, 6)]);
        check(&list, "load", &[(1, 1, 4)]);
        check(&list, "", &[(1, 3, 6)]);
        // A group that holds another contains its objects, and so does the other one.
        let nested = [(0, 1, NO_NODE), (0, 2, 0), (0, 1, 1), (1, 2, NO_NODE)];
        check(&nested, "make", &[(1, 2, 6), (2, 1, 4)]);
        check(&nested, "load", &[(2, 1, 2)]);
    }

    #[test]
    fn long_list_is_counted_without_recursion() {
        const LENGTH: u32 = 1_000_000;
        let list: Vec<_> = (0..LENGTH)
            .map(|index| (0, index % 2, index.checked_sub(1).unwrap_or(NO_NODE)))
            .collect();
        let found = samples(&list).select_by_stack(|_| true);
        let held: Vec<_> = found.iter().map(|each| each.held.objects).collect();
        let all = 2 * u64::from(LENGTH);
        assert_eq!(held, [all, all - 2]);
    }
}
