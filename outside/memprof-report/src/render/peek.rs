//! The functions in focus, each with its callers above and its callees below.

use std::io::Write;

use super::graph::call_edges;
use super::{RenderInput, format_amount, function_label, percent};
use crate::error::Result;
use crate::options::Options;
use crate::table::function_rows;

/// Writes a block of lines for each function whose name matches the option `focus`: its callers, the function itself,
/// and its callees. With `top`, a block has at most that many callers and that many callees, those with the largest
/// values. Fails if the calls exceed the memory budget.
pub(super) fn write_peek(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let folded = input.fold_by_origin(options);
    let edges = call_edges(&folded, input.memory_left())?;
    let rows = function_rows(&folded, true);
    let is_in_focus = |name: &str| {
        options
            .filter
            .focus
            .as_ref()
            .is_some_and(|focus| focus.is_match(name))
    };
    writeln!(out, "{}", input.heading(options))?;
    writeln!(
        out,
        "{:>10} {:>10} {:>7}  function",
        "flat", "cum", "calls%"
    )?;
    for row in rows
        .iter()
        .filter(|row| is_in_focus(folded.functions.get(row.function)))
    {
        // Shares are parts of the sum of sizes, because a part of a difference may be larger than the whole.
        let mut whole = 0_u64;
        folded.stacks.for_each(|stack| {
            if stack.functions.contains(&row.function) {
                whole = whole.saturating_add(stack.values.value().unsigned_abs());
            }
        });
        let whole = i64::try_from(whole).unwrap_or(i64::MAX);
        let neighbours = |direction| -> Vec<String> {
            let matching = edges
                .iter()
                .filter_map(|&((caller, callee), pair)| match direction {
                    Direction::Callers => (callee == row.function).then_some((caller, pair)),
                    Direction::Callees => (caller == row.function).then_some((callee, pair)),
                });
            matching
                .take(options.top.unwrap_or(usize::MAX))
                .map(|(function, pair)| {
                    let share = percent(pair.value(), whole);
                    let value = format_amount(pair.value(), options.sample_type);
                    let name = function_label(&folded, function, options);
                    format!("{:>10} {value:>10} {share:>6.1}%    {name}", "")
                })
                .collect()
        };
        let own = format!(
            "{:>10} {:>10} {:>7}  {}",
            format_amount(row.flat.value(), options.sample_type),
            format_amount(row.cum.value(), options.sample_type),
            "",
            function_label(&folded, row.function, options)
        );
        writeln!(out)?;
        for line in neighbours(Direction::Callers)
            .iter()
            .chain([&own])
            .chain(&neighbours(Direction::Callees))
        {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Direction {
    Callers,
    Callees,
}
