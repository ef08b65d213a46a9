//! Symbolizes from an arbitrary file as the binary: yields names or offsets, never a crash. Seeds are small
//! programs: with debug information, compressed, stripped to `.gnu_debugdata`.
#![no_main]

use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use memprof_report::{AddressId, Limits, Sources, parse_profile, symbolize};

/// Number of addresses that are symbolized, spread over the file.
const ADDRESSES: usize = 200;

fuzz_target!(|bytes: &[u8]| {
    let file = env::temp_dir().join(format!("fuzzed-elf-{}", process::id()));
    fs::write(&file, bytes).expect("the file can be written");
    let mut dump = "heap_v2/512\n  t*: 1: 1 [0: 0]\n".to_owned();
    for index in 1..=ADDRESSES {
        let address = 0x1000 + bytes.len() * index / ADDRESSES;
        dump.push_str(&format!("@ {address:#x}\n  t*: 1: 1 [0: 0]\n"));
    }
    let end = 0x1000 + bytes.len() + 1;
    dump.push_str(&format!(
        "\nMAPPED_LIBRARIES:\n1000-{end:x} r-xp 0 0:0 0 /fuzzed\n"
    ));
    let mut profile =
        parse_profile(&mut dump.as_bytes(), &Limits::default(), false).expect("a good dump");
    let sources = Sources {
        binary: Some(file),
        ..Sources::default()
    };
    let names = symbolize(&mut profile, &sources, &|_, _| {}).expect("no build id says otherwise");
    for index in 0..profile.stacks.addresses().len() {
        assert!(!names.frames(AddressId(index as u32)).is_empty());
    }
});
