//! The call graph in graphviz's language.

use std::collections::HashMap;
use std::io::Write;

use super::graph::edges;
use super::{RenderInput, amount, label, percent, pluralize};
use crate::error::Result;
use crate::names::StringId;
use crate::options::Options;
use crate::table::{Row, table};

/// Functions shown unless `--top` says more or fewer; graphviz needs minutes for thousands.
const FUNCTIONS: usize = 80;

/// Edges below this part of the total are left out.
const SMALLEST_EDGE_PERCENT: f64 = 0.1;

pub(super) fn write(
    subject: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let folded = subject.fold_by_origin(options);
    let mut rows = table(&folded, true);
    let left_out = rows.len().saturating_sub(options.top.unwrap_or(FUNCTIONS));
    rows.truncate(rows.len() - left_out);
    let whole = rows.first().map_or(0, |row| row.cum.new.max(row.cum.base));
    let mut heading = format!(
        "{}\\l{}\\l",
        escaped(&subject.name),
        escaped(&subject.heading(options))
    );
    if left_out > 0 {
        let verb = if left_out == 1 { "is" } else { "are" };
        let functions = pluralize(left_out as u64, "smaller function");
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
            &label(&folded, row.function, options),
            whole,
            subject,
            options,
            out,
        )?;
    }
    for ((caller, callee), pair) in edges(&folded, subject.memory_left())? {
        let share = percent(pair.value(), whole);
        if let (Some(from), Some(to)) = (nodes.get(&caller), nodes.get(&callee))
            && share.abs() >= SMALLEST_EDGE_PERCENT
        {
            let width = 1.0 + share.abs() / 25.0;
            let value = amount(pair.value(), options.sample_type);
            writeln!(
                out,
                "  n{from} -> n{to} [label=\"{value}\", penwidth={width:.2}];"
            )?;
        }
    }
    writeln!(out, "}}")?;
    Ok(())
}

fn write_node(
    index: usize,
    row: &Row,
    name: &str,
    whole: i64,
    subject: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let (flat, cum) = (row.flat.value(), row.cum.value());
    let label = format!(
        "{}\\n{} ({:.1}%)\\nof {} ({:.1}%)",
        escaped(name),
        amount(flat, options.sample_type),
        percent(flat, whole),
        amount(cum, options.sample_type),
        percent(cum, whole)
    );
    // Orange and blue are told apart by all eyes; the saturation is the share.
    let hue = if subject.base.is_some() && cum < 0 {
        0.58
    } else {
        0.08
    };
    let saturation = (percent(cum, whole).abs() / 100.0).clamp(0.0, 1.0) * 0.7;
    let size = 8.0 + 20.0 * (percent(flat, whole).abs() / 100.0).clamp(0.0, 1.0).sqrt();
    writeln!(
        out,
        "  n{index} [label=\"{label}\", fontsize={size:.1}, fillcolor=\"{hue:.2} {saturation:.2} 1.0\"];"
    )?;
    Ok(())
}

/// Inside double quotes; graphviz ends lines at `\n` and `\l`, and knows HTML entities.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('&', "&amp;")
}
