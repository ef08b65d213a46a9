//! Functions with what they allocated themselves (flat) and with their callees (cumulative).

use crate::comparison::Comparison;
use crate::fold::Folded;
use crate::names::StringId;

/// One function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// By its id among the profile's texts.
    pub function: StringId,
    /// Its own allocations.
    pub flat: Comparison,
    /// Its own and its callees'; a recursive function counts once per stack.
    pub cum: Comparison,
    /// How far from the leaf it stands, summed over what it holds: what orders functions that hold the same,
    /// as all do that lead to one leak. 0 in a table of every function.
    distance: u128,
}

/// One row per function, the largest first: by flat value, or by cumulative.
pub fn table(folded: &Folded, by_cum: bool) -> Vec<Row> {
    let mut rows: Vec<Row> = (0..folded.functions.len() as u32)
        .map(|id| Row {
            function: StringId(id),
            flat: Comparison::default(),
            cum: Comparison::default(),
            distance: 0,
        })
        .collect();
    let mut seen = vec![usize::MAX; rows.len()];
    let mut told = Vec::new();
    for (index, stack) in folded.stacks.iter().enumerate() {
        told.clear();
        told.extend(folded.visible_functions(stack));
        for (above, function) in told.iter().enumerate() {
            let function = function.0 as usize;
            if seen[function] != index {
                seen[function] = index;
                let row = &mut rows[function];
                row.cum += stack.values;
                if folded.is_told {
                    let distance = told.len() - 1 - above;
                    row.distance +=
                        u128::from(stack.values.value().unsigned_abs()) * distance as u128;
                }
            }
        }
        if let Some(leaf) = told.last() {
            rows[leaf.0 as usize].flat += stack.values;
        }
    }
    rows.retain(|row| !row.cum.is_zero());
    let size = |pair: Comparison| std::cmp::Reverse(pair.value().unsigned_abs());
    let place = |row: &Row| (row.distance, folded.functions.get(row.function));
    match by_cum {
        true => rows.sort_by(|a, b| {
            (size(a.cum), size(a.flat), place(a)).cmp(&(size(b.cum), size(b.flat), place(b)))
        }),
        false => rows.sort_by(|a, b| {
            (size(a.flat), size(a.cum), place(a)).cmp(&(size(b.flat), size(b.cum), place(b)))
        }),
    }
    rows
}
