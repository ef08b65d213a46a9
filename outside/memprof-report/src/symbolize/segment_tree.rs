//! Finds the best symbol for each of many addresses, in a time that does not grow with their overlaps.

use std::ops::Range;

/// Segment tree over ascending addresses: a candidate for a range is stored at the few nodes that cover the range,
/// and each address has the least candidate of the nodes above it.
pub(super) struct SegmentTree<T> {
    /// The second half are the leaves; node n has the children 2n and 2n + 1, node 1 is the root.
    nodes: Vec<Option<T>>,
}

impl<T: Copy + Ord> SegmentTree<T> {
    /// Creates an empty tree for `addresses` addresses, which are known by their indices.
    pub(super) fn new(addresses: usize) -> Self {
        Self {
            nodes: vec![None; 2 * addresses],
        }
    }

    /// Inserts a candidate for the addresses with the indices in `range`; of all candidates the least wins. Takes time
    /// in proportion to the logarithm of the number of addresses. Returns the number of visited nodes, for a test of
    /// this cost.
    pub(super) fn insert(&mut self, range: Range<usize>, candidate: T) -> usize {
        let leaves = self.nodes.len() / 2;
        let (mut start, mut end) = (range.start + leaves, range.end + leaves);
        let mut visited = 0;
        let mut offer = |node: &mut Option<T>| {
            visited += 1;
            if node.is_none_or(|known| candidate < known) {
                *node = Some(candidate);
            }
        };
        while start < end {
            if start % 2 == 1 {
                offer(&mut self.nodes[start]);
                start += 1;
            }
            if end % 2 == 1 {
                end -= 1;
                offer(&mut self.nodes[end]);
            }
            start /= 2;
            end /= 2;
        }
        visited
    }

    /// Returns the least candidate of each address, by index. `None` if it has none.
    pub(super) fn best_candidates(&self) -> impl Iterator<Item = Option<T>> {
        let leaves = self.nodes.len() / 2;
        (leaves..2 * leaves).map(|leaf| {
            let above = std::iter::successors(Some(leaf), |node| (*node > 1).then_some(node / 2));
            above.filter_map(|node| self.nodes[node]).min()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::SegmentTree;

    #[test]
    fn best_is_least_candidate_containing_address() {
        for addresses in 0..20 {
            let mut tree = SegmentTree::new(addresses);
            let mut expected = vec![None; addresses];
            for start in 0..addresses {
                for end in start..=addresses {
                    let candidate = (start * 7 + end * 13) % 11;
                    tree.insert(start..end, candidate);
                    for best in &mut expected[start..end] {
                        *best = Some(best.map_or(candidate, |best: usize| best.min(candidate)));
                    }
                }
            }
            assert_eq!(tree.best_candidates().collect::<Vec<_>>(), expected);
        }
    }

    /// Every symbol contains nearly every address: comparing each pair would take 100 million steps.
    #[test]
    fn overlapping_symbols_do_not_multiply_visits() {
        let visited = |count: usize| -> usize {
            let mut tree = SegmentTree::new(count);
            let offers = (0..count).map(|index| tree.insert(index / 2..count - index / 3, index));
            offers.sum()
        };
        assert!(visited(10_000) < 10_000 * 2 * 14);
        assert!(visited(20_000) < visited(10_000) * 3);
    }
}
