//! Collapsed stacks, as flamegraph tools and speedscope read them; with a base, values are the changes.

use std::io::Write;

use crate::error::Result;
use crate::fold::Folded;
use crate::names::StringId;

/// Bytes of a line after which it is written in parts.
const MAX_PART_BYTES: usize = 64 << 10;

/// Writes one line per stack with a value: its functions, root first and joined by `;`, and the value. A `;` in a name
/// becomes `:`.
pub(super) fn write_collapsed(folded: &Folded<'_>, out: &mut dyn Write) -> Result<()> {
    let names: Vec<String> = (0..folded.functions.len() as u32)
        .map(|id| folded.functions.get(StringId(id)).replace(';', ":"))
        .collect();
    let mut line = Vec::new();
    let mut stacks = folded.stacks.cursor();
    while let Some(stack) = stacks.next_stack() {
        if stack.values.value() == 0 {
            continue;
        }
        line.clear();
        for (index, function) in stack.functions.iter().enumerate() {
            if index > 0 {
                line.push(b';');
            }
            line.extend_from_slice(names[function.0 as usize].as_bytes());
            // A deep stack is written in parts, so that its line is not whole in memory.
            if line.len() > MAX_PART_BYTES {
                out.write_all(&line)?;
                line.clear();
            }
        }
        writeln!(line, " {}", stack.values.value())?;
        out.write_all(&line)?;
    }
    Ok(())
}
