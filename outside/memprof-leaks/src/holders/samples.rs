//! The objects of which a profiler knows the stack, among those that are held. Their stacks get names when the copy is
//! gone; only then is known which of them are asked for.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use memprof_report::Mapping;

use super::{HolderTree, NONE};
use crate::analysis::{AnalysisReport, AnalyzedSnapshot};
use crate::error::Error;
use crate::objects::ObjectIndex;
use crate::stacks::{self, Stack, Stacks};

/// For each of them its entries in a table and in a list, in bytes.
const OF_SAMPLE: u64 = 64;

/// The sampled objects of a process.
#[derive(Clone, Debug)]
pub struct HeldSamples {
    /// The functions of each stack, leaf first.
    stacks: Vec<Vec<String>>,
    /// Those that hold others before these.
    all: Vec<HeldSample>,
}

/// A sampled object.
#[derive(Clone, Debug)]
struct HeldSample {
    stack: u32,
    /// The level that it belongs to.
    level: u32,
    /// The nearest sample through which it is held.
    above: u32,
    /// What is held through it and through no other sample, with itself.
    held: ObjectTotals,
    /// In bytes.
    size: u64,
}

/// Objects, and their size together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectTotals {
    /// The number of objects.
    pub objects: u64,
    /// Their size together.
    pub bytes: u64,
}

/// Sampled objects of one level whose stacks are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledGroup {
    /// The index of the level.
    pub level: usize,
    /// The objects.
    pub own: ObjectTotals,
    /// These, and those that are held through them.
    pub held: ObjectTotals,
}

/// The stacks of sampled objects by the objects' numbers, before anything is known of who holds them.
pub(super) struct SampledObjects {
    stacks: Vec<Stack>,
    of: HashMap<u32, u32>,
}

/// Samples whose stacks have no names yet.
pub(super) struct UnsymbolizedSamples {
    stacks: Vec<Stack>,
    all: Vec<HeldSample>,
    mappings: Vec<Mapping>,
}

impl SampledObjects {
    /// # Errors
    /// `NoSamples`.
    pub(super) fn of(
        seen: &AnalyzedSnapshot<'_>,
        numbers: &ObjectIndex<'_>,
    ) -> Result<Self, Error> {
        let mut known = Stacks::new(&seen.view, &seen.contexts, &seen.sampled);
        let mut found = Self {
            stacks: Vec::new(),
            of: HashMap::new(),
        };
        let mut places: HashMap<Stack, u32> = HashMap::new();
        for start in stacks::starts(&seen.view, &seen.contexts, &seen.sampled) {
            let object = numbers.find(start).filter(|(_, first)| *first == start);
            let Some((number, stack)) =
                object.and_then(|(number, _)| Some((number, known.of(start)?)))
            else {
                continue;
            };
            let next = found.stacks.len() as u32;
            let place = *places.entry(stack).or_insert_with_key(|stack| {
                found.stacks.push(Rc::clone(stack));
                next
            });
            found.of.insert(number, place);
        }
        match found.of.is_empty() {
            true => Err(Error::NoSamples),
            false => Ok(found),
        }
    }

    /// In bytes.
    pub(super) fn memory(&self) -> u64 {
        let frames = self.stacks.iter().map(|stack| stack.len() as u64);
        frames.sum::<u64>() * 8 + self.of.len() as u64 * OF_SAMPLE
    }

    /// Those that are held, and what is held through each.
    pub(super) fn restrict_to_held(
        self,
        seen: &AnalyzedSnapshot<'_>,
        tree: &HolderTree,
        numbers: &ObjectIndex<'_>,
        levels_of: &[u32],
    ) -> UnsymbolizedSamples {
        let mut nearest = vec![NONE; tree.nodes.len()];
        let mut all: Vec<HeldSample> = Vec::new();
        for (place, node) in tree.nodes.iter().enumerate().skip(1) {
            if *node >= numbers.count() {
                continue;
            }
            let size = numbers.object(*node).size();
            nearest[place] = nearest[tree.parents[place] as usize];
            if let Some(stack) = self.of.get(node) {
                all.push(HeldSample {
                    stack: *stack,
                    level: levels_of[place],
                    above: nearest[place],
                    held: ObjectTotals::default(),
                    size,
                });
                nearest[place] = all.len() as u32 - 1;
            }
            if let Some(sample) = all.get_mut(nearest[place] as usize) {
                sample.held.add(ObjectTotals {
                    objects: 1,
                    bytes: size,
                });
            }
        }
        UnsymbolizedSamples {
            stacks: self.stacks,
            all,
            mappings: stacks::mappings(&seen.view),
        }
    }
}

impl UnsymbolizedSamples {
    /// Names the stacks by the files of the process.
    pub(super) fn named(self, pid: u32, looks: &mut AnalysisReport) -> HeldSamples {
        let stacks = stacks::symbolize(self.stacks.iter(), self.mappings, pid);
        let stacks = stacks.unwrap_or_else(|message| {
            looks.warn(message);
            vec![Vec::new(); self.stacks.len()]
        });
        HeldSamples {
            stacks,
            all: self.all,
        }
    }
}

impl HeldSamples {
    /// How many sampled objects are held.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The sampled objects whose stacks, functions from the leaf on, are asked for, by level.
    pub fn of(&self, is_asked_for: impl Fn(&[String]) -> bool) -> Vec<SampledGroup> {
        let is_meant: Vec<_> = self
            .stacks
            .iter()
            .map(|stack| is_asked_for(stack))
            .collect();
        let mut whole: Vec<_> = self.all.iter().map(|sample| sample.held).collect();
        for (at, sample) in self.all.iter().enumerate().rev() {
            let held = whole[at];
            if let Some(above) = whole.get_mut(sample.above as usize) {
                above.add(held);
            }
        }
        let mut levels: BTreeMap<u32, SampledGroup> = BTreeMap::new();
        self.walk(&is_meant, |at, is_outermost| {
            let sample = &self.all[at];
            let level = levels.entry(sample.level).or_default();
            level.level = sample.level as usize;
            level.own.add(ObjectTotals {
                objects: 1,
                bytes: sample.size,
            });
            if is_outermost {
                level.held.add(whole[at]);
            }
        });
        levels.into_values().collect()
    }

    /// Calls `visit` with each sample that is meant, and whether no other one of its level through which it is held
    /// is meant: objects of a list hold each other, and count once.
    fn walk(&self, is_meant: &[bool], mut visit: impl FnMut(usize, bool)) {
        let mut first_below = vec![NONE; self.all.len()];
        let mut next = vec![NONE; self.all.len()];
        let mut outermost = NONE;
        for (at, sample) in self.all.iter().enumerate().rev() {
            let first = first_below.get_mut(sample.above as usize);
            next[at] = std::mem::replace(first.unwrap_or(&mut outermost), at as u32);
        }
        // By level: how many of the samples on the way are meant.
        let mut meant_above: HashMap<u32, u32> = HashMap::new();
        let mut open = Vec::new();
        let mut at = outermost;
        loop {
            if at == NONE {
                let Some(left) = open.pop() else { break };
                let sample: &HeldSample = &self.all[left as usize];
                if is_meant[sample.stack as usize] {
                    *meant_above.entry(sample.level).or_default() -= 1;
                }
                at = next[left as usize];
                continue;
            }
            let sample = &self.all[at as usize];
            if is_meant[sample.stack as usize] {
                let above = meant_above.entry(sample.level).or_default();
                visit(at as usize, *above == 0);
                *above += 1;
            }
            open.push(at);
            at = first_below[at as usize];
        }
    }
}

impl ObjectTotals {
    fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each sample has 8 bytes, and holds 1 object of 2 bytes besides: its stack, its level, and which one holds it.
    fn samples(all: &[(u32, u32, u32)]) -> HeldSamples {
        let all = all.iter().map(|(stack, level, above)| HeldSample {
            stack: *stack,
            level: *level,
            above: *above,
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
    fn what_holds_itself_counts_once() {
        let check = |all: &[(u32, u32, u32)], asked: &str, expected: &[(usize, u64, u64)]| {
            let found = samples(all).of(|stack| stack[0].contains(asked));
            let found: Vec<_> = found
                .iter()
                .map(|each| {
                    assert_eq!(each.own.bytes, each.own.objects * 8);
                    assert_eq!(each.held.bytes, each.held.objects * 5);
                    (each.level, each.own.objects, each.held.objects)
                })
                .collect();
            assert_eq!(found, expected, "{all:?} {asked}");
        };
        check(&[(0, 1, NONE), (0, 1, NONE)], "make", &[(1, 2, 4)]);
        check(&[(0, 1, NONE)], "load", &[]);
        // A list, whose second object another function made.
        let list = [(0, 1, NONE), (1, 1, 0), (0, 1, 1)];
        check(&list, "make", &[(1, 2, 6)]);
        check(&list, "load", &[(1, 1, 4)]);
        check(&list, "", &[(1, 3, 6)]);
        // What holds another kind is told with it, and so is that kind.
        let nested = [(0, 1, NONE), (0, 2, 0), (0, 1, 1), (1, 2, NONE)];
        check(&nested, "make", &[(1, 2, 6), (2, 1, 4)]);
        check(&nested, "load", &[(2, 1, 2)]);
    }

    #[test]
    fn a_long_list_takes_neither_time_nor_stack() {
        const LENGTH: u32 = 1_000_000;
        let list: Vec<_> = (0..LENGTH)
            .map(|at| (0, at % 2, at.checked_sub(1).unwrap_or(NONE)))
            .collect();
        let found = samples(&list).of(|_| true);
        let held: Vec<_> = found.iter().map(|each| each.held.objects).collect();
        let all = 2 * u64::from(LENGTH);
        assert_eq!(held, [all, all - 2]);
    }
}
