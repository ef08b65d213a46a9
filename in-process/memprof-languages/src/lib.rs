//! Frames of interpreted languages in the stacks of samples: the program's functions in place of the interpreter's.
//!
//! [`prepare_cpython`] is called once an interpreter was found in the process, outside of `malloc`. Inside,
//! [`merge_interpreted_frames`] puts one word for each function of the program into a stack that was walked: a [managed
//! word](MANAGED), which stands for a name in a table, read with [`for_each_name`].
//!
//! [`merge_interpreted_frames`] runs inside `malloc`: it allocates nothing, takes no lock, and calls nothing but
//! `pthread_getspecific`. Words of the interpreter are read only if the kernel says that they are readable; those of a
//! frame belong to the calling thread, so that nothing frees them meanwhile. A structure that is not as expected ends
//! the walk: a name is missing then, never wrong.
//!
//! For the walk of native frames see `memprof-unwind`.
#![no_std]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

mod counts;
mod cpython;
mod merge;
mod names;
mod object_types;
mod reader;
mod runtime;

pub use counts::LanguageCounts;
pub use cpython::{CPythonSymbols, Symbol, UnsupportedCPython};
pub use merge::{NativeStack, SCRATCH_WORDS};
pub use names::{MANAGED, ManagedName, NameMemory, for_each_name, set_name_memory};
pub use object_types::{OBJECT_FILE, intern_object_type};
pub use runtime::{
    is_frame_reading_given_up, merge_interpreted_frames, prepare_cpython, set_merging_enabled,
    walk_and_name_counts,
};
