//! Whose work a sample is: what labels its thread had, as a frame above its outermost one. Labels are read where
//! OpenTelemetry's thread context puts them (OTEP 4947): the thread-local variable `otel_thread_ctx_v1` points
//! to a record.
//!
//! ```text
//! 0 trace id [16] · 16 span id [8] · 24 valid, 1 if whole · 25 flags · 26 length, 2 bytes · 28 attributes
//! attribute: key · length · as many bytes
//! ```
//!
//! It runs inside of `malloc`: nothing is allocated, no function of the loader is called, and a record is read
//! only where the kernel says that it can be.
#![expect(unsafe_code, reason = "variables of threads, and what they point to")]

use core::arch::asm;
use core::ptr;
use core::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::memory::{is_readable, page_of};

/// The upper 24 bits: no address that a processor accepts, and the kind of frame that tells labels.
const KIND: usize = 0x4d_5001;

/// Of which libraries the variable is looked for, at the most.
pub const MOST_CONTEXTS: usize = 4;
/// Keys that count, at the most.
pub const MOST_KEYS: usize = 8;
/// Different sets of labels; all others are told as one, [`OTHER`].
pub const MOST_SETS: usize = 1000;
/// What is kept of a set: `key index, length, bytes` for each of its labels.
const SET_BYTES: usize = 184;

/// The id of the sets that found no place.
pub const OTHER: u32 = 0;

const VALID: usize = 24;
const LENGTH: usize = 26;
const ATTRIBUTES: usize = 28;
/// What a record may have of attributes (OTEP 4947).
const MOST_ATTRIBUTES: usize = 612;

static IS_ON: AtomicU32 = AtomicU32::new(0);
static NAMES_KEY: AtomicU8 = AtomicU8::new(NONE);
static CONTEXTS: [Place; MOST_CONTEXTS] = [const { Place::new() }; MOST_CONTEXTS];
static SETS: Sets = Sets::new();

/// No key.
const NONE: u8 = u8::MAX;

/// Where a library has its threads' records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The number of the library among those with thread-local variables, from 1 (`dlpi_tls_modid`).
    pub module: usize,
    /// Where in the library's thread-local variables the pointer to the record lies.
    pub offset: usize,
    /// By key that counts: its index in the library's records.
    pub keys: [Option<u8>; MOST_KEYS],
}

/// Lets each stack end in a frame that tells its labels: those of `contexts`, and the thread's name by the key
/// of that number.
pub fn set_labels(contexts: &[Context], thread_name: Option<u8>) {
    IS_ON.store(0, Release);
    NAMES_KEY.store(thread_name.unwrap_or(NONE), Relaxed);
    for (at, place) in CONTEXTS.iter().enumerate() {
        place.set(contexts.get(at));
    }
    let is_on = !contexts.is_empty() || thread_name.is_some();
    IS_ON.store(u32::from(is_on), Release);
}

/// Visits each set of labels that was found so far with its id; `key, length, bytes` for each label, where the key
/// is the number among those that count.
pub fn each_label_set(visit: impl FnMut(u32, &[u8])) {
    SETS.each(visit);
}

/// The frame to end a stack in.
#[inline(always)]
pub(crate) fn label_frame() -> Option<usize> {
    match IS_ON.load(Acquire) {
        0 => None,
        _ => frame_of_this_thread(),
    }
}

#[cold]
#[inline(never)]
fn frame_of_this_thread() -> Option<usize> {
    let mut set = Set::new();
    let key = NAMES_KEY.load(Relaxed);
    if key != NONE {
        let name = thread_name();
        let length = name.iter().position(|byte| *byte == 0);
        set.add(
            key,
            name.get(..length.unwrap_or(name.len())).unwrap_or_default(),
        );
    }
    for place in &CONTEXTS {
        if let Some(record) = place.record() {
            record.read(place.keys.load(Relaxed), &mut set);
        }
    }
    let bytes = set.bytes();
    (!bytes.is_empty()).then(|| KIND << 40 | (SETS.intern(bytes) as usize) << 1 | 1)
}

/// As the kernel knows it, prctl(2).
fn thread_name() -> [u8; 16] {
    const PRCTL: isize = 157;
    const PR_GET_NAME: usize = 16;
    let mut name = [0_u8; 16];
    // SAFETY: prctl(2), PR_GET_NAME: writes up to 16 bytes.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") PRCTL => _,
            in("rdi") PR_GET_NAME,
            in("rsi") name.as_mut_ptr(),
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    name
}

/// Labels as they are kept.
struct Set {
    bytes: [u8; SET_BYTES],
    length: usize,
}

impl Set {
    fn new() -> Self {
        Self {
            bytes: [0; SET_BYTES],
            length: 0,
        }
    }

    /// A later label of the same key counts. What does not fit is cut, between two characters.
    fn add(&mut self, key: u8, value: &[u8]) {
        self.remove(key);
        let room = self.bytes.len() - self.length;
        let Some(most) = room.checked_sub(2) else {
            return;
        };
        let mut kept = value.len().min(most).min(usize::from(u8::MAX));
        // The rest of a character of UTF-8 begins with the bits 10.
        while kept > 0 && value.get(kept).is_some_and(|byte| byte & 0xc0 == 0x80) {
            kept -= 1;
        }
        let Some([at_key, at_length, room @ ..]) = self.bytes.get_mut(self.length..) else {
            return;
        };
        (*at_key, *at_length) = (key, kept as u8);
        for (to, from) in room.iter_mut().zip(value.iter().take(kept)) {
            *to = *from;
        }
        self.length += 2 + kept;
    }

    fn remove(&mut self, key: u8) {
        let mut at = 0;
        while let Some(&[found, length]) = self
            .bytes
            .get(at..at + 2)
            .and_then(|head| head.first_chunk::<2>())
        {
            if at >= self.length {
                return;
            }
            let end = at + 2 + usize::from(length);
            if found == key {
                self.bytes
                    .copy_within(end.min(self.length)..self.length, at);
                self.length -= end.min(self.length) - at;
                return;
            }
            at = end;
        }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// One of [`Context`].
struct Place {
    /// 0: none.
    module: AtomicUsize,
    offset: AtomicUsize,
    /// By key that counts, a byte: its index in a record, or [`NONE`].
    keys: AtomicU64,
}

impl Place {
    const fn new() -> Self {
        Self {
            module: AtomicUsize::new(0),
            offset: AtomicUsize::new(0),
            keys: AtomicU64::new(u64::MAX),
        }
    }

    fn set(&self, context: Option<&Context>) {
        let Some(context) = context else {
            return self.module.store(0, Relaxed);
        };
        let keys = context.keys.map(|key| key.unwrap_or(NONE));
        self.keys.store(u64::from_le_bytes(keys), Relaxed);
        self.offset.store(context.offset, Relaxed);
        self.module.store(context.module, Relaxed);
    }

    /// The calling thread's record, if it is whole.
    fn record(&self) -> Option<Record> {
        let module = self.module.load(Relaxed);
        if module == 0 {
            return None;
        }
        let variables = variables(module)?;
        let variable = variables.checked_add(self.offset.load(Relaxed))?;
        // The first library's lie below the thread's control block, for as long as it lives.
        let is_there = module == 1 || is_readable(variable);
        if !is_there || !variable.is_multiple_of(size_of::<usize>()) {
            return None;
        }
        // SAFETY: a word that can be read.
        let record = unsafe { ptr::with_exposed_provenance::<usize>(variable).read_volatile() };
        Record::at(record, variable)
    }
}

/// Where the calling thread has the variables of a library, if it has them (ELF Handling For Thread-Local Storage,
/// 3; glibc's `dtv_t`).
fn variables(module: usize) -> Option<usize> {
    /// Not allocated yet.
    const UNALLOCATED: usize = usize::MAX;
    let vector: *const [usize; 2];
    // SAFETY: the second word of a thread's control block is its vector of libraries.
    unsafe {
        asm!("mov {}, fs:8", out(reg) vector, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: glibc keeps the number of entries before the first.
    let [count, _] = unsafe { vector.wrapping_sub(1).read() };
    if module > count {
        return None;
    }
    // SAFETY: one of them.
    let [variables, _] = unsafe { vector.wrapping_add(module).read() };
    (variables != UNALLOCATED && variables != 0).then_some(variables)
}

/// What can be read of a record: `ATTRIBUTES` bytes and so many more.
struct Record {
    address: usize,
    /// A page that certainly can be read.
    page: usize,
}

impl Record {
    /// `near` can be read.
    fn at(address: usize, near: usize) -> Option<Self> {
        let record = Self {
            address,
            page: page_of(near),
        };
        let is_whole = address != 0 && record.can_read(0, ATTRIBUTES) && record.byte(VALID) == 1;
        is_whole.then_some(record)
    }

    /// Whether so many bytes from there on can be read.
    fn can_read(&self, offset: usize, length: usize) -> bool {
        let Some(start) = self.address.checked_add(offset) else {
            return false;
        };
        let Some(last) = start.checked_add(length.saturating_sub(1)) else {
            return false;
        };
        // At most two: a record is smaller than a page.
        let can = |page| page == self.page || is_readable(page);
        can(page_of(start)) && (page_of(last) == page_of(start) || can(page_of(last)))
    }

    /// One that [`Self::can_read`].
    fn byte(&self, offset: usize) -> u8 {
        let byte = ptr::with_exposed_provenance::<u8>(self.address.wrapping_add(offset));
        // SAFETY: it was found readable; its own thread, which alone writes it, is here.
        unsafe { byte.read_volatile() }
    }

    /// Adds the attributes whose keys count.
    fn read(&self, keys: u64, set: &mut Set) {
        let length = u16::from_ne_bytes([self.byte(LENGTH), self.byte(LENGTH + 1)]);
        let length = usize::from(length).min(MOST_ATTRIBUTES);
        if length == 0 || !self.can_read(ATTRIBUTES, length) {
            return;
        }
        let end = ATTRIBUTES + length;
        let mut at = ATTRIBUTES;
        while at + 2 <= end {
            let (found, length) = (self.byte(at), usize::from(self.byte(at + 1)));
            at += 2;
            // The rest is missing.
            if at + length > end {
                return;
            }
            let counts = keys
                .to_le_bytes()
                .iter()
                .position(|key| *key == found && *key != NONE);
            if let Some(key) = counts {
                let mut value = [0; u8::MAX as usize];
                let Some(value) = value.get_mut(..length) else {
                    return;
                };
                for (offset, byte) in value.iter_mut().enumerate() {
                    *byte = self.byte(at + offset);
                }
                set.add(key as u8, value);
            }
            at += length;
        }
    }
}

/// The sets of labels that were found, each once. Never forgotten: samples may live that point to them.
struct Sets {
    places: [SetPlace; PLACES],
    used: AtomicUsize,
}

/// At most half of them are taken.
const PLACES: usize = (2 * MOST_SETS).next_power_of_two();
/// Words of a set.
const WORDS: usize = SET_BYTES / size_of::<u64>();

struct SetPlace {
    /// Of its bytes; 0: free.
    hash: AtomicU64,
    /// How many bytes; 0 while they are written.
    length: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Sets {
    const fn new() -> Self {
        Self {
            places: [const {
                SetPlace {
                    hash: AtomicU64::new(0),
                    length: AtomicU32::new(0),
                    words: [const { AtomicU64::new(0) }; WORDS],
                }
            }; PLACES],
            used: AtomicUsize::new(0),
        }
    }

    /// The id of a set, or [`OTHER`].
    fn intern(&self, bytes: &[u8]) -> u32 {
        let hash = hash(bytes);
        for probe in 0..PLACES {
            let index = (hash as usize).wrapping_add(probe) % PLACES;
            let Some(place) = self.places.get(index) else {
                return OTHER;
            };
            let mut known = place.hash.load(Acquire);
            if known == 0 {
                if self.used.fetch_add(1, Relaxed) >= MOST_SETS {
                    self.used.fetch_sub(1, Relaxed);
                    return OTHER;
                }
                match place.hash.compare_exchange(0, hash, Release, Acquire) {
                    Ok(_) => {
                        place.write(bytes);
                        return index as u32 + 1;
                    }
                    Err(other) => {
                        self.used.fetch_sub(1, Relaxed);
                        known = other;
                    }
                }
            }
            if known == hash && place.may_hold(bytes) {
                return index as u32 + 1;
            }
        }
        OTHER
    }

    fn each(&self, mut visit: impl FnMut(u32, &[u8])) {
        for (index, place) in self.places.iter().enumerate() {
            let length = place.length.load(Acquire) as usize;
            if length > 0 {
                let bytes = place.read();
                visit(index as u32 + 1, bytes.get(..length).unwrap_or_default());
            }
        }
    }
}

impl SetPlace {
    fn write(&self, bytes: &[u8]) {
        for (word, chunk) in self.words.iter().zip(bytes.chunks(size_of::<u64>())) {
            let mut of_word = [0; size_of::<u64>()];
            for (to, from) in of_word.iter_mut().zip(chunk) {
                *to = *from;
            }
            word.store(u64::from_ne_bytes(of_word), Relaxed);
        }
        self.length.store(bytes.len() as u32, Release);
    }

    fn read(&self) -> [u8; SET_BYTES] {
        let mut bytes = [0; SET_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(&self.words) {
            chunk.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        bytes
    }

    /// Nobody waits for one that is being written, maybe by the very thread that a signal interrupted: of the same
    /// hash, it is taken for the same.
    fn may_hold(&self, bytes: &[u8]) -> bool {
        match self.length.load(Acquire) as usize {
            0 => true,
            length => length == bytes.len() && self.read().get(..length) == Some(bytes),
        }
    }
}

/// Never 0.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| {
        let hash = (hash ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^ (hash >> 29)
    };
    bytes.iter().fold(bytes.len() as u64, step) | 1
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// As a writer of OTEP 4947 lays it out.
    fn record(valid: u8, attributes: &[u8]) -> Vec<u8> {
        let mut record = std::vec![0; ATTRIBUTES];
        record[VALID] = valid;
        record[LENGTH..ATTRIBUTES].copy_from_slice(&(attributes.len() as u16).to_ne_bytes());
        record.extend_from_slice(attributes);
        record
    }

    #[track_caller]
    fn check(record: &[u8], expected: &[(u8, &str)]) {
        let mut set = Set::new();
        if let Some(record) =
            Record::at(record.as_ptr().expose_provenance(), record.as_ptr().addr())
        {
            // Of the record, 7 is the first key that counts, and 3 the second.
            let keys = [7, 3, NONE, NONE, NONE, NONE, NONE, NONE];
            record.read(u64::from_le_bytes(keys), &mut set);
        }
        assert_eq!(
            labels(set.bytes()),
            expected
                .iter()
                .map(|(key, value)| (*key, String::from(*value)))
                .collect::<Vec<_>>()
        );
    }

    fn labels(mut set: &[u8]) -> Vec<(u8, String)> {
        let mut labels = Vec::new();
        while let [key, length, rest @ ..] = set {
            let (value, rest) = rest.split_at(usize::from(*length));
            labels.push((*key, String::from_utf8(value.to_vec()).unwrap()));
            set = rest;
        }
        labels
    }

    #[test]
    fn the_attributes_that_count_are_read() {
        check(
            &record(1, b"\x07\x02/x\x05\x01y\x03\x01z"),
            &[(0, "/x"), (1, "z")],
        );
        check(
            &record(1, b"\x07\x01a\x03\x01z\x07\x01b"),
            &[(1, "z"), (0, "b")],
        );
        check(&record(1, b"\x07\x00"), &[(0, "")]);
        check(&record(0, b"\x07\x02/x"), &[]);
        check(&record(1, b""), &[]);
    }

    #[test]
    fn what_a_broken_writer_left_is_not_followed() {
        // Longer than the record says, or than it may be.
        check(&record(1, b"\x07\x01a\x03\xffz"), &[(0, "a")]);
        check(&record(1, b"\x07\x01a\x03"), &[(0, "a")]);
        let mut long = record(1, &[7; 700]);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        long[LENGTH..ATTRIBUTES].fill(0xff);
        check(&long, &[(0, core::str::from_utf8(&[7; 7]).unwrap())]);
        for wild in [1, 0x1000, usize::MAX - 8, 1 << 63, 0x4d50_0000_0000_0001] {
            assert!(
                Record::at(wild, long.as_ptr().addr()).is_none(),
                "{wild:#x}"
            );
        }
    }

    #[test]
    fn a_long_label_is_cut_between_two_characters() {
        let mut set = Set::new();
        set.add(0, "ä".repeat(100).as_bytes());
        let kept = labels(set.bytes());
        assert_eq!(kept, [(0, "ä".repeat((SET_BYTES - 2) / 2))]);
        set.add(1, b"no room");
        assert_eq!(labels(set.bytes()), kept);
        set.add(0, b"short");
        set.add(1, b"room");
        assert_eq!(
            labels(set.bytes()),
            [(0, "short".into()), (1, "room".into())]
        );
    }

    #[test]
    fn ten_thousand_labels_stay_bounded() {
        static SETS: Sets = Sets::new();
        let set = |number: u32| [&[0, 4][..], &number.to_ne_bytes()].concat();
        let ids: Vec<u32> = (0..10_000)
            .map(|number| SETS.intern(&set(number)))
            .collect();
        assert_eq!(ids.iter().filter(|id| **id != OTHER).count(), MOST_SETS);
        for (number, id) in (0..10_000).zip(&ids) {
            assert_eq!(SETS.intern(&set(number)), *id);
        }
        let mut seen = 0;
        SETS.each(|id, bytes| {
            let number = u32::from_ne_bytes(bytes[2..].try_into().unwrap());
            assert_eq!(ids[number as usize], id);
            seen += 1;
        });
        assert_eq!(seen, MOST_SETS);
    }

    #[test]
    fn a_thread_is_known_by_its_name() {
        let named = std::thread::Builder::new().name("worker-7".into());
        let name = named.spawn(thread_name).unwrap().join().unwrap();
        assert!(name.starts_with(b"worker-7\0"), "{name:?}");
    }
}
