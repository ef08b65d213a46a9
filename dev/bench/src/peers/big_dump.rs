//! A big dump from a real one: 87,000 stacks in 45 MB, like those of a large C++ program.

use std::io::{self, Write};

use testkit::Random;

use crate::synthetic::SEED;

/// Stacks that are generated; equal ones are then removed.
const STACKS: usize = 90_000;

/// Writes a `heap_v2` dump with the mappings and addresses of `real`, in jemalloc's order. Every stack joins the leaf
/// frames of one real stack with the root frames of another, so that depth, sharing and locality are realistic.
pub(super) fn write_big_dump(real: &str, out: &mut dyn Write) -> io::Result<()> {
    let stacks: Vec<Vec<&str>> = real
        .lines()
        .filter_map(|line| line.strip_prefix("@ "))
        .map(|line| line.split(' ').collect())
        .collect();
    let maps = real
        .find("MAPPED_LIBRARIES:")
        .map_or("", |start| &real[start..]);
    let mut random = Random(SEED);
    let mut stacks_out: Vec<Vec<&str>> = (0..STACKS)
        .map(|_| {
            let leaf = &stacks[random.next_below(stacks.len())];
            let root = &stacks[random.next_below(stacks.len())];
            let cut = random.next_below(leaf.len().min(root.len()));
            [&leaf[..cut + 1], &root[cut..]].concat()
        })
        .collect();
    stacks_out.sort_by_cached_key(|stack| sort_key(stack));
    stacks_out.dedup();
    let objects = stacks_out.len();
    let totals = format!("{objects}: {} [0: 0]", objects * 128_000);
    writeln!(out, "heap_v2/524288\n  t*: {totals}\n  t0: {totals}")?;
    for stack in stacks_out {
        writeln!(out, "@ {}", stack.join(" "))?;
        let objects = 1 + random.next_below(4);
        let bytes = objects * (16 + random.next_below(4096));
        writeln!(
            out,
            "  t*: {objects}: {bytes} [0: 0]\n  t0: {objects}: {bytes} [0: 0]"
        )?;
    }
    write!(out, "\n{maps}")
}

/// Sort key of jemalloc, which compares the addresses as bytes (`prof_gctx_comp`).
fn sort_key(stack: &[&str]) -> Vec<u8> {
    let addresses = stack.iter().map(|word| {
        let digits = word.trim_start_matches("0x");
        u64::from_str_radix(digits, 16).unwrap_or_default()
    });
    addresses.flat_map(u64::to_ne_bytes).collect()
}
