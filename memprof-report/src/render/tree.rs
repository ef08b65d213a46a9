//! The call tree, the largest callee first.

use std::io::Write;

use super::{Subject, amount, percent};
use crate::error::Result;
use crate::report::Options;
use crate::tree::{children, tree};

/// Subtrees below this part of the total are counted, not shown.
const SMALLEST_PERCENT: f64 = 0.5;

/// Deeper nodes are shown at this indentation, with their depth.
const DEEPEST: u32 = 100;

pub(super) fn write(subject: &Subject<'_>, options: &Options, out: &mut dyn Write) -> Result<()> {
    let folded = subject.fold(options);
    let nodes = tree(&folded);
    let children = children(&nodes);
    let whole = nodes[0].total.new.max(nodes[0].total.base).max(1);
    writeln!(out, "{}", subject.heading(options))?;
    writeln!(out, "{:>10} {:>6} {:>10}  function", "cum", "cum%", "flat")?;
    let mut hidden = 0;
    let mut pending: Vec<u32> = vec![0];
    while let Some(index) = pending.pop() {
        let node = nodes[index as usize];
        let share = percent(node.total.value(), whole);
        if share.abs() < SMALLEST_PERCENT && index > 0 {
            hidden += 1;
            continue;
        }
        let name = node
            .function
            .map_or("total", |function| folded.functions.get(function));
        let mut indent = " ".repeat(node.depth.min(DEEPEST) as usize);
        if node.depth > DEEPEST {
            indent.push_str(&format!("[{}] ", node.depth));
        }
        writeln!(
            out,
            "{:>10} {share:>5.1}% {:>10}  {indent}{name}",
            amount(node.total.value(), options.sample_type),
            amount(node.own.value(), options.sample_type),
        )?;
        pending.extend(children[index as usize].iter().rev());
    }
    if hidden > 0 {
        writeln!(
            out,
            "({hidden} subtrees below {SMALLEST_PERCENT} % are not shown)"
        )?;
    }
    Ok(())
}
