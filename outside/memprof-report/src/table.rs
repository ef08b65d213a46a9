//! Table of functions: values of their own (flat) and with their callees (cumulative).

use crate::comparison::Comparison;
use crate::fold::Folded;
use crate::names::StringId;

/// Row of one function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Id of the function in [`Folded::functions`].
    pub function: StringId,
    /// Value of its own allocations.
    pub flat: Comparison,
    /// Value with its callees; a recursive function counts once per stack.
    pub cum: Comparison,
    /// Sum over its stacks of value times distance from the leaf: orders functions with equal values, such as all
    /// callers of one leak. 0 in a table of all functions.
    distance: u128,
}

/// Returns one row per function, the largest first: by flat value, or by cumulative value with `by_cum`. A function
/// whose values are 0, also in the base, has no row.
pub fn function_rows(folded: &Folded<'_>, by_cum: bool) -> Vec<Row> {
    let mut rows: Vec<Row> = (0..folded.functions.len() as u32)
        .map(|id| Row {
            function: StringId(id),
            flat: Comparison::default(),
            cum: Comparison::default(),
            distance: 0,
        })
        .collect();
    // By function: the last stack that was counted for it.
    let mut last_stack = vec![usize::MAX; rows.len()];
    let mut visible = Vec::new();
    let mut index = 0;
    folded.stacks.for_each(|stack| {
        visible.clear();
        visible.extend(folded.visible_functions(stack));
        for (position, function) in visible.iter().enumerate() {
            let function = function.0 as usize;
            if last_stack[function] != index {
                last_stack[function] = index;
                let row = &mut rows[function];
                row.cum += stack.values;
                if folded.is_origin_filtered {
                    let distance = visible.len() - 1 - position;
                    row.distance +=
                        u128::from(stack.values.value().unsigned_abs()) * distance as u128;
                }
            }
        }
        if let Some(leaf) = visible.last() {
            rows[leaf.0 as usize].flat += stack.values;
        }
        index += 1;
    });
    rows.retain(|row| !row.cum.is_zero());
    let magnitude = |pair: Comparison| std::cmp::Reverse(pair.value().unsigned_abs());
    let tie_break = |row: &Row| (row.distance, folded.functions.get(row.function));
    match by_cum {
        true => rows.sort_by(|a, b| {
            (magnitude(a.cum), magnitude(a.flat), tie_break(a)).cmp(&(
                magnitude(b.cum),
                magnitude(b.flat),
                tie_break(b),
            ))
        }),
        false => rows.sort_by(|a, b| {
            (magnitude(a.flat), magnitude(a.cum), tie_break(a)).cmp(&(
                magnitude(b.flat),
                magnitude(b.cum),
                tie_break(b),
            ))
        }),
    }
    rows
}
