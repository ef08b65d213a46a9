//! Groups of leaked objects, by class, size and allocating stack.

use std::collections::BTreeMap;
use std::rc::Rc;

use memprof_report::Mapping;

use crate::analysis::{AnalysisReport, AnalyzedSnapshot};
use crate::leak_group::LeakGroup;
use crate::names::NameResolver;
use crate::objects::Object;
use crate::sampled_origin::set_probable_origins;
use crate::stacks::{Stack, Stacks, executable_mappings, symbolize};

/// Class, size and stack of a group.
type GroupKey = (Option<Rc<str>>, u64, Option<Stack>);

/// Groups with unsymbolized stacks.
pub(crate) struct UnsymbolizedGroups {
    groups: BTreeMap<GroupKey, LeakGroup>,
    mappings: Vec<Mapping>,
    /// Mean bytes between the samples, if it is known.
    interval: Option<u64>,
    /// Warnings about types of Python that were not read.
    warnings: Vec<String>,
}

impl UnsymbolizedGroups {
    /// Groups leaked objects of a snapshot by class, size and allocating stack, which is not symbolized yet. The first
    /// object of a group is its example.
    pub(crate) fn new(
        analyzed: &AnalyzedSnapshot<'_>,
        objects: impl Iterator<Item = Object>,
    ) -> Self {
        let mut names = NameResolver::new(&analyzed.view, analyzed.python.as_ref());
        let mut stacks = Stacks::new(&analyzed.view, &analyzed.contexts, &analyzed.sampled);
        let mut groups = BTreeMap::new();
        for object in objects {
            let (class, size) = (names.class_name(&object), object.size());
            let key = (class, size, stacks.stack_of(object.range.start));
            let group = groups
                .entry(key)
                .or_insert_with_key(|(class, ..)| LeakGroup {
                    class: class.as_deref().map(str::to_owned),
                    size,
                    stack: None,
                    origin: None,
                    objects: 0,
                    bytes: 0,
                    example: object.range.start,
                });
            group.objects += 1;
            group.bytes += size;
        }
        Self {
            groups,
            interval: stacks.sample_interval(),
            warnings: names.python_warnings(),
            mappings: executable_mappings(&analyzed.view),
        }
    }

    /// Symbolizes the stacks by the files of the process. Then merges groups whose stacks differ only by addresses
    /// within functions. If the sampling interval is known, names the probable origins of groups without a stack.
    /// Groups with most bytes come first. Stacks that cannot be symbolized are dropped with a warning.
    pub(crate) fn symbolize(self, pid: u32, report: &mut AnalysisReport) -> Vec<LeakGroup> {
        for warning in self.warnings {
            report.add_warning(warning);
        }
        let stacks = self.groups.keys().map(|(.., stack)| stack.as_ref());
        let named = symbolize(stacks.flatten(), self.mappings, pid);
        let named = named.unwrap_or_else(|message| {
            report.add_warning(message);
            Vec::new()
        });
        // One stack per group with a stack, in the order of the groups; empty if symbolization failed.
        let mut named = named.into_iter();
        let mut merged: BTreeMap<_, LeakGroup> = BTreeMap::new();
        for ((class, size, stack), group) in self.groups {
            let stack = stack.and_then(|_| named.next());
            let known = merged.entry((class, size, stack.clone()));
            known
                .and_modify(|known| {
                    known.objects += group.objects;
                    known.bytes += group.bytes;
                })
                .or_insert(LeakGroup { stack, ..group });
        }
        let mut groups: Vec<_> = merged.into_values().collect();
        if let Some(interval) = self.interval {
            set_probable_origins(&mut groups, interval);
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        groups
    }
}
