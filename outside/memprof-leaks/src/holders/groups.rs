//! Groups of objects of one kind with the same holders.

use std::collections::HashMap;

use super::external::ExternalHolders;
use super::holder::Holder;
use super::kinds::{HeapObjectKind, HeapObjectKinds};
use super::{HolderTree, NO_NODE};
use crate::objects::ObjectIndex;

/// Most groups of objects. Further objects are counted in the group of their holder.
const MAX_GROUPS: u64 = 1 << 18;
/// Bytes per group, with its representation in the output.
const BYTES_PER_GROUP: u64 = 448;

/// Kind of a group: the process, a holder, or objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// The whole process.
    Process,
    /// A holder outside the heap.
    Holder(Holder),
    /// Objects of one kind.
    Objects(HeapObjectKind),
}

/// Objects of one kind with the same holders. If objects of the kind hold each other, as in a list or a tree,
/// the group contains all of them.
#[derive(Clone, Debug)]
pub struct HolderGroup {
    /// The kind of the objects, or the holder.
    pub kind: GroupKind,
    /// Index of the group that holds it; 0, the process, for a holder.
    pub parent: usize,
    /// Whether other holders reach the objects, too; the group is then below the nearest one.
    pub is_shared: bool,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Number of these objects and of those that they hold.
    pub held_objects: u64,
    /// Bytes of these objects and of those that they hold.
    pub held_bytes: u64,
}

/// Groups of a tree's nodes.
pub(super) struct HolderGroups {
    pub(super) groups: Vec<HolderGroup>,
    /// Index of the group of each node in the tree.
    pub(super) group_of: Vec<u32>,
    /// False if some objects are counted in their holder's group, because memory is short.
    pub(super) is_complete: bool,
}

/// Kind of a group that is a holder or the process.
const NO_KIND: u32 = NO_NODE;

/// Groups to which objects are added one after the other, each after the one that holds it.
pub(super) struct GroupBuilder {
    groups: Vec<HolderGroup>,
    /// Kind of each group's objects.
    kinds: Vec<u32>,
    /// Groups by the group above, the kind, and whether the objects are shared.
    below: HashMap<(u32, u32, bool), u32>,
    limit: u64,
    is_complete: bool,
}

impl GroupBuilder {
    /// Creates the group of the process, with number 0, and those of the holders, from number 1 on. Up to `max_groups`
    /// more can be added.
    pub(super) fn new(holders: impl Iterator<Item = Holder>, max_groups: u64) -> Self {
        let holders = holders.map(|holder| new_group(GroupKind::Holder(holder), 0, false));
        let process = new_group(GroupKind::Process, 0, false);
        let groups: Vec<_> = std::iter::once(process).chain(holders).collect();
        Self {
            kinds: vec![NO_KIND; groups.len()],
            limit: groups.len() as u64 + max_groups,
            groups,
            below: HashMap::new(),
            is_complete: true,
        }
    }

    /// Adds an object of `size` bytes, held by one in the group `above`. Its kind comes with the kind's number.
    /// `is_shared`: other holders reach it, too. Returns the number of its group.
    pub(super) fn add_object(
        &mut self,
        above: u32,
        (kind, kind_of_group): (u32, &HeapObjectKind),
        is_shared: bool,
        size: u64,
    ) -> u32 {
        let known = self.below.get(&(above, kind, is_shared)).copied();
        let group = known.unwrap_or_else(|| {
            let group = self.find_or_add_group(above, (kind, kind_of_group), is_shared);
            self.below.insert((above, kind, is_shared), group);
            group
        });
        let own = &mut self.groups[group as usize];
        own.objects += 1;
        own.bytes += size;
        group
    }

    /// Group of objects of a kind that an object of the group `above` holds. If `above` or one of its holders has the
    /// kind, the result is that group: objects of the kind hold each other. Else the result is a new group, or `above`
    /// if the limit is reached.
    fn find_or_add_group(
        &mut self,
        above: u32,
        (kind, kind_of_group): (u32, &HeapObjectKind),
        is_shared: bool,
    ) -> u32 {
        let mut ancestor = above;
        while ancestor != 0 && self.kinds[ancestor as usize] != kind {
            ancestor = self.groups[ancestor as usize].parent as u32;
        }
        if ancestor != 0 {
            return ancestor;
        }
        if self.groups.len() as u64 >= self.limit {
            self.is_complete = false;
            return above;
        }
        let group_kind = GroupKind::Objects(kind_of_group.clone());
        self.groups
            .push(new_group(group_kind, above as usize, is_shared));
        self.kinds.push(kind);
        self.groups.len() as u32 - 1
    }

    /// Sums up what each group holds. Returns the groups, and false if some objects are counted in their holder's
    /// group, because memory is short.
    pub(super) fn finish(mut self) -> (Vec<HolderGroup>, bool) {
        let groups = &mut self.groups;
        // A group follows the one that holds it, so its sums are complete when they are added.
        for index in (0..groups.len()).rev() {
            groups[index].held_objects += groups[index].objects;
            groups[index].held_bytes += groups[index].bytes;
            if index > 0 {
                let (objects, bytes) = (groups[index].held_objects, groups[index].held_bytes);
                let parent = groups[index].parent;
                groups[parent].held_objects += objects;
                groups[parent].held_bytes += bytes;
            }
        }
        (self.groups, self.is_complete)
    }
}

/// Group without objects. `parent` is the index of the group that holds it; `is_shared`: other holders reach its
/// objects, too.
fn new_group(kind: GroupKind, parent: usize, is_shared: bool) -> HolderGroup {
    HolderGroup {
        kind,
        parent,
        is_shared,
        objects: 0,
        bytes: 0,
        held_objects: 0,
        held_bytes: 0,
    }
}

/// Most groups of objects in `max_bytes` of memory, but at most [`MAX_GROUPS`].
pub(super) fn max_groups(max_bytes: u64) -> u64 {
    MAX_GROUPS.min(max_bytes / BYTES_PER_GROUP)
}

/// Groups the nodes of a tree by kind and holder. The groups may use up to `max_bytes`; if that is too little, the
/// result says that it is incomplete.
pub(super) fn group_by_kind(
    tree: &HolderTree,
    object_index: &ObjectIndex<'_>,
    kinds: &HeapObjectKinds,
    holders: &ExternalHolders,
    max_bytes: u64,
) -> HolderGroups {
    let count = object_index.count();
    let mut group_of = vec![0; tree.nodes.len()];
    let mut found = Vec::new();
    for (index, node) in tree.nodes.iter().enumerate().skip(1) {
        if let Some(holder) = node.checked_sub(count) {
            found.push(holders.all[holder as usize].clone());
            group_of[index] = found.len() as u32;
        }
    }
    // Holders that are not in the tree need no group, so the groups of objects may use their memory.
    let unused = (holders.all.len() - found.len()) as u64;
    let mut builder = GroupBuilder::new(found.into_iter(), unused + max_groups(max_bytes));
    for position in 1..tree.nodes.len() {
        let node = tree.nodes[position];
        if node >= count {
            continue;
        }
        let above = group_of[tree.parents[position] as usize];
        let is_shared = tree.shared.binary_search(&(position as u32)).is_ok();
        let size = object_index.object(node).size();
        group_of[position] = builder.add_object(above, kinds.kind_of(node), is_shared, size);
    }
    let (groups, is_complete) = builder.finish();
    HolderGroups {
        groups,
        group_of,
        is_complete,
    }
}
