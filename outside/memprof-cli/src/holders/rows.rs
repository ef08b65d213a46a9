//! Rows of holders, and of the objects that they hold.

use std::collections::BTreeMap;

use memprof_leaks::{GroupKind, HeapObjectKind, Holder, HolderGroup, HolderPath, SampledGroup};
use serde::Serialize;

use crate::quantities::format_size;

/// Least share of a holder's bytes with which an object is shown below it, in percent.
const MIN_SHOWN_PERCENT: u64 = 5;
/// Largest depth of rows below a holder.
const MAX_SHOWN_DEPTH: usize = 8;

/// A holder, an object below it, or objects with their holders.
#[derive(Serialize)]
pub(super) struct HolderRow {
    /// Steps from the held object to its outermost holder.
    pub(super) path: Vec<HolderStep>,
    /// Number of objects, with those that they hold.
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Number of sampled objects with a matching stack; `None` unless objects were selected by stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) samples: Option<u64>,
    #[serde(skip)]
    pub(super) depth: usize,
}

/// An object or holder in a path.
#[derive(Serialize)]
pub(super) struct HolderStep {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Whether other holders reach the object too.
    pub(super) is_shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<String>,
}

/// All objects of a class or a size.
#[derive(Serialize)]
pub(super) struct ClassRow {
    pub(super) name: String,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Bytes of these objects, with what they hold.
    pub(super) held_bytes: u64,
}

/// Returns the step of a holder path for a kind of group: its short kind and its name for people. The step has no
/// address, and is not marked as shared.
fn unshared_step(group: &GroupKind) -> HolderStep {
    let (kind, name) = match group {
        GroupKind::Process => ("process", "the process".to_owned()),
        GroupKind::Holder(Holder::PythonVariable { name, class }) => {
            ("variable", format!("{name} ({class})"))
        }
        GroupKind::Holder(Holder::Variable { name, file }) => {
            // A variable without a symbol is called `FILE+OFFSET`, so its file need not be named again.
            let offset = name.strip_prefix(file.as_str());
            match offset.is_some_and(|offset| offset.starts_with('+')) {
                true => ("symbol", format!("variable {name}")),
                false => ("symbol", format!("variable {name} in {file}")),
            }
        }
        GroupKind::Holder(Holder::Stack { thread, name }) => {
            ("stack", format!("stack of thread {thread} ({name})"))
        }
        GroupKind::Holder(Holder::Memory {
            start,
            size: bytes,
            name,
        }) => {
            let name = match name.as_str() {
                "" => "memory".to_owned(),
                path if path.starts_with('/') => format!("mapped file {path}"),
                other => other.to_owned(),
            };
            (
                "memory",
                format!("{name} at {start:#x} ({})", format_size(*bytes)),
            )
        }
        GroupKind::Holder(Holder::Registers { thread, name }) => {
            ("register", format!("registers of thread {thread} ({name})"))
        }
        GroupKind::Holder(Holder::Kernel) => ("kernel", "epoll or a timer".to_owned()),
        GroupKind::Objects(kind) => ("object", object_kind_name(kind)),
    };
    HolderStep {
        kind,
        name,
        is_shared: false,
        address: None,
    }
}

/// Returns the name of a class, or a size: up to 1 KiB as `48 B`, above that as the upper limit of a range, `up to
/// 2.00KiB`.
fn object_kind_name(kind: &HeapObjectKind) -> String {
    match kind {
        HeapObjectKind::Class(name) => name.to_string(),
        HeapObjectKind::Size(bytes) if *bytes <= 1024 => format!("{bytes} B"),
        HeapObjectKind::Size(bytes) => format!("up to {}", format_size(*bytes)),
    }
}

/// Returns the step for a group, marked as shared if others hold its objects too.
pub(super) fn step_for_group(group: &HolderGroup) -> HolderStep {
    HolderStep {
        is_shared: group.is_shared,
        ..unshared_step(&group.kind)
    }
}

/// Returns the steps from a group to its outermost holder, the group first. The process, which is group 0, is no step.
fn path_to_root(groups: &[HolderGroup], mut index: usize) -> Vec<HolderStep> {
    let mut path = Vec::new();
    while index != 0 {
        path.push(step_for_group(&groups[index]));
        index = groups[index].parent;
    }
    path
}

/// Returns the rows of the `top` largest holders, except memprof's own. Each is followed by the groups below it that
/// hold more than [`MIN_SHOWN_PERCENT`] of its bytes, up to a depth of [`MAX_SHOWN_DEPTH`].
pub(super) fn largest_holder_rows(groups: &[HolderGroup], top: usize) -> Vec<HolderRow> {
    let mut below = vec![Vec::new(); groups.len()];
    // Group 0 is the process, which holds all objects.
    for (index, group) in groups.iter().enumerate().skip(1) {
        below[group.parent].push(index);
    }
    for children in &mut below {
        children.sort_by_key(|index| std::cmp::Reverse(groups[*index].held_bytes));
    }
    let mut rows = Vec::new();
    // A holder whose objects all belong to holders of an earlier rank holds nothing.
    let non_empty = below[0].iter().filter(|index| {
        groups[**index].held_objects > 0 && !is_memprof_holder(&groups[**index].kind)
    });
    for holder in non_empty.take(top) {
        let shown = groups[*holder].held_bytes / 100 * MIN_SHOWN_PERCENT;
        let mut open = vec![(*holder, 0)];
        while let Some((index, depth)) = open.pop() {
            rows.push(row_for_group(groups, index, depth));
            // Reversed, because the last element is popped first.
            let within = below[index].iter().rev();
            let large = within.filter(|index| groups[**index].held_bytes > shown);
            open.extend(
                large
                    .filter(|_| depth < MAX_SHOWN_DEPTH)
                    .map(|index| (*index, depth + 1)),
            );
        }
    }
    rows
}

/// Returns whether the holder is memprof's plugin: a variable of it, or the stack or registers of one of its threads,
/// whose names begin with "memprof-" (memprof-own).
pub(super) fn is_memprof_holder(group: &GroupKind) -> bool {
    match group {
        GroupKind::Holder(Holder::Variable { file, .. }) => file.ends_with("memory_profile.so"),
        GroupKind::Holder(Holder::Stack { name, .. } | Holder::Registers { name, .. }) => {
            name.starts_with("memprof-")
        }
        _ => false,
    }
}

/// Returns how many objects, and how many bytes, memprof's plugin holds for itself, summed over its holders.
pub(super) fn amounts_held_by_memprof(groups: &[HolderGroup]) -> (u64, u64) {
    let own = groups
        .iter()
        .filter(|group| group.parent == 0 && is_memprof_holder(&group.kind));
    own.fold((0, 0), |(objects, bytes), group| {
        (objects + group.held_objects, bytes + group.held_bytes)
    })
}

/// Returns the row for the group at `index`, with the path of all its holders; `depth` is the row's indentation.
fn row_for_group(groups: &[HolderGroup], index: usize, depth: usize) -> HolderRow {
    HolderRow {
        path: path_to_root(groups, index),
        objects: groups[index].held_objects,
        bytes: groups[index].held_bytes,
        samples: None,
        depth,
    }
}

/// Returns at most `top` rows of the groups of objects whose kind `is_match` accepts, by their own bytes in descending
/// order.
pub(super) fn rows_by_kind(
    groups: &[HolderGroup],
    top: usize,
    is_match: impl Fn(&HeapObjectKind) -> bool,
) -> Vec<HolderRow> {
    let is_match =
        |index: &usize| matches!(&groups[*index].kind, GroupKind::Objects(kind) if is_match(kind));
    let mut found: Vec<_> = (0..groups.len()).filter(is_match).collect();
    found.sort_by_key(|index| std::cmp::Reverse(groups[*index].bytes));
    let rows = found
        .iter()
        .take(top)
        .map(|index| row_for_group(groups, *index, 0));
    rows.collect()
}

/// Returns at most `top` rows, one for each group of sampled objects in `found`, by held bytes in descending order. The
/// amounts of a row are those of the sampled objects, not of the whole group.
pub(super) fn sampled_rows(
    groups: &[HolderGroup],
    top: usize,
    mut found: Vec<SampledGroup>,
) -> Vec<HolderRow> {
    found.sort_by_key(|sampling| std::cmp::Reverse(sampling.held.bytes));
    let rows = found.iter().take(top).map(|sampling| HolderRow {
        objects: sampling.held.objects,
        bytes: sampling.held.bytes,
        samples: Some(sampling.own.objects),
        ..row_for_group(groups, sampling.group, 0)
    });
    rows.collect()
}

/// Returns the row for one object, with the path of its holders and their addresses.
pub(super) fn row_for_object(chain: &HolderPath) -> HolderRow {
    let links = chain.steps.iter().map(|(link, address)| HolderStep {
        address: address.map(|address| format!("{address:#x}")),
        ..unshared_step(link)
    });
    HolderRow {
        path: links.collect(),
        objects: chain.objects,
        bytes: chain.bytes,
        samples: None,
        depth: 0,
    }
}

/// Returns a row for each class or size, by held bytes in descending order. A group of a class never lies below another
/// group of the same class, so that the held bytes of groups can be added.
pub(super) fn class_rows(groups: &[HolderGroup]) -> Vec<ClassRow> {
    let mut classes: BTreeMap<String, ClassRow> = BTreeMap::new();
    for group in groups {
        let GroupKind::Objects(kind) = &group.kind else {
            continue;
        };
        let name = object_kind_name(kind);
        let class = classes.entry(name.clone()).or_insert(ClassRow {
            name,
            objects: 0,
            bytes: 0,
            held_bytes: 0,
        });
        class.objects += group.objects;
        class.bytes += group.bytes;
        class.held_bytes += group.held_bytes;
    }
    let mut classes: Vec<_> = classes.into_values().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.held_bytes));
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memprof_s_own_holders_are_recognized() {
        let variable = |file: &str| {
            GroupKind::Holder(Holder::Variable {
                name: "x".to_owned(),
                file: file.to_owned(),
            })
        };
        let stack = |name: &str| {
            GroupKind::Holder(Holder::Stack {
                thread: 7,
                name: name.to_owned(),
            })
        };
        for (kind, expected) in [
            (variable("memory_profile.so"), true),
            (variable("libmemory_profile.so"), true),
            (variable("shop"), false),
            (stack("memprof-control"), true),
            (stack("memprofiler"), false),
            (GroupKind::Process, false),
        ] {
            assert_eq!(is_memprof_holder(&kind), expected, "{kind:?}");
        }
    }

    #[test]
    fn file_of_a_variable_is_named_once() {
        let check = |name: &str, file: &str, expected| {
            let [name, file] = [name, file].map(str::to_owned);
            let link = GroupKind::Holder(Holder::Variable { name, file });
            assert_eq!(unshared_step(&link).name, expected);
        };
        check("sessions", "shop", "variable sessions in shop");
        check("shop_state", "shop", "variable shop_state in shop");
        check("libc.so.6+0x10", "libc.so.6", "variable libc.so.6+0x10");
    }
}
