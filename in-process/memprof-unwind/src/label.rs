//! Whose work a sample is: what labels its thread had, as a frame above its outermost one. Labels are read where
//! OpenTelemetry's thread context puts them (OTEP 4947): the thread-local variable `otel_thread_ctx_v1` points
//! to a record.
//!
//! It runs inside of `malloc`: nothing is allocated, no function of the loader is called, and a record is read
//! only where the kernel says that it can be.
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

/// The upper 24 bits: no address that a processor accepts, and the kind of frame that tells labels.
const KIND: usize = 0x4d_5001;

/// Of which libraries the variable is looked for, at the most.
pub const MOST_CONTEXTS: usize = 4;
/// Keys that count, at the most.
pub const MOST_KEYS: usize = 8;
/// Different sets of labels; all others are told as one, [`OTHER`].
pub const MOST_SETS: usize = 1000;
/// The id of the sets that found no place.
pub const OTHER: u32 = 0;

/// What each sample looks at. With one context it is one line of the cache: to a sample all of them are cold.
#[repr(C, align(64))]
struct LabelConfig {
    is_on: AtomicU32,
    /// The key of the thread's name.
    names_key: AtomicU8,
    /// From the first one on.
    contexts: [ContextCell; MOST_CONTEXTS],
}

static WANTED: LabelConfig = LabelConfig {
    is_on: AtomicU32::new(0),
    names_key: AtomicU8::new(NONE),
    contexts: [const { ContextCell::new() }; MOST_CONTEXTS],
};
// Among the other tables: what lies between two of them would have a page of its own as soon as it is written.
#[unsafe(link_section = ".bss.tables")]
static SETS: LabelSetTable = LabelSetTable::new();

/// No key.
const NONE: u8 = u8::MAX;

/// Where a library has its threads' records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelContext {
    /// The number of the library among those with thread-local variables, from 1 (`dlpi_tls_modid`).
    pub module: usize,
    /// Where in the library's thread-local variables the pointer to the record lies.
    pub offset: usize,
    /// By key that counts: its index in the library's records.
    pub keys: [Option<u8>; MOST_KEYS],
}

/// Lets each stack end in a frame that tells its labels: those of `contexts`, and the thread's name by the key
/// of that number.
pub fn set_labels(contexts: &[LabelContext], thread_name: Option<u8>) {
    WANTED.is_on.store(0, Release);
    WANTED.names_key.store(thread_name.unwrap_or(NONE), Relaxed);
    for (at, place) in WANTED.contexts.iter().enumerate() {
        place.set(contexts.get(at));
    }
    let is_on = !contexts.is_empty() || thread_name.is_some();
    WANTED.is_on.store(u32::from(is_on), Release);
}

/// How many sets of labels there are, and what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelSetCounts {
    /// Different ones that were found so far, at most [`MOST_SETS`].
    pub seen: usize,
    /// Samples of sets that found no place: [`OTHER`].
    pub others: u64,
    /// What the sets take at the most, in bytes.
    pub bytes: usize,
}

/// What came of the sets so far.
pub fn label_set_counts() -> LabelSetCounts {
    SETS.stats()
}

/// Visits each set of labels that was found so far, with its id.
pub fn for_each_label_set(visit: impl FnMut(u32, LabelIter<'_>)) {
    SETS.for_each(visit);
}

/// The frame to end a stack in.
#[inline(always)]
pub(crate) fn label_frame() -> Option<usize> {
    match WANTED.is_on.load(Acquire) {
        0 => None,
        _ => frame_of_this_thread(),
    }
}

#[cold]
#[inline(never)]
fn frame_of_this_thread() -> Option<usize> {
    let mut room = [MaybeUninit::uninit(); SET_WORDS];
    let mut set = LabelSet::new(&mut room);
    let key = WANTED.names_key.load(Relaxed);
    if key != NONE {
        let bytes = thread_name();
        let name = bytes.get(NAME_AT..).unwrap_or_default();
        let length = name.iter().position(|byte| *byte == 0);
        let length = length.unwrap_or(name.len());
        let name = bytes.as_ptr().expose_provenance().wrapping_add(NAME_AT);
        // SAFETY: bytes of the name, and eight before it.
        unsafe { set.add(key, name, length) };
    }
    for place in WANTED.contexts.iter().take_while(|place| place.is_set()) {
        if let Some(mut record) = place.record() {
            record.read(place.keys.load(Relaxed), &mut set);
        }
    }
    let words = set.words();
    (!words.is_empty()).then(|| KIND << 40 | (SETS.intern(words) as usize) << 1 | 1)
}

/// So many bytes stand before a thread's name, as [`LabelSet::add`] wants it.
const NAME_AT: usize = 8;

/// As the kernel knows it, prctl(2).
fn thread_name() -> [u8; NAME_AT + 16] {
    const PRCTL: isize = 157;
    const PR_GET_NAME: usize = 16;
    let mut bytes = [0_u8; NAME_AT + 16];
    // SAFETY: prctl(2), PR_GET_NAME: writes up to 16 bytes.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") PRCTL => _,
            in("rdi") PR_GET_NAME,
            in("rsi") bytes.as_mut_ptr().wrapping_add(NAME_AT),
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

    use super::{NAME_AT, thread_name};

    #[test]
    fn a_thread_is_known_by_its_name() {
        let named = std::thread::Builder::new().name("worker-7".into());
        let name = named.spawn(thread_name).unwrap().join().unwrap();
        assert!(name[NAME_AT..].starts_with(b"worker-7\0"), "{name:?}");
    }
}
