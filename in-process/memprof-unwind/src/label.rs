//! Labels of a sampled thread, as a pseudo frame above the stack's outermost frame. Labels are read from
//! OpenTelemetry's thread context (OTEP 4947): the thread-local variable `otel_thread_ctx_v1` points to a record.
//!
//! This code runs inside `malloc`. It allocates nothing, calls no function of the loader, and reads a record only after
//! the kernel has confirmed that it is readable.
#![expect(unsafe_code, reason = "variables of threads, and what they point to")]

mod label_set;
mod label_set_table;
mod thread_context;

use core::arch::asm;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

pub use label_set::LabelIter;
use label_set::{LabelSet, SET_WORDS};
use label_set_table::LabelSetTable;
use thread_context::ContextCell;

/// Upper 24 bits of the pseudo frame: they are part of no valid address, and mean the kind "label set".
const KIND: usize = 0x4d_5001;

/// Maximum number of libraries with thread contexts.
pub const MAX_CONTEXTS: usize = 4;
/// Maximum number of label keys that are recorded.
pub const MAX_KEYS: usize = 8;
/// Maximum number of distinct label sets. Further sets are recorded as [`OTHER`].
pub const MAX_SETS: usize = 1000;
/// Id of all sets for which the table has no free cell.
pub const OTHER: u32 = 0;

/// Settings that each sample reads. With one context, they fit into one cache line, because a sample finds none of them
/// in the cache.
#[repr(C, align(64))]
struct LabelConfig {
    is_on: AtomicU32,
    /// Key under which the thread's name is recorded, or [`NONE`].
    thread_name_key: AtomicU8,
    /// Cells in use come first.
    contexts: [ContextCell; MAX_CONTEXTS],
}

static CONFIG: LabelConfig = LabelConfig {
    is_on: AtomicU32::new(0),
    thread_name_key: AtomicU8::new(NONE),
    contexts: [const { ContextCell::new() }; MAX_CONTEXTS],
};
// All large tables share a section: a small variable between two of them would make a page of its own resident.
#[unsafe(link_section = ".bss.tables")]
static SETS: LabelSetTable = LabelSetTable::new();

/// Marks an absent key.
const NONE: u8 = u8::MAX;

/// Location of a library's thread context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelContext {
    /// Module ID of the library in the loader's list of modules with thread-local variables, from 1 (`dlpi_tls_modid`).
    pub module: usize,
    /// Offset of the pointer to the record in the library's thread-local variables, in bytes.
    pub offset: usize,
    /// For each recorded key, its index in the library's records. `None` if the library lacks the key.
    pub keys: [Option<u8>; MAX_KEYS],
}

/// Sets the labels that samples record from now on: those of the first [`MAX_CONTEXTS`] contexts, and the thread's name
/// under the key with the number `thread_name`; `None` omits the name. If there are neither contexts nor names, no
/// labels are recorded. During the change, samples have no labels.
pub fn set_labels(contexts: &[LabelContext], thread_name: Option<u8>) {
    CONFIG.is_on.store(0, Release);
    CONFIG
        .thread_name_key
        .store(thread_name.unwrap_or(NONE), Relaxed);
    for (index, cell) in CONFIG.contexts.iter().enumerate() {
        cell.set_context(contexts.get(index));
    }
    let is_on = !contexts.is_empty() || thread_name.is_some();
    CONFIG.is_on.store(u32::from(is_on), Release);
}

/// Usage of the table of label sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelSetCounts {
    /// Distinct sets found so far, at most [`MAX_SETS`].
    pub seen: usize,
    /// Samples recorded as [`OTHER`], because no cell was free for their set.
    pub others: u64,
    /// Size of the table, in bytes.
    pub bytes: usize,
}

/// Returns the number of label sets found so far, the number of samples without a set of their own, and the table's
/// size.
pub fn label_set_counts() -> LabelSetCounts {
    SETS.stats()
}

/// Visits each label set found so far, with its id. Skips sets that are being written.
pub fn for_each_label_set(visit: impl FnMut(u32, LabelIter<'_>)) {
    SETS.for_each(visit);
}

/// Returns a pseudo frame (a value that is no code address) with the calling thread's labels. `None` if the thread has
/// no labels, or they are off.
#[inline(always)]
pub(crate) fn label_frame() -> Option<usize> {
    match CONFIG.is_on.load(Acquire) {
        0 => None,
        _ => label_frame_of_this_thread(),
    }
}

/// Reads and interns the calling thread's labels, and returns their pseudo frame, which holds the id of the set. The
/// labels are the thread's name, if that is recorded, and those in each recorded thread context. `None` if there are no
/// labels.
#[cold]
#[inline(never)]
fn label_frame_of_this_thread() -> Option<usize> {
    let mut buffer = [MaybeUninit::uninit(); SET_WORDS];
    let mut set = LabelSet::new(&mut buffer);
    let key = CONFIG.thread_name_key.load(Relaxed);
    if key != NONE {
        let bytes = read_thread_name();
        let name = bytes.get(NAME_OFFSET..).unwrap_or_default();
        let length = name.iter().position(|byte| *byte == 0);
        let length = length.unwrap_or(name.len());
        let name = bytes.as_ptr().expose_provenance().wrapping_add(NAME_OFFSET);
        // SAFETY: `bytes` holds the name at this offset, with `NAME_OFFSET` bytes before it.
        unsafe { set.add_label(key, name, length) };
    }
    for cell in CONFIG.contexts.iter().take_while(|cell| cell.is_set()) {
        if let Some(mut record) = cell.record_of_this_thread() {
            record.add_labels_to(cell.keys.load(Relaxed), &mut set);
        }
    }
    let words = set.words();
    // Bit 0 is set, because tools subtract 1 from a return address: the other bits then stay the same.
    (!words.is_empty()).then(|| KIND << 40 | (SETS.intern(words) as usize) << 1 | 1)
}

/// Number of bytes before a thread's name, because [`LabelSet::add_label`] also reads bytes before a value.
const NAME_OFFSET: usize = 8;

/// Returns the calling thread's name at [`NAME_OFFSET`], padded with zeros. The name is empty if the kernel refuses
/// prctl(2) with `PR_GET_NAME`.
fn read_thread_name() -> [u8; NAME_OFFSET + 16] {
    const PRCTL: isize = 157;
    const PR_GET_NAME: usize = 16;
    let mut bytes = [0_u8; NAME_OFFSET + 16];
    // SAFETY: prctl(2): PR_GET_NAME writes up to 16 bytes, which fit.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") PRCTL => _,
            in("rdi") PR_GET_NAME,
            in("rsi") bytes.as_mut_ptr().wrapping_add(NAME_OFFSET),
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    bytes
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{NAME_OFFSET, read_thread_name};

    #[test]
    fn thread_name_is_that_of_calling_thread() {
        let named = std::thread::Builder::new().name("worker-7".into());
        let name = named.spawn(read_thread_name).unwrap().join().unwrap();
        assert!(name[NAME_OFFSET..].starts_with(b"worker-7\0"), "{name:?}");
    }
}
