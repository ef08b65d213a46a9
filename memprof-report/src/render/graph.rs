//! Who calls whom: the edges of the call graph.

use std::collections::HashMap;

use crate::fold::Folded;
use crate::names::StringId;
use crate::table::Pair;

/// A caller and a callee.
pub(super) type Edge = (StringId, StringId);

/// The value that passed over each edge; one that a stack passes twice counts once.
pub(super) fn edges(folded: &Folded) -> Vec<(Edge, Pair)> {
    let mut edges: HashMap<Edge, (Pair, usize)> = HashMap::new();
    for (index, stack) in folded.stacks.iter().enumerate() {
        for call in stack.functions.windows(2) {
            let (pair, seen) = edges
                .entry((call[0], call[1]))
                .or_insert((Pair::default(), usize::MAX));
            if *seen != index {
                *seen = index;
                pair.add(stack.new, stack.base);
            }
        }
    }
    let mut edges: Vec<(Edge, Pair)> = edges
        .into_iter()
        .map(|(edge, (pair, _))| (edge, pair))
        .collect();
    let name = |id| folded.functions.get(id);
    edges.sort_by(|((a, b), pair), ((c, d), other)| {
        let size = |pair: &Pair| std::cmp::Reverse(pair.value().unsigned_abs());
        (size(pair), name(*a), name(*b)).cmp(&(size(other), name(*c), name(*d)))
    });
    edges
}
