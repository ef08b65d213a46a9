//! Lists whose nodes have one link: the addresses of both neighbours, combined by XOR. Only the last node's link is a
//! plain address, that of the node before.

use crate::objects::{Object, Objects};

/// Bytes at a node's start that may have its link.
const MAX_LINK_OFFSET: u64 = 64;
/// Steps along lists for each unreachable object.
const STEPS_PER_OBJECT: u64 = 4;

/// Reads a word of a snapshot. `None` if it cannot be read.
type ReadWord<'a> = dyn FnMut(u64) -> Option<u64> + 'a;

/// Marks the unreachable nodes of lists in which each link is the XOR of both neighbours' addresses, if two nodes next
/// to them are reachable. Returns their starts. Gives up after [`STEPS_PER_OBJECT`] steps per unreachable object.
pub(crate) fn mark_xor_lists(objects: &Objects, read_word: &mut ReadWord<'_>) -> Vec<u64> {
    let mut steps = STEPS_PER_OBJECT * objects.unreachable_count();
    let mut marked = Vec::new();
    for end in objects.unreachable() {
        for offset in (0..end.size().min(MAX_LINK_OFFSET)).step_by(8) {
            let mut walk = ListWalk {
                objects,
                read_word: &mut *read_word,
                size: end.size(),
                offset,
            };
            let nodes = walk.nodes_from_end(&end, &mut steps);
            marked.extend(
                nodes
                    .into_iter()
                    .filter_map(|node| objects.mark_target(node)),
            );
        }
    }
    marked
}

/// Walk along a list whose nodes have one size and their link at one offset.
struct ListWalk<'a, 'b> {
    objects: &'a Objects,
    read_word: &'a mut ReadWord<'b>,
    size: u64,
    offset: u64,
}

impl ListWalk<'_, '_> {
    /// Follows a list from its last node `end` to the first two adjacent nodes that are reachable. Returns the starts
    /// of the unreachable nodes before these. Empty if `end` is no end of such a list, or if `steps` runs out: each
    /// node takes one.
    fn nodes_from_end(&mut self, end: &Object, steps: &mut u64) -> Vec<u64> {
        let mut nodes = Vec::new();
        let mut last = end.range.start;
        let Some(mut node) = self.read_link(last).filter(|next| self.is_node(*next)) else {
            return nodes;
        };
        while *steps > 0 {
            *steps -= 1;
            nodes.push(last);
            let next = self.read_link(node).map(|link| link ^ last);
            let Some(next) = next.filter(|next| self.is_node(*next)) else {
                break;
            };
            if self.is_marked(node) {
                // Two reachable neighbours count only if a node follows behind them, or the list begins there (0).
                let after = self.read_link(next).map(|link| link ^ node);
                let goes_on = after.is_some_and(|after| after == 0 || self.is_node(after));
                match self.is_marked(next) && goes_on {
                    true => return nodes,
                    false => break,
                }
            }
            (last, node) = (node, next);
        }
        Vec::new()
    }

    /// Link of a node, its neighbours' addresses combined by XOR. `None` if it cannot be read.
    fn read_link(&mut self, node: u64) -> Option<u64> {
        (self.read_word)(node + self.offset)
    }

    /// Whether a node may begin at an address: an object of the list's size begins there.
    fn is_node(&self, address: u64) -> bool {
        let object = self.objects.object_at(address);
        object.is_some_and(|object| object.range.start == address && object.size() == self.size)
    }

    /// Whether a node is marked as reachable.
    fn is_marked(&self, node: u64) -> bool {
        self.objects.unmarked_start(node).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::objects::Span;

    const START: u64 = 0x5555_5000_1000;

    fn node(index: u64) -> u64 {
        START + 32 * index
    }

    /// Nodes of a heap of eight, with the links at `offset`; nodes 0 and 1 are reachable.
    #[track_caller]
    fn check(links: &[(u64, u64)], offset: u64, expected: &[u64]) {
        let mut span = Span::new(START..START + 0x100, 16, 0);
        (0..8).for_each(|index| span.add_object(node(index), true));
        let objects = Objects::new(vec![span]);
        objects.mark_target(node(0));
        objects.mark_target(node(1));
        let links: HashMap<u64, u64> = links
            .iter()
            .map(|(index, link)| (node(*index) + offset, *link))
            .collect();
        let mut word = |address| Some(links.get(&address).copied().unwrap_or(0));
        let mut found = mark_xor_lists(&objects, &mut word);
        found.sort_unstable();
        let expected: Vec<_> = expected.iter().copied().map(node).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn nodes_behind_two_reachable_ones_are_held() {
        let list = [
            (0, node(1)),
            (1, node(0) ^ node(5)),
            (5, node(1) ^ node(3)),
            (3, node(5) ^ node(7)),
            (7, node(3)),
        ];
        check(&list, 8, &[3, 5, 7]);
        check(
            &[(0, node(1)), (1, node(0) ^ node(2)), (2, node(1))],
            16,
            &[2],
        );
    }

    #[test]
    fn other_unreachable_objects_are_not_held() {
        // A list of plain links, and one of parents.
        check(
            &[(2, node(3)), (3, node(4)), (4, node(1)), (1, node(0))],
            8,
            &[],
        );
        check(&[(0, node(1)), (2, node(1)), (3, node(1))], 8, &[]);
        // A list of which nothing is reachable.
        check(
            &[(2, node(3)), (3, node(2) ^ node(4)), (4, node(3))],
            8,
            &[],
        );
        // One that leads round.
        check(
            &[(2, node(3)), (3, node(2) ^ node(4)), (4, node(3) ^ node(2))],
            8,
            &[],
        );
    }
}
