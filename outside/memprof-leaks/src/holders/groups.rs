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
    /// Index of the group that holds it.
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

/// Groups the nodes of a tree by kind and holder. The groups may use up to `max_bytes`; if that is too little, the
/// result says that it is incomplete.
pub(super) fn group_by_kind(
    tree: &HolderTree,
    object_index: &ObjectIndex<'_>,
    kinds: &HeapObjectKinds,
    holders: &ExternalHolders,
    max_bytes: u64,
) -> HolderGroups {
    let limit = holders.all.len() as u64 + MAX_GROUPS.min(max_bytes / BYTES_PER_GROUP);
    let mut is_complete = true;
    let new = |group_kind, parent, is_shared| HolderGroup {
        kind: group_kind,
        parent,
        is_shared,
        objects: 0,
        bytes: 0,
        held_objects: 0,
        held_bytes: 0,
    };
    let mut groups = vec![new(GroupKind::Process, 0, false)];
    let mut kind_of = vec![NO_KIND];
    let mut below: HashMap<(u32, u32, bool), u32> = HashMap::new();
    let mut group_of = vec![0; tree.nodes.len()];
    for (index, node) in tree.nodes.iter().enumerate().skip(1) {
        if let Some(holder) = node.checked_sub(object_index.count()) {
            group_of[index] = groups.len() as u32;
            let holder = holders.all[holder as usize].clone();
            groups.push(new(GroupKind::Holder(holder), 0, false));
            kind_of.push(NO_KIND);
        }
    }
    for position in 1..tree.nodes.len() {
        let (node, above) = (
            tree.nodes[position],
            group_of[tree.parents[position] as usize],
        );
        if node >= object_index.count() {
            continue;
        }
        let is_shared = tree.shared.binary_search(&(position as u32)).is_ok();
        let kind = kinds.kind(node);
        let group = *below.entry((above, kind, is_shared)).or_insert_with(|| {
            let mut ancestor = above;
            while ancestor != 0 && kind_of[ancestor as usize] != kind {
                ancestor = groups[ancestor as usize].parent as u32;
            }
            if ancestor != 0 {
                return ancestor;
            }
            if groups.len() as u64 >= limit {
                is_complete = false;
                return above;
            }
            let group_kind = GroupKind::Objects(kinds.all[kind as usize].clone());
            groups.push(new(group_kind, above as usize, is_shared));
            kind_of.push(kind);
            groups.len() as u32 - 1
        });
        group_of[position] = group;
        let group = &mut groups[group as usize];
        group.objects += 1;
        group.bytes += object_index.object(node).size();
    }
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
    HolderGroups {
        groups,
        group_of,
        is_complete,
    }
}
