//! Reads rules from arbitrary `.eh_frame_hdr` and `.eh_frame` bytes: no panic, no read outside of
//! them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memprof_unwind::cfi::{Section, rule_at};

/// Addresses of the two sections, close enough that the fuzzer finds offsets between them.
const HDR: u64 = 0x1000;
const EH_FRAME: u64 = 0x2000;

fuzz_target!(|input: (u64, &[u8], &[u8])| {
    let (address, table, frames) = input;
    // Half of the inputs start with a valid head, so that the code after it is reached.
    let head = [1, 0x1B, 0x03, 0x3B, 0xFC, 0x0F, 0, 0, 1, 0, 0, 0];
    let hdr = match address & 1 {
        0 => table.to_vec(),
        _ => [&head, table].concat(),
    };
    // Boxed at their exact length, so that the sanitizer finds a read beyond it.
    let (hdr, frames) = (hdr.into_boxed_slice(), Box::<[u8]>::from(frames));
    let hdr = Section {
        address: HDR,
        bytes: &hdr,
    };
    let eh_frame = |_| {
        Some(Section {
            address: EH_FRAME,
            bytes: &frames,
        })
    };
    for address in [address >> 1, address >> 1 & 0xFFFF] {
        rule_at(hdr, eh_frame, address);
    }
});
