//! Objects of one kind with the same holders, together.

use std::collections::HashMap;

use super::external::ExternalHolders;
use super::holder::Holder;
use super::kinds::{HeapObjectKind, HeapObjectKinds};
use super::{HolderTree, NONE};
use crate::objects::ObjectIndex;

/// More are told with what holds them.
const LIMIT: u64 = 1 << 18;
/// What a level takes, with what is made of it to be shown, in bytes.
const OF_LEVEL: u64 = 448;

/// A holder, or objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// The whole process.
    Process,
    /// What holds them from outside of the heap.
    Holder(Holder),
    /// Objects of a kind.
    Objects(HeapObjectKind),
}

/// Objects of one kind with the same holders; where such objects hold each other, as those of a list or a tree
/// do, all of them.
#[derive(Clone, Debug)]
pub struct HolderGroup {
    /// The kind of the objects, or the holder.
    pub link: GroupKind,
    /// The level that holds them.
    pub parent: usize,
    /// Other holders lead to them too: this one is the nearest.
    pub is_shared: bool,
    /// The number of objects.
    pub objects: u64,
    /// Their size together.
    pub bytes: u64,
    /// These objects and those that are held through them.
    pub held_objects: u64,
    /// Likewise, in bytes.
    pub held_bytes: u64,
}

pub(super) struct HolderGroups {
    pub(super) levels: Vec<HolderGroup>,
    /// By a place in the tree.
    pub(super) levels_of: Vec<u32>,
    /// No objects are told with what holds them for want of memory.
    pub(super) is_whole: bool,
}

/// The kind of a level that is a holder, or the process.
const NO_KIND: u32 = NONE;

/// Makes levels of a tree, which may take so many bytes.
pub(super) fn levels(
    tree: &HolderTree,
    numbers: &ObjectIndex<'_>,
    kinds: &HeapObjectKinds,
    holders: &ExternalHolders,
    room: u64,
) -> HolderGroups {
    let limit = holders.all.len() as u64 + LIMIT.min(room / OF_LEVEL);
    let mut is_whole = true;
    let new = |link, parent, is_shared| HolderGroup {
        link,
        parent,
        is_shared,
        objects: 0,
        bytes: 0,
        held_objects: 0,
        held_bytes: 0,
    };
    let mut levels = vec![new(GroupKind::Process, 0, false)];
    let mut kind_of = vec![NO_KIND];
    let mut below: HashMap<(u32, u32, bool), u32> = HashMap::new();
    let mut levels_of = vec![0; tree.nodes.len()];
    for (place, node) in tree.nodes.iter().enumerate().skip(1) {
        if let Some(holder) = node.checked_sub(numbers.count()) {
            levels_of[place] = levels.len() as u32;
            let holder = holders.all[holder as usize].clone();
            levels.push(new(GroupKind::Holder(holder), 0, false));
            kind_of.push(NO_KIND);
        }
    }
    for place in 1..tree.nodes.len() {
        let (node, above) = (tree.nodes[place], levels_of[tree.parents[place] as usize]);
        if node >= numbers.count() {
            continue;
        }
        let is_shared = tree.shared.binary_search(&(place as u32)).is_ok();
        let kind = kinds.kind(node);
        let level = *below.entry((above, kind, is_shared)).or_insert_with(|| {
            let mut at = above;
            while at != 0 && kind_of[at as usize] != kind {
                at = levels[at as usize].parent as u32;
            }
            if at != 0 {
                return at;
            }
            if levels.len() as u64 >= limit {
                is_whole = false;
                return above;
            }
            let link = GroupKind::Objects(kinds.all[kind as usize].clone());
            levels.push(new(link, above as usize, is_shared));
            kind_of.push(kind);
            levels.len() as u32 - 1
        });
        levels_of[place] = level;
        let level = &mut levels[level as usize];
        level.objects += 1;
        level.bytes += numbers.object(node).size();
    }
    for at in (0..levels.len()).rev() {
        levels[at].held_objects += levels[at].objects;
        levels[at].held_bytes += levels[at].bytes;
        if at > 0 {
            let (objects, bytes) = (levels[at].held_objects, levels[at].held_bytes);
            let parent = levels[at].parent;
            levels[parent].held_objects += objects;
            levels[parent].held_bytes += bytes;
        }
    }
    HolderGroups {
        levels,
        levels_of,
        is_whole,
    }
}
