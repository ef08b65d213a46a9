//! Edges of the call graph.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::comparison::Comparison;
use crate::error::Result;
use crate::fold::Folded;
use crate::limits::MemoryLeft;
use crate::names::StringId;

/// A caller and a callee.
pub(super) type Edge = (StringId, StringId);

/// Memory of an edge, in bytes.
const BYTES_PER_EDGE: u64 = 176;

/// Returns the edges of the call graph, pairs of caller and callee, with their values, the largest change or value
/// first. An edge that occurs in a stack several times, by recursion, counts once for it. Fails if the edges exceed the
/// memory budget.
pub(super) fn call_edges(
    folded: &Folded<'_>,
    mut memory_left: MemoryLeft,
) -> Result<Vec<(Edge, Comparison)>> {
    let mut edges: HashMap<Edge, (Comparison, usize)> = HashMap::new();
    let mut stacks = folded.stacks.cursor();
    let mut index = 0;
    while let Some(stack) = stacks.next_stack() {
        for call in stack.functions.windows(2) {
            let (pair, last_stack) = match edges.entry((call[0], call[1])) {
                Entry::Occupied(edge) => edge.into_mut(),
                Entry::Vacant(edge) => {
                    memory_left.charge(BYTES_PER_EDGE)?;
                    edge.insert((Comparison::default(), usize::MAX))
                }
            };
            if *last_stack != index {
                *last_stack = index;
                *pair += stack.values;
            }
        }
        index += 1;
    }
    let mut edges: Vec<(Edge, Comparison)> = edges
        .into_iter()
        .map(|(edge, (pair, _))| (edge, pair))
        .collect();
    let name = |id| folded.functions.get(id);
    edges.sort_by(|((a, b), pair), ((c, d), other)| {
        let magnitude = |pair: &Comparison| std::cmp::Reverse(pair.value().unsigned_abs());
        (magnitude(pair), name(*a), name(*b)).cmp(&(magnitude(other), name(*c), name(*d)))
    });
    Ok(edges)
}
