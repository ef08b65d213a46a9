//! Leaked objects by what they are, and by where they were allocated.

use std::collections::BTreeMap;
use std::rc::Rc;

use memprof_report::Mapping;

use crate::analysis::{AnalysisReport, AnalyzedSnapshot};
use crate::names::NameResolver;
use crate::objects::Object;
use crate::stacks::{Stack, Stacks, mappings, symbolize};

/// Leaked objects that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakGroup {
    /// Their class in C++ or type in Python, where their first words tell one.
    pub class: Option<String>,
    /// In bytes, of each: as the allocator gives it out.
    pub size: u64,
    /// The functions by which they were allocated, leaf first, where they are samples of a profiler that runs in
    /// the process. Objects without are not known to have another one.
    pub stack: Option<Vec<String>>,
    /// The number of objects.
    pub objects: u64,
    /// Of all.
    pub bytes: u64,
    /// The address of one.
    pub example: u64,
}

/// Class, size and stack, which objects of a group share.
type Alike = (Option<Rc<str>>, u64, Option<Stack>);

/// Groups whose stacks have no names yet.
pub(crate) struct UnsymbolizedGroups {
    groups: BTreeMap<Alike, LeakGroup>,
    mappings: Vec<Mapping>,
}

impl UnsymbolizedGroups {
    /// Puts objects of a snapshot together that are alike.
    pub(crate) fn of(seen: &AnalyzedSnapshot<'_>, objects: impl Iterator<Item = Object>) -> Self {
        let mut names = NameResolver::new(&seen.view);
        let mut stacks = Stacks::new(&seen.view, &seen.contexts, &seen.sampled);
        let mut groups = BTreeMap::new();
        for object in objects {
            let (class, size) = (names.class(&object), object.size());
            let key = (class, size, stacks.of(object.range.start));
            let group = groups
                .entry(key)
                .or_insert_with_key(|(class, ..)| LeakGroup {
                    class: class.as_deref().map(str::to_owned),
                    size,
                    stack: None,
                    objects: 0,
                    bytes: 0,
                    example: object.range.start,
                });
            group.objects += 1;
            group.bytes += size;
        }
        Self {
            groups,
            mappings: mappings(&seen.view),
        }
    }

    /// Names their stacks by the files of the process: those that differ only by addresses within functions are
    /// one. The most bytes come first.
    pub(crate) fn named(self, pid: u32, looks: &mut AnalysisReport) -> Vec<LeakGroup> {
        let stacks = self.groups.keys().map(|(.., stack)| stack.as_ref());
        let named = symbolize(stacks.flatten(), self.mappings, pid);
        let named = named.unwrap_or_else(|message| {
            looks.warn(message);
            Vec::new()
        });
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
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        groups
    }
}
