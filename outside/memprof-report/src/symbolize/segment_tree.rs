//! The best symbol around each of many addresses, in a time that overlapping symbols do not multiply.

use std::ops::Range;

/// A tree over addresses in ascending order: a candidate for a range is kept at the few nodes that make up the
/// range, and an address has the least of those above it.
pub(super) struct SegmentTree<T> {
    /// The leaves are the second half; node n has the children 2n and 2n + 1, node 1 is the root.
    nodes: Vec<Option<T>>,
}

impl<T: Copy + Ord> SegmentTree<T> {
    /// For so many addresses.
    pub(super) fn new(addresses: usize) -> Self {
        Self {
            nodes: vec![None; 2 * addresses],
        }
    }

    /// Offers a candidate to the addresses in `range`; returns how many nodes were looked at.
    pub(super) fn insert(&mut self, range: Range<usize>, candidate: T) -> usize {
        let leaves = self.nodes.len() / 2;
        let (mut start, mut end) = (range.start + leaves, range.end + leaves);
        let mut visited = 0;
        let mut put = |node: &mut Option<T>| {
            visited += 1;
            if node.is_none_or(|known| candidate < known) {
                *node = Some(candidate);
            }
        };
        while start < end {
            if start % 2 == 1 {
                put(&mut self.nodes[start]);
                start += 1;
            }
            if end % 2 == 1 {
                end -= 1;
                put(&mut self.nodes[end]);
            }
            start /= 2;
            end /= 2;
        }
        visited
    }

    /// By address: the least candidate.
    pub(super) fn best(&self) -> impl Iterator<Item = Option<T>> {
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
    fn each_address_has_the_least_candidate_around_it() {
        for addresses in 0..20 {
            let mut narrowest = SegmentTree::new(addresses);
            let mut expected = vec![None; addresses];
            for start in 0..addresses {
                for end in start..=addresses {
                    let candidate = (start * 7 + end * 13) % 11;
                    narrowest.insert(start..end, candidate);
                    for best in &mut expected[start..end] {
                        *best = Some(best.map_or(candidate, |best: usize| best.min(candidate)));
                    }
                }
            }
            assert_eq!(narrowest.best().collect::<Vec<_>>(), expected);
        }
    }

    /// Every symbol around every address: one comparison for each pair would be 100 million.
    #[test]
    fn overlapping_symbols_do_not_multiply() {
        let visited = |count: usize| -> usize {
            let mut narrowest = SegmentTree::new(count);
            let offers =
                (0..count).map(|index| narrowest.insert(index / 2..count - index / 3, index));
            offers.sum()
        };
        assert!(visited(10_000) < 10_000 * 2 * 14);
        assert!(visited(20_000) < visited(10_000) * 3);
    }
}
