//! Generated dumps, equal in every run.

use std::io::Write;

use anyhow::Result;

const FUNCTIONS: usize = 6000;

/// Generates a dump with the names of its functions, as jeprof writes it. Its call tree has about `tree_nodes` nodes:
/// each stack begins like an earlier one, and goes on with other callees.
pub(crate) fn named_dump(tree_nodes: usize) -> Result<Vec<u8>> {
    let mut random = Random::new();
    let mut stacks = vec![vec![0]];
    let (mut text, mut samples) = (Vec::new(), Vec::new());
    writeln!(text, "--- symbol\nbinary=/usr/bin/large")?;
    for function in 0..FUNCTIONS {
        let (module, policy) = (function % 97, function % 13);
        writeln!(
            text,
            "{:#018x} app::module_{module}::Component<std::string, Policy{policy}>::operation_{function}(Request const&)",
            address(function) - 1
        )?;
    }
    let (mut nodes, mut objects, mut bytes) = (1, 0, 0);
    while nodes < tree_nodes {
        let recent = stacks.len().min(400);
        let before: &Vec<usize> = &stacks[stacks.len() - 1 - random.below(recent)];
        let cut = 1 + random.below(before.len().min(100));
        let added = (1 + random.below(24)).min(tree_nodes - nodes);
        let callees = (0..added).map(|_| random.below(FUNCTIONS));
        let stack: Vec<_> = before[..cut].iter().copied().chain(callees).collect();
        nodes += added;
        let count = 1 + random.below(4);
        let size = count * [16, 64, 256, 4096, 65536][random.below(5)];
        objects += count;
        bytes += size;
        write!(samples, "@")?;
        for function in stack.iter().rev() {
            write!(samples, " {:#x}", address(*function))?;
        }
        writeln!(samples, "\n  t*: {count}: {size} [0: 0]")?;
        stacks.push(stack);
    }
    writeln!(
        text,
        "---\n--- heap\nheap_v2/524288\n  t*: {objects}: {bytes} [0: 0]"
    )?;
    text.extend(samples);
    writeln!(
        text,
        "\nMAPPED_LIBRARIES:\n00001000-00080000 r-xp 00000000 fe:00 1 /usr/bin/large"
    )?;
    Ok(text)
}

/// Return address in the function with this index, 1 byte after its start. Functions take 16 bytes each, from 0x1000
/// on.
fn address(function: usize) -> usize {
    0x1001 + 16 * function
}

/// Pseudo-random numbers with a fixed seed (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    /// Starts a sequence that is the same in every run.
    pub(crate) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// Next number, from 0 to `limit` - 1.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
