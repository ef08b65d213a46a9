//! The call tree, the largest callee first.

use std::io::Write;

use super::{RenderInput, format_amount, function_label, percent};
use crate::error::Result;
use crate::options::Options;
use crate::plural::pluralize;
use crate::tree::{Node, call_tree, children_by_node};

/// Smallest subtree that is shown without `top`, in percent of the total; smaller ones are counted.
const MIN_PERCENT: f64 = 0.5;

/// Largest indentation; deeper nodes are shown with their depth.
const MAX_INDENT: u32 = 100;

/// Writes the call tree, the largest callee first: its `top` largest nodes or, without `top`, the nodes of at least
/// [`MIN_PERCENT`] of the total. Then writes the number of subtrees that are not shown. Fails if the nodes exceed the
/// memory budget.
pub(super) fn write_tree(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let folded = input.fold_by_origin(options);
    let nodes = call_tree(&folded, input.memory_left())?;
    let children = children_by_node(&nodes);
    let total = input.amount_for_percentages(options.sample_type);
    let shown = match options.top {
        Some(top) => select_largest_nodes(&nodes, top),
        None => select_nodes_by_percent(&nodes, total),
    };
    writeln!(out, "{}", input.heading(options))?;
    writeln!(out, "{:>10} {:>6} {:>10}  function", "cum", "cum%", "flat")?;
    let mut hidden = 0;
    let mut pending: Vec<u32> = vec![0];
    while let Some(index) = pending.pop() {
        let node = nodes[index as usize];
        if !shown[index as usize] {
            hidden += 1;
            continue;
        }
        let share = percent(node.total.value(), total);
        let name = node.function.map_or("total".into(), |function| {
            function_label(&folded, function, options)
        });
        let mut indent = " ".repeat(node.depth.min(MAX_INDENT) as usize);
        if node.depth > MAX_INDENT {
            indent.push_str(&format!("[{}] ", node.depth));
        }
        writeln!(
            out,
            "{:>10} {share:>5.1}% {:>10}  {indent}{name}",
            format_amount(node.total.value(), options.sample_type),
            format_amount(node.own.value(), options.sample_type),
        )?;
        pending.extend(children[index as usize].iter().rev());
    }
    if hidden > 0 {
        let (verb, them) = if hidden == 1 {
            ("is", "it")
        } else {
            ("are", "them")
        };
        match options.top {
            Some(_) => {
                let more = pluralize(hidden, "more subtree");
                writeln!(out, "({more}, --top shows {them})")?;
            }
            None => {
                let subtrees = pluralize(hidden, "subtree");
                writeln!(
                    out,
                    "({subtrees} below {MIN_PERCENT} % {verb} not shown, --top shows {them})"
                )?;
            }
        }
    }
    Ok(())
}

/// Returns, by node index, whether the node is one of the `top` largest or an ancestor of one: these nodes are shown.
/// The root is always shown, and does not count towards `top`.
fn select_largest_nodes(nodes: &[Node], top: usize) -> Vec<bool> {
    let magnitude = |index: usize| nodes[index].total.value().unsigned_abs();
    let mut by_size: Vec<usize> = (1..nodes.len())
        .filter(|&index| magnitude(index) > 0)
        .collect();
    by_size.sort_by_key(|&index| std::cmp::Reverse(magnitude(index)));
    let mut shown = vec![false; nodes.len()];
    shown[0] = true;
    for mut index in by_size.into_iter().take(top) {
        while !std::mem::replace(&mut shown[index], true) {
            index = nodes[index].parent as usize;
        }
    }
    shown
}

/// Returns, by node index, whether the node is shown: it has at least [`MIN_PERCENT`] of the total, with its callees or
/// without them, or is an ancestor of such a node. An ancestor may have less: in a difference, values of callees may
/// cancel out. The root is always shown.
fn select_nodes_by_percent(nodes: &[Node], total: i64) -> Vec<bool> {
    let is_large = |node: &Node| {
        [node.total, node.own]
            .iter()
            .any(|pair| percent(pair.value(), total).abs() >= MIN_PERCENT)
    };
    let mut shown: Vec<bool> = nodes.iter().map(is_large).collect();
    // A node comes after its parent.
    for index in (1..nodes.len()).rev() {
        if shown[index] {
            shown[nodes[index].parent as usize] = true;
        }
    }
    shown[0] = true;
    shown
}

#[cfg(test)]
mod tests {
    use super::select_nodes_by_percent;
    use crate::fold::Folded;
    use crate::limits::MemoryLeft;
    use crate::tree::call_tree;

    #[test]
    fn caller_whose_callees_cancel_out_is_shown() {
        let stacks = [
            (vec!["idle"], 1, 0),
            (vec!["main", "handler"], 100, 0),
            (vec!["main", "handler", "pool"], 0, 100),
        ];
        let folded = Folded::from_stacks(stacks.into_iter());
        let nodes = call_tree(&folded, MemoryLeft::default()).unwrap();
        let shown = select_nodes_by_percent(&nodes, 1000);
        let hidden = nodes.iter().zip(shown).filter(|(_, shown)| !shown);
        let hidden = hidden.filter_map(|(node, _)| Some(folded.functions.get(node.function?)));
        assert_eq!(hidden.collect::<Vec<_>>(), ["idle"]);
    }
}
