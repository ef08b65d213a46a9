//! Generated heap dumps of any size, which are written as they are made.

use std::io::{self, Write};

/// Frames of a stack: at least, and at most more. Each has a digit of the stack's number, so that stacks are different
/// up to 16 million.
const DEPTH: (u64, u64) = (8, 8);
/// Bits of a digit: each function calls up to eight others.
const DIGIT: u64 = 3;
/// Functions of the program.
const FUNCTIONS: u64 = 20_000;
/// Address of the first function, and bytes of each.
const CODE: (u64, u64) = (0x40_0000, 0xc00);

/// Writes a `heap_v2` dump of `stacks` stacks, which share their callers as those of a real program do. A tenth of the
/// stacks depend on `seed`; the others are the same in every dump.
pub(crate) fn write_dump(stacks: u64, seed: u64, out: &mut dyn Write) -> io::Result<()> {
    let objects = 3 * stacks;
    let totals = format!("{objects}: {} [0: 0]", objects * 4096);
    writeln!(out, "heap_v2/524288\n  t*: {totals}\n  t0: {totals}")?;
    for stack in 0..stacks {
        let is_own = stack.is_multiple_of(10);
        let number = stack + if is_own { seed * stacks } else { 0 };
        write!(out, "@")?;
        // Each octal digit of the number selects a callee of the function that the higher digits select. So stacks
        // whose numbers have the same higher digits share their callers.
        for frame in 0..DEPTH.0 + hash_number(stack) % (DEPTH.1 + 1) {
            let caller = number >> (DIGIT * (frame + 1));
            let callee = number >> (DIGIT * frame) & 7;
            let function = (hash_number(caller) + callee) % FUNCTIONS;
            // A return address is behind the function's start.
            write!(out, " {:#x}", CODE.0 + function * CODE.1 + 1)?;
        }
        writeln!(out, "\n  t*: 3: 12288 [0: 0]\n  t0: 3: 12288 [0: 0]")?;
    }
    let end = CODE.0 + FUNCTIONS * CODE.1;
    writeln!(
        out,
        "\nMAPPED_LIBRARIES:\n{:x}-{end:x} r-xp 00000000 08:01 12345 /srv/absent/program",
        CODE.0
    )
}

/// Returns a hash of a number by two rounds like those of `SplitMix64`. It has 32 bits, so that a digit can be added.
fn hash_number(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed >> 32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn dumps_have_different_stacks_of_which_other_seeds_share_most() {
        let stacks = |seed| {
            let mut dump = Vec::new();
            write_dump(1000, seed, &mut dump).unwrap();
            let text = String::from_utf8(dump).unwrap();
            let stacks = text.lines().filter(|line| line.starts_with('@'));
            stacks.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let (first, second) = (stacks(1), stacks(2));
        assert_eq!((first.len(), second.len()), (1000, 1000));
        assert_eq!(first.intersection(&second).count(), 900);
    }
}
