//! A stack walk for the inside of an allocator, several times cheaper than libgcc's.
//!
//! jemalloc calls a walker for each sample, and lets it be replaced while the program runs. The
//! one here runs in the midst of `malloc`, in somebody else's process. So this crate has no
//! standard library and no allocator: there is nothing in it that could allocate, lock, print or
//! touch thread-local storage. To put it into a process see `memprof-core`.
//!
//! A [`walk()`] takes one [`Rule`] for each frame, found in the program's own call frame
//! information ([`cfi`]) and kept in a [`RuleTable`]; it reads the stack through
//! [`ReadableStack`], which asks the kernel about each page before it is touched. A [`BacktraceHook`] is what the
//! allocator calls: where our walk does not know the way, the allocator's own takes over.
//!
//! Only x86-64 is built: what knows the processor are the registers of rules and walks, the system
//! call of [`is_readable`], and the entry of a [`BacktraceHook`].
#![no_std]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod alloc_time;
pub mod cfi;
mod compare;
mod hook;
mod hook_stats;
mod label;
mod last_walk;
mod object;
mod pseudo_frames;
mod rule;
mod rule_table;
mod signals;
mod stack_memory;
mod thread;
mod thread_stack;
mod walk;
mod workspace;

pub use alloc_time::set_alloc_time;
pub use hook::{
    BacktraceHook, HOOKS, Walker, clear_rules, clear_stack_cache, prepare, rules_read,
    walk_this_thread,
};
pub use hook_stats::HookStats;
pub use label::{
    LabelContext, LabelIter, LabelSetCounts, MOST_CONTEXTS, MOST_KEYS, MOST_SETS, OTHER,
    for_each_label_set, label_set_counts, set_labels,
};
pub use object::{FindObject, FoundObject};
pub use pseudo_frames::PseudoFrames;
pub use rule::{Cfa, PackedRule, Rule, SavedBp};
pub use rule_table::{RuleIndex, RuleTable};
pub use stack_memory::{ReadableStack, is_readable};
pub use walk::{Frame, Registers, RuleSource, StackReader, WalkEnd, as_frames, walk};
pub use workspace::{WORKSPACE_FRAMES, Workspace};
