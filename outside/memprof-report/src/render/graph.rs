//! Who calls whom: the edges of the call graph.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::comparison::Comparison;
use crate::error::Result;
use crate::fold::Folded;
use crate::limits::MemoryLeft;
use crate::names::StringId;

/// A caller and a callee.
pub(super) type Edge = (StringId, StringId);

/// What an edge takes in memory.
const EDGE: u64 = 176;

/// The value that passed over each edge; one that a stack passes twice counts once.
pub(super) fn edges(folded: &Folded, mut room: MemoryLeft) -> Result<Vec<(Edge, Comparison)>> {
    let mut edges: HashMap<Edge, (Comparison, usize)> = HashMap::new();
    for (index, stack) in folded.stacks.iter().enumerate() {
        for call in stack.functions.windows(2) {
            let (pair, seen) = match edges.entry((call[0], call[1])) {
                Entry::Occupied(edge) => edge.into_mut(),
                Entry::Vacant(edge) => {
                    room.charge(EDGE)?;
                    edge.insert((Comparison::default(), usize::MAX))
                }
            };
            if *seen != index {
                *seen = index;
                *pair += stack.values;
            }
        }
    }
    let mut edges: Vec<(Edge, Comparison)> = edges
        .into_iter()
        .map(|(edge, (pair, _))| (edge, pair))
        .collect();
    let name = |id| folded.functions.get(id);
    edges.sort_by(|((a, b), pair), ((c, d), other)| {
        let size = |pair: &Comparison| std::cmp::Reverse(pair.value().unsigned_abs());
        (size(pair), name(*a), name(*b)).cmp(&(size(other), name(*c), name(*d)))
    });
    Ok(edges)
}
