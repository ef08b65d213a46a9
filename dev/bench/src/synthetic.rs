//! Generated dumps, equal in every run.

use std::io::Write;

use anyhow::Result;
use testkit::Random;

const FUNCTIONS: usize = 6000;

/// Seed of the generated data.
pub(crate) const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Generates a dump with the names of its functions, as jeprof writes it. Its call tree has about `tree_nodes` nodes:
/// each stack begins like an earlier one, and goes on with other callees.
pub(crate) fn named_dump(tree_nodes: usize) -> Result<Vec<u8>> {
    let mut random = Random(SEED);
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
        let before: &Vec<usize> = &stacks[stacks.len() - 1 - random.next_below(recent)];
        let cut = 1 + random.next_below(before.len().min(100));
        let added = (1 + random.next_below(24)).min(tree_nodes - nodes);
        let callees = (0..added).map(|_| random.next_below(FUNCTIONS));
        let stack: Vec<_> = before[..cut].iter().copied().chain(callees).collect();
        nodes += added;
        let count = 1 + random.next_below(4);
        let size = count * [16, 64, 256, 4096, 65536][random.next_below(5)];
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
