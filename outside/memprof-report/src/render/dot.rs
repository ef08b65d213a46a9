//! The call graph in graphviz's language.

use std::collections::HashMap;
use std::io::Write;

use super::graph::call_edges;
use super::{RenderInput, format_amount, function_label, percent};
use crate::error::Result;
use crate::names::StringId;
use crate::options::Options;
use crate::plural::pluralize;
use crate::table::{Row, function_rows};

/// Default number of functions; graphviz needs minutes for thousands.
const DEFAULT_FUNCTIONS: usize = 80;

/// Smallest edge, in percent of the total.
const MIN_EDGE_PERCENT: f64 = 0.1;

/// Writes the call graph in graphviz's language: the functions with the largest cumulative values, `top` or
/// [`DEFAULT_FUNCTIONS`] of them, and the calls between them. Leaves out calls with less than [`MIN_EDGE_PERCENT`] of
/// the total. Fails if the calls exceed the memory budget.
pub(super) fn write_dot(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let folded = input.fold_by_origin(options);
    let mut rows = function_rows(&folded, true);
    let dropped = rows
        .len()
        .saturating_sub(options.top.unwrap_or(DEFAULT_FUNCTIONS));
    rows.truncate(rows.len() - dropped);
    let total = input.amount_for_percentages(options.sample_type);
    let mut heading = format!(
        "{}\\l{}\\l",
        escape_label(&input.name),
        escape_label(&input.heading(options))
    );
    if dropped > 0 {
        let verb = if dropped == 1 { "is" } else { "are" };
        let functions = pluralize(dropped as u64, "smaller function");
        heading.push_str(&format!("{functions} {verb} left out\\l"));
    }
    writeln!(out, "digraph memprof {{")?;
    writeln!(
        out,
        "  node [shape=box, fontname=\"sans-serif\", style=filled, fillcolor=white];"
    )?;
    writeln!(out, "  edge [fontname=\"sans-serif\", fontsize=9];")?;
    writeln!(out, "  heading [shape=plaintext, label=\"{heading}\"];")?;
    let mut nodes: HashMap<StringId, usize> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        nodes.insert(row.function, index);
        write_node(
            index,
            row,
            &function_label(&folded, row.function, options),
            total,
            options,
            out,
        )?;
    }
    for ((caller, callee), pair) in call_edges(&folded, input.memory_left())? {
        let share = percent(pair.value(), total);
        if let (Some(from), Some(to)) = (nodes.get(&caller), nodes.get(&callee))
            && share.abs() >= MIN_EDGE_PERCENT
        {
            let width = 1.0 + share.abs() / 25.0;
            let value = format_amount(pair.value(), options.sample_type);
            writeln!(
                out,
                "  n{from} -> n{to} [label=\"{value}\", penwidth={width:.2}];"
            )?;
        }
    }
    writeln!(out, "}}")?;
    Ok(())
}

/// Writes the graph's node for a function, under the name `n3` for the index 3. The size of its text shows the share of
/// the flat value in `total`. Its colour shows the share of the cumulative value: orange, or blue if it is negative.
fn write_node(
    index: usize,
    row: &Row,
    name: &str,
    total: i64,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let (flat, cum) = (row.flat.value(), row.cum.value());
    let label = format!(
        "{}\\n{} ({:.1}%)\\nof {} ({:.1}%)",
        escape_label(name),
        format_amount(flat, options.sample_type),
        percent(flat, total),
        format_amount(cum, options.sample_type),
        percent(cum, total)
    );
    // Orange and blue are distinguishable with colour blindness; the saturation is the share.
    let hue = if cum < 0 { 0.58 } else { 0.08 };
    let saturation = (percent(cum, total).abs() / 100.0).clamp(0.0, 1.0) * 0.7;
    let size = 8.0 + 20.0 * (percent(flat, total).abs() / 100.0).clamp(0.0, 1.0).sqrt();
    writeln!(
        out,
        "  n{index} [label=\"{label}\", fontsize={size:.1}, fillcolor=\"{hue:.2} {saturation:.2} 1.0\"];"
    )?;
    Ok(())
}

/// Escapes a text for a label in double quotes. In such a label, graphviz ends lines at `\n` and `\l`, and decodes HTML
/// entities.
fn escape_label(name: &str) -> String {
    name.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('&', "&amp;")
}
