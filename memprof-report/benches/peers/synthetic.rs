//! A big dump out of a real one: 90,000 stacks in 45 MB, as a large C++ program makes them.

use std::io::{self, Write};

const STACKS: usize = 90_000;

/// Writes a `heap_v2` dump with the mappings and addresses of `real`: every stack is the leaf of one real stack
/// on the root of another, so that depth, sharing and locality are those of a real program.
pub(crate) fn write(real: &str, out: &mut dyn Write) -> io::Result<()> {
    let stacks: Vec<Vec<&str>> = real
        .lines()
        .filter_map(|line| line.strip_prefix("@ "))
        .map(|line| line.split(' ').collect())
        .collect();
    let maps = real.find("MAPPED_LIBRARIES:").map_or("", |at| &real[at..]);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    writeln!(
        out,
        "heap_v2/524288\n  t*: 90000: 11520000000 [0: 0]\n  t0: 90000: 11520000000 [0: 0]"
    )?;
    for _ in 0..STACKS {
        let (leaf, root) = (
            &stacks[random.below(stacks.len())],
            &stacks[random.below(stacks.len())],
        );
        let cut = random.below(leaf.len().min(root.len()));
        writeln!(
            out,
            "@ {} {}",
            leaf[..cut + 1].join(" "),
            root[cut..].join(" ")
        )?;
        let objects = 1 + random.below(4);
        let bytes = objects * (16 + random.below(4096));
        writeln!(
            out,
            "  t*: {objects}: {bytes} [0: 0]\n  t0: {objects}: {bytes} [0: 0]"
        )?;
    }
    write!(out, "\n{maps}")
}

/// xorshift64: the same dump every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
