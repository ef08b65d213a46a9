//! A big dump out of a real one: 87,000 stacks in 45 MB, as a large C++ program makes them.

use std::io::{self, Write};

use crate::synthetic::Random;

/// Some of them are the same.
const STACKS: usize = 90_000;

/// Writes a `heap_v2` dump with the mappings and addresses of `real`: every stack is the leaf of one real stack
/// on the root of another, so that depth, sharing and locality are those of a real program, in jemalloc's order.
pub(super) fn write(real: &str, out: &mut dyn Write) -> io::Result<()> {
    let stacks: Vec<Vec<&str>> = real
        .lines()
        .filter_map(|line| line.strip_prefix("@ "))
        .map(|line| line.split(' ').collect())
        .collect();
    let maps = real.find("MAPPED_LIBRARIES:").map_or("", |at| &real[at..]);
    let mut random = Random::new();
    let mut made: Vec<Vec<&str>> = (0..STACKS)
        .map(|_| {
            let leaf = &stacks[random.below(stacks.len())];
            let root = &stacks[random.below(stacks.len())];
            let cut = random.below(leaf.len().min(root.len()));
            [&leaf[..cut + 1], &root[cut..]].concat()
        })
        .collect();
    made.sort_by_cached_key(|stack| in_memory(stack));
    made.dedup();
    let objects = made.len();
    let totals = format!("{objects}: {} [0: 0]", objects * 128_000);
    writeln!(out, "heap_v2/524288\n  t*: {totals}\n  t0: {totals}")?;
    for stack in made {
        writeln!(out, "@ {}", stack.join(" "))?;
        let objects = 1 + random.below(4);
        let bytes = objects * (16 + random.below(4096));
        writeln!(
            out,
            "  t*: {objects}: {bytes} [0: 0]\n  t0: {objects}: {bytes} [0: 0]"
        )?;
    }
    write!(out, "\n{maps}")
}

/// What jemalloc sorts by: it compares the addresses as bytes (`prof_gctx_comp`).
fn in_memory(stack: &[&str]) -> Vec<u8> {
    let addresses = stack.iter().map(|word| {
        let digits = word.trim_start_matches("0x");
        u64::from_str_radix(digits, 16).unwrap_or_default()
    });
    addresses.flat_map(u64::to_ne_bytes).collect()
}
