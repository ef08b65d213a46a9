//! A stack walk for the inside of an allocator, several times cheaper than libgcc's.
//!
//! jemalloc calls a walker for each sample, and lets it be replaced while the program runs. The
//! one here runs in the midst of `malloc`, in somebody else's process. So this crate has no
//! standard library and no allocator: there is nothing in it that could allocate, lock, print or
//! touch thread-local storage. To put it into a process see `memprof-core`.
//!
//! A [`walk()`] takes one [`Rule`] for each frame, found in the program's own call frame
//! information ([`cfi`]) and kept in a [`Table`]; it reads the stack through
//! [`Stack`], which asks the kernel about each page before it is touched. A [`Hook`] is what the
//! allocator calls: where our walk does not know the way, the allocator's own takes over.
//!
//! Only x86-64 is built: what knows the processor are the registers of rules and walks, the system
//! call of [`is_readable`], and the entry of a [`Hook`].
#![no_std]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod birth;
pub mod cfi;
mod compare;
mod counts;
mod hook;
mod label;
mod memory;
mod object;
mod own_stack;
mod rule;
mod signals;
mod table;
mod tail;
mod thread;
mod trail;
mod walk;
mod workspace;

pub use birth::set_birth;
pub use counts::Counts;
pub use hook::{
    HOOKS, Hook, Walker, forget_rules, forget_stacks, prepare, rules_read, walk_this_thread,
};
pub use label::{
    Context, LabelSetCounts, Labels, MOST_CONTEXTS, MOST_KEYS, MOST_SETS, OTHER, each_label_set,
    label_set_counts, set_labels,
};
pub use memory::{Stack, is_readable};
pub use object::{FindObject, FoundObject};
pub use rule::{Cfa, Packed, Rule, SavedBp};
pub use table::{Slot, Table};
pub use tail::Tail;
pub use walk::{End, Frame, Memory, Registers, Rules, as_frames, walk};
pub use workspace::{WORKSPACE_FRAMES, Workspace};
