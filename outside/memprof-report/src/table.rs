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

/// Returns one row per visible function, the largest first: by the value of its own allocations or, with `by_cum`, by
/// the value with its callees. A function whose values are 0, also in the base, has no row.
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
    // In a difference, a function's own value and those of its callees may cancel out.
    rows.retain(|row| !row.cum.is_zero() || !row.flat.is_zero());
    let magnitude = |pair: Comparison| std::cmp::Reverse(pair.value().unsigned_abs());
    // Of functions with equal values, those nearer to the leaf come first.
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

#[cfg(test)]
mod tests {
    use super::function_rows;
    use crate::fold::Folded;

    #[test]
    fn function_that_grew_as_its_callee_shrank_has_row() {
        let stacks = [
            (vec!["main", "handler"], 100, 0),
            (vec!["main", "handler", "pool"], -100, 0),
        ];
        let folded = Folded::from_stacks(stacks.into_iter());
        let rows = function_rows(&folded, false);
        let values = rows.iter().map(|row| {
            let name = folded.functions.get(row.function);
            (name, row.flat.value(), row.cum.value())
        });
        let values: Vec<_> = values.collect();
        assert_eq!(values, [("pool", -100, -100), ("handler", 100, 0)]);
    }
}
