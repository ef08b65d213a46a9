//! A stack walk for the inside of an allocator, several times cheaper than libgcc's.
//!
//! jemalloc calls a walker (backtrace hook) for each sample, and lets a program replace it at run time. This walker
//! runs inside `malloc`, in a process that was not built for it. So the crate uses neither the standard library nor an
//! allocator: nothing in it can allocate, lock, print or touch thread-local storage. `memprof-core` installs the walker
//! in a process.
//!
//! A [`walk()`] applies one [`Rule`] per frame. Rules are read from the program's own call frame information ([`cfi`])
//! and cached in a [`RuleTable`]. The stack is read through [`ReadableStack`], which asks the kernel about each page
//! before touching it. The allocator calls a [`BacktraceHook`]; if no rule leads to a caller, the hook falls back to
//! the allocator's own walker.
//!
//! It supports only x86-64 Linux. The registers of rules and walks, the system call of [`is_readable`], and the entry
//! of a [`BacktraceHook`] are specific to that processor.
#![no_std]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

pub mod cfi;
mod compare;
mod complex_frames;
mod expression;
mod hook;
mod hook_stats;
mod label;
mod last_walk;
mod object;
mod pseudo_frames;
mod register_file;
mod return_address;
mod rule;
mod rule_table;
mod signals;
mod spare_stack;
mod stack_memory;
mod thread;
mod thread_stack;
mod thread_walk;
mod walk;
mod workspace;

pub use hook::{BacktraceHook, HOOKS, Walker, walked_every_stack};
pub use hook_stats::HookStats;
pub use label::{
    LabelContext, LabelIter, LabelSetCounts, MAX_CONTEXTS, MAX_KEYS, MAX_SETS, OTHER,
    for_each_label_set, label_set_counts, set_labels,
};
pub use last_walk::StackPointers;
pub use object::{FindObject, FoundObject};
pub use pseudo_frames::{
    PseudoFrames, set_alloc_time, set_code_generation, without_code_generation,
};
pub use register_file::SavedRegisters;
pub use rule::{Cfa, PackedRule, Rule, SavedBp};
pub use rule_table::{RuleIndex, RuleTable};
pub use stack_memory::{ReadableStack, is_readable};
pub use thread_walk::{
    clear_rules, clear_stack_cache, object_start, prepare_walks, rules_read_count, walk_this_thread,
};
pub use walk::{Frame, Registers, RuleSource, StackReader, WalkEnd, as_frames, walk};
pub use workspace::{SCRATCH_WORDS, WORKSPACE_FRAMES, Workspace};
