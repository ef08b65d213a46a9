//! What is shown of who holds what: rows of holders, and of what they hold.

use std::collections::BTreeMap;

use memprof_leaks::{GroupKind, HeapObjectKind, Holder, HolderGroup, HolderPath, SampledGroup};
use serde::Serialize;

use crate::analysis_summary::size;

/// Of what a holder holds, what is shown: this share, in hundredths.
const SHOWN_SHARE: u64 = 5;
const SHOWN_DEPTH: usize = 8;

/// A holder, what it holds, or objects and what holds them.
#[derive(Serialize)]
pub(super) struct HolderRow {
    /// What is held first, its outermost holder last.
    pub(super) path: Vec<HolderStep>,
    /// With what they hold.
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// How many objects a profiler sampled of those that were asked for by their stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) samples: Option<u64>,
    #[serde(skip)]
    pub(super) depth: usize,
}

#[derive(Serialize)]
pub(super) struct HolderStep {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Others hold it too.
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
    /// With what is held through them.
    pub(super) held_bytes: u64,
}

fn step(link: &GroupKind) -> HolderStep {
    let (kind, name) = match link {
        GroupKind::Process => ("process", "the process".to_owned()),
        GroupKind::Holder(Holder::Variable { name, file }) => {
            let place = name.strip_prefix(file.as_str());
            match place.is_some_and(|place| place.starts_with('+')) {
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
            let name = if name.is_empty() { "memory" } else { name };
            ("memory", format!("{name} at {start:#x} ({})", size(*bytes)))
        }
        GroupKind::Holder(Holder::Registers { thread, name }) => {
            ("register", format!("registers of thread {thread} ({name})"))
        }
        GroupKind::Holder(Holder::Kernel) => ("kernel", "epoll or a timer".to_owned()),
        GroupKind::Objects(kind) => ("object", name_of_kind(kind)),
    };
    HolderStep {
        kind,
        name,
        is_shared: false,
        address: None,
    }
}

fn name_of_kind(kind: &HeapObjectKind) -> String {
    match kind {
        HeapObjectKind::Class(name) => name.to_string(),
        HeapObjectKind::Size(bytes) if *bytes <= 1024 => format!("{bytes} B"),
        HeapObjectKind::Size(bytes) => format!("up to {}", size(*bytes)),
    }
}

/// A level of the tree, as the text and the page show it.
pub(super) fn step_of(level: &HolderGroup) -> HolderStep {
    HolderStep {
        is_shared: level.is_shared,
        ..step(&level.kind)
    }
}

fn path(levels: &[HolderGroup], mut at: usize) -> Vec<HolderStep> {
    let mut path = Vec::new();
    while at != 0 {
        path.push(step_of(&levels[at]));
        at = levels[at].parent;
    }
    path
}

/// The holders that hold most, each with what it holds.
pub(super) fn largest(levels: &[HolderGroup], top: usize) -> Vec<HolderRow> {
    let mut below = vec![Vec::new(); levels.len()];
    for (at, level) in levels.iter().enumerate().skip(1) {
        below[level.parent].push(at);
    }
    for children in &mut below {
        children.sort_by_key(|at| std::cmp::Reverse(levels[*at].held_bytes));
    }
    let mut rows = Vec::new();
    // What points only to what holders of an earlier rank hold has nothing.
    let holding = below[0].iter().filter(|at| levels[**at].held_objects > 0);
    for holder in holding.take(top) {
        let shown = levels[*holder].held_bytes / 100 * SHOWN_SHARE;
        let mut open = vec![(*holder, 0)];
        while let Some((at, depth)) = open.pop() {
            rows.push(row(levels, at, depth));
            let within = below[at].iter().rev();
            let large = within.filter(|at| levels[**at].held_bytes > shown);
            open.extend(
                large
                    .filter(|_| depth < SHOWN_DEPTH)
                    .map(|at| (*at, depth + 1)),
            );
        }
    }
    rows
}

fn row(levels: &[HolderGroup], at: usize, depth: usize) -> HolderRow {
    HolderRow {
        path: path(levels, at),
        objects: levels[at].held_objects,
        bytes: levels[at].held_bytes,
        samples: None,
        depth,
    }
}

/// Objects of a kind, by what holds them.
pub(super) fn rows_by_kind(
    levels: &[HolderGroup],
    top: usize,
    is_meant: impl Fn(&HeapObjectKind) -> bool,
) -> Vec<HolderRow> {
    let is_meant =
        |at: &usize| matches!(&levels[*at].kind, GroupKind::Objects(kind) if is_meant(kind));
    let mut found: Vec<_> = (0..levels.len()).filter(is_meant).collect();
    found.sort_by_key(|at| std::cmp::Reverse(levels[*at].bytes));
    let rows = found.iter().take(top).map(|at| row(levels, *at, 0));
    rows.collect()
}

/// Sampled objects, by what holds them.
pub(super) fn rows_by_sample(
    levels: &[HolderGroup],
    top: usize,
    mut found: Vec<SampledGroup>,
) -> Vec<HolderRow> {
    found.sort_by_key(|sampling| std::cmp::Reverse(sampling.held.bytes));
    let rows = found.iter().take(top).map(|sampling| HolderRow {
        objects: sampling.held.objects,
        bytes: sampling.held.bytes,
        samples: Some(sampling.own.objects),
        ..row(levels, sampling.group, 0)
    });
    rows.collect()
}

/// One object, and what holds it.
pub(super) fn row_for_object(chain: &HolderPath) -> HolderRow {
    let links = chain.steps.iter().map(|(link, address)| HolderStep {
        address: address.map(|address| format!("{address:#x}")),
        ..step(link)
    });
    HolderRow {
        path: links.collect(),
        objects: chain.objects,
        bytes: chain.bytes,
        samples: None,
        depth: 0,
    }
}

/// No level of a kind lies behind another one of that kind: what they hold can be added up.
pub(super) fn classes(levels: &[HolderGroup]) -> Vec<ClassRow> {
    let mut classes: BTreeMap<String, ClassRow> = BTreeMap::new();
    for level in levels {
        let GroupKind::Objects(kind) = &level.kind else {
            continue;
        };
        let name = name_of_kind(kind);
        let class = classes.entry(name.clone()).or_insert(ClassRow {
            name,
            objects: 0,
            bytes: 0,
            held_bytes: 0,
        });
        class.objects += level.objects;
        class.bytes += level.bytes;
        class.held_bytes += level.held_bytes;
    }
    let mut classes: Vec<_> = classes.into_values().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.held_bytes));
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_s_file_is_named_once() {
        let check = |name: &str, file: &str, expected| {
            let [name, file] = [name, file].map(str::to_owned);
            let link = GroupKind::Holder(Holder::Variable { name, file });
            assert_eq!(step(&link).name, expected);
        };
        check("sessions", "shop", "variable sessions in shop");
        check("shop_state", "shop", "variable shop_state in shop");
        check("libc.so.6+0x10", "libc.so.6", "variable libc.so.6+0x10");
    }
}
