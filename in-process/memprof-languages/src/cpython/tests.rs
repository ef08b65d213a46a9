//! Reading of made interpreters: small ones with known frames, and memory that changes under the reader.

extern crate std;

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::boxed::Box;
use std::vec::Vec;

use super::*;
use crate::merge::MAX_MANAGED;
use crate::reader::PAGES;

/// Words of a made process.
const WORDS: usize = 1 << 12;

type Memory = [AtomicUsize; WORDS];

fn new_memory() -> &'static Memory {
    let words: Vec<AtomicUsize> = (0..WORDS).map(|_| AtomicUsize::new(0)).collect();
    let words: Box<Memory> = words.into_boxed_slice().try_into().unwrap();
    Box::leak(words)
}

fn address_of(memory: &Memory, index: usize) -> usize {
    &raw const memory[index % WORDS] as usize
}

/// Index of `_PyRuntime`, which has room for the fields that are read.
const RUNTIME: usize = 0;
/// Indices of a type, a thread's state, and so on.
const CODE_TYPE: usize = 1024;
const TEXT_TYPE: usize = 1040;
const THREAD: usize = 1100;

/// `CPythonSymbols` of a made 3.8, 3.9 or 3.10, whose version follows from the size of `_PyRuntime`.
fn symbols(memory: &Memory, runtime_size: usize) -> CPythonSymbols {
    CPythonSymbols {
        runtime: Symbol {
            address: address_of(memory, RUNTIME),
            size: runtime_size,
        },
        eval_frame: Symbol {
            address: 0x5000,
            size: 0x1000,
        },
        code_type: address_of(memory, CODE_TYPE),
        unicode_type: address_of(memory, TEXT_TYPE),
        version: None,
    }
}

/// Makes the calling thread the holder of the GIL, with a state.
fn set_thread(memory: &Memory, layout: &FieldOffsets) {
    let current = layout.current_thread.unwrap();
    let thread = address_of(memory, THREAD);
    memory[RUNTIME + current / 8].store(thread, Relaxed);
    memory[RUNTIME + layout.finalizing / 8].store(0, Relaxed);
    memory[THREAD + layout.thread_id / 8].store(pthread_self(), Relaxed);
}

fn random_numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// A word that a reader may take for a pointer, a length, a head of a text, or nothing.
fn random_word(memory: &Memory, random: u64) -> usize {
    let index = (random >> 8) as usize;
    match random % 8 {
        0 => address_of(memory, CODE_TYPE),
        1 => address_of(memory, TEXT_TYPE),
        2..=5 => address_of(memory, index),
        6 => index & 0xff,
        _ => random as usize,
    }
}

#[test]
fn memory_that_changes_under_the_reader_does_no_harm() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let memory = new_memory();
    let mutator = std::thread::spawn(move || {
        let mut random = random_numbers(7);
        while !IS_OVER.load(Relaxed) {
            let index = random() as usize % WORDS;
            memory[index].store(random_word(memory, random()), Relaxed);
        }
    });
    let mut random = random_numbers(1);
    let mut read = 0;
    for round in 0..20_000 {
        let (size, _, layout) = layout::BY_RUNTIME_SIZE[round % 3];
        for _ in 0..16 {
            let index = random() as usize % WORDS;
            memory[index].store(random_word(memory, random()), Relaxed);
        }
        set_thread(memory, &layout);
        let mut pages = [0; PAGES];
        let mut reader = Reader::new(&mut pages);
        let (_, python) = CPython::from_symbols(&symbols(memory, size), &mut reader).unwrap();
        let chains = [
            FrameChain::Objects,
            FrameChain::CFrames { is_entry: None },
            FrameChain::CFrames { is_entry: Some(68) },
            FrameChain::EntryFrames,
        ];
        for chain in chains {
            let layout = FieldOffsets { chain, ..layout };
            let python = CPython { layout, ..python };
            let mut words = [0; 2 * MAX_MANAGED];
            let mut frames = ManagedFrames::new(&mut words);
            read += usize::from(python.read_frames(&mut reader, &mut frames).is_some());
            assert!(frames.len() <= MAX_MANAGED);
        }
    }
    IS_OVER.store(true, Relaxed);
    mutator.join().unwrap();
    assert!(read > 0);
}

#[test]
fn runtime_that_only_has_the_name_is_unsupported() {
    let memory = new_memory();
    let mut pages = [0; PAGES];
    let mut reader = Reader::new(&mut pages);
    let mut check = |symbols: &CPythonSymbols, expected| {
        let found = CPython::from_symbols(symbols, &mut reader);
        assert_eq!(found.err(), Some(expected));
    };
    check(&symbols(memory, 100), UnsupportedCPython::Version(0));
    let versions = [
        (0x030f_00f0, UnsupportedCPython::Version(0x030f_00f0)),
        // Not final.
        (0x030c_00b1, UnsupportedCPython::Version(0x030c_00b1)),
        // Without `_Py_DebugOffsets`.
        (0x030d_00f0, UnsupportedCPython::Runtime),
        (0x030e_00f0, UnsupportedCPython::Runtime),
        // Too small.
        (0x030b_02f0, UnsupportedCPython::Runtime),
    ];
    for (version, expected) in versions {
        memory[2000].store(version, Relaxed);
        let version = Some(address_of(memory, 2000));
        check(
            &CPythonSymbols {
                version,
                ..symbols(memory, 100)
            },
            expected,
        );
    }
    let unreadable = CPythonSymbols {
        version: Some(8),
        ..symbols(memory, 656)
    };
    check(&unreadable, UnsupportedCPython::Runtime);
}

#[test]
fn interpreter_that_ends_has_no_frames() {
    let memory = new_memory();
    let (size, _, layout) = layout::BY_RUNTIME_SIZE[1];
    set_thread(memory, &layout);
    let mut pages = [0; PAGES];
    let mut reader = Reader::new(&mut pages);
    let (_, python) = CPython::from_symbols(&symbols(memory, size), &mut reader).unwrap();
    let mut words = [0; 2 * MAX_MANAGED];
    let mut read =
        |reader: &mut Reader<'_>| python.read_frames(reader, &mut ManagedFrames::new(&mut words));
    assert_eq!(read(&mut reader), Some(WalkOutcome::Absent));
    // Another thread ends it.
    memory[RUNTIME + layout.finalizing / 8].store(address_of(memory, 3000), Relaxed);
    assert_eq!(read(&mut reader), None);
    memory[RUNTIME + layout.finalizing / 8].store(address_of(memory, THREAD), Relaxed);
    assert_eq!(read(&mut reader), Some(WalkOutcome::Absent));
}
