//! What holds objects from outside of the heap.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use super::edges::Edges;
use crate::look::Seen;
use crate::names::{Names, Variable};
use crate::regions::Region;
use crate::view::BLOCK;

/// Where a pointer lies that is in no object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// In a variable of a file's, or where the file has no symbol.
    Variable {
        /// As the programmer wrote it, or the file and the place in it.
        name: String,
        /// The file's name.
        file: String,
    },
    /// On the stack of a thread, where its thread-local variables lie too.
    Stack {
        /// The thread's number (TID).
        thread: u32,
        /// The thread's name (`/proc/PID/task/TID/comm`).
        name: String,
    },
    /// In memory that is no heap which is known here, of so many bytes.
    Memory {
        /// Its first address.
        start: u64,
        /// In bytes.
        size: u64,
        /// As the kernel names it; mostly nothing.
        name: String,
    },
    /// In a register of a thread.
    Registers {
        /// The thread's number (TID).
        thread: u32,
        /// The thread's name (`/proc/PID/task/TID/comm`).
        name: String,
    },
    /// With a descriptor of epoll(7) or a timer.
    Kernel,
}

impl Holder {
    /// Whose objects are told to be theirs first.
    fn rank(&self) -> u8 {
        match self {
            Self::Variable { .. } => 0,
            Self::Stack { .. } => 1,
            Self::Memory { .. } => 2,
            Self::Registers { .. } => 3,
            Self::Kernel => 4,
        }
    }
}

/// What one holder points to.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) holder: u32,
    pub(super) rank: u8,
    pub(super) targets: Vec<u32>,
}

/// All holders of a process, and what they point to, by rank.
#[derive(Debug)]
pub(super) struct Holders {
    pub(super) all: Vec<Holder>,
    pub(super) roots: Vec<Root>,
}

impl Holders {
    pub(super) fn find(seen: &Seen<'_>, edges: &Edges<'_>, names: &mut Names<'_>) -> Self {
        let mut found: BTreeMap<Holder, Vec<u32>> = BTreeMap::new();
        let mut add = |holder: Holder, target| found.entry(holder).or_default().push(target);
        let mut block = vec![0; BLOCK];
        for range in &seen.roots.ranges {
            let range = range.start.next_multiple_of(8)..range.end;
            for start in range.clone().step_by(BLOCK) {
                let length = (range.end - start).min(BLOCK as u64) as usize;
                let read = seen.view.read(start, &mut block[..length]);
                for (at, word) in block[..read].chunks_exact(8).enumerate() {
                    let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                    if let Some(target) = edges.target(word) {
                        add(holder(seen, names, start + at as u64 * 8), target);
                    }
                }
            }
        }
        for thread in &seen.snapshot.threads {
            let targets = thread.words.iter().filter_map(|word| edges.target(*word));
            for target in targets {
                let name = name_of(seen, thread.tid);
                let thread = thread.tid;
                add(Holder::Registers { thread, name }, target);
            }
        }
        for target in seen
            .roots
            .kernel
            .iter()
            .filter_map(|word| edges.target(*word))
        {
            add(Holder::Kernel, target);
        }
        let mut holders = Self {
            all: Vec::new(),
            roots: Vec::new(),
        };
        for (number, (holder, targets)) in found.into_iter().enumerate() {
            holders.roots.push(Root {
                holder: number as u32,
                rank: holder.rank(),
                targets,
            });
            holders.all.push(holder);
        }
        holders.roots.sort_by_key(|root| root.rank);
        holders
    }
}

/// Whose an address outside of the heap is.
fn holder(seen: &Seen<'_>, names: &mut Names<'_>, address: u64) -> Holder {
    if let Some(variable) = names.variable(address) {
        let (name, Variable { file, .. }) = (variable.shown(), variable);
        return Holder::Variable { name, file };
    }
    let region = seen.view.region(address);
    let (Range { start, end }, name) = region.map_or((0..0, ""), |region| {
        let Region { range, name, .. } = region;
        (range.clone(), name)
    });
    let threads = &seen.snapshot.threads;
    let on_it = threads.iter().find(|thread| {
        let is_on = |address: &u64| (start..end).contains(address);
        is_on(&thread.stack) || is_on(&thread.control_block)
    });
    match on_it {
        Some(thread) => Holder::Stack {
            thread: thread.tid,
            name: name_of(seen, thread.tid),
        },
        None => Holder::Memory {
            start,
            size: end - start,
            name: name.to_owned(),
        },
    }
}

/// A thread that has ended meanwhile has no name.
fn name_of(seen: &Seen<'_>, thread: u32) -> String {
    let pid = seen.snapshot.pid;
    let name = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
