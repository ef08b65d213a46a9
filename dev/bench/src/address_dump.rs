//! A dump of addresses in this program's code, for the time that their names take.

use std::env;
use std::fs;

use anyhow::{Context, Result};

/// Distinct addresses in the dump.
const ADDRESSES: u64 = 10_000;

/// Returns a `heap_v2` dump in which each stack is one of [`ADDRESSES`] return addresses, spread over this program's
/// code, and the offset of each call in the program's file.
pub(crate) fn dump_of_this_program() -> Result<(String, Vec<u64>)> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let program = env::current_exe()?.display().to_string();
    let code = maps
        .lines()
        .find(|line| line.ends_with(&program) && line.contains(" r-xp "));
    let fields: Vec<&str> = code
        .context("no code of this program is mapped")?
        .split([' ', '-'])
        .collect();
    let number = |index: usize| u64::from_str_radix(fields[index], 16);
    // The fields are start-end r-xp offset; the dash of r-xp splits too.
    let (start, end, offset) = (number(0)?, number(1)?, number(4)?);
    let step = (end - start) / (ADDRESSES + 1);
    let mut dump = "heap_v2/512\n  t*: 10000: 10000 [0: 0]\n".to_owned();
    let mut offsets = Vec::new();
    for index in 1..=ADDRESSES {
        let address = start + index * step;
        dump.push_str(&format!("@ {address:#x}\n  t*: 1: 1 [0: 0]\n"));
        // The call is before its return address.
        offsets.push(address - 1 - start + offset);
    }
    dump.push_str(&format!("\nMAPPED_LIBRARIES:\n{maps}"));
    Ok((dump, offsets))
}
