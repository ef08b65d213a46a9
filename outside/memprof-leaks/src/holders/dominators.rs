//! The tree of dominators, by the algorithm "semi-NCA" (Georgiadis, "Linear-time algorithms for dominators and
//! related problems", 2005): the graph crates' iterative one takes a step for each pair of objects in lists that
//! are linked both ways, and hash tables for each object.

use super::external::ExternalHolder;
use super::graph::PointerGraph;
use super::{HolderTree, NONE};

/// Finds what holds each object that the roots lead to. A root's node has the number behind all objects'.
pub(super) fn tree(graph: PointerGraph, roots: &[ExternalHolder]) -> HolderTree {
    let count = graph.first.len() as u32 - 1;
    let nearest = nearest(&graph, roots, count);
    let walk = walk(&graph, roots, count);
    let before = before(graph, roots, count, &walk);
    let mut parents = walk.parents;
    dominate(&before, &mut parents);
    let mut tree = HolderTree {
        nodes: walk.nodes,
        parents,
        shared: Vec::new(),
    };
    let mut holders = vec![0; roots.len()];
    for (place, node) in (0..).zip(&tree.nodes).skip(1) {
        if *node >= count {
            holders[(*node - count) as usize] = place;
        }
    }
    for place in 1..tree.nodes.len() {
        let node = tree.nodes[place];
        if tree.parents[place] == 0 && node < count {
            tree.parents[place] = holders[nearest[node as usize] as usize];
            tree.shared.push(place as u32);
        }
    }
    tree
}

/// By the number of an object: the nearest of its holders.
fn nearest(graph: &PointerGraph, roots: &[ExternalHolder], count: u32) -> Vec<u32> {
    let mut nearest = vec![NONE; count as usize];
    for same in roots.chunk_by(|one, next| one.rank == next.rank) {
        let mut found = Vec::new();
        for root in same {
            for target in &root.targets {
                let own = &mut nearest[*target as usize];
                if *own == NONE {
                    *own = root.holder;
                    found.push(*target);
                }
            }
        }
        while !found.is_empty() {
            let mut next = Vec::new();
            for object in found {
                let holder = nearest[object as usize];
                for target in graph.targets(object) {
                    let own = &mut nearest[*target as usize];
                    if *own == NONE {
                        *own = holder;
                        next.push(*target);
                    }
                }
            }
            found = next;
        }
    }
    nearest
}

/// The objects in the order in which a search first finds them, depth first.
struct DfsOrder {
    nodes: Vec<u32>,
    /// Through which each was found.
    parents: Vec<u32>,
    /// By the number of an object: its place in `nodes`.
    places: Vec<u32>,
    /// Where the places of each rank of roots end.
    ranks: Vec<u32>,
}

impl DfsOrder {
    fn rank(&self, place: u32) -> usize {
        self.ranks.partition_point(|end| *end <= place)
    }

    fn visit(&mut self, node: u32, parent: u32) -> u32 {
        let place = self.nodes.len() as u32;
        self.nodes.push(node);
        self.parents.push(parent);
        if let Some(own) = self.places.get_mut(node as usize) {
            *own = place;
        }
        place
    }
}

fn walk(graph: &PointerGraph, roots: &[ExternalHolder], count: u32) -> DfsOrder {
    let mut walk = DfsOrder {
        nodes: vec![NONE],
        parents: vec![0],
        places: vec![NONE; count as usize],
        ranks: Vec::new(),
    };
    // Objects whose pointers are followed: the place, and the next pointer.
    let mut open: Vec<(u32, u32)> = Vec::new();
    for same in roots.chunk_by(|one, next| one.rank == next.rank) {
        for root in same {
            let place = walk.visit(count + root.holder, 0);
            for target in &root.targets {
                if walk.places[*target as usize] != NONE {
                    continue;
                }
                open.push((walk.visit(*target, place), graph.first[*target as usize]));
                while let Some((at, next)) = open.last_mut() {
                    let (at, node) = (*at, walk.nodes[*at as usize]);
                    if *next == graph.first[node as usize + 1] {
                        open.pop();
                        continue;
                    }
                    let target = graph.targets[*next as usize];
                    *next += 1;
                    if walk.places[target as usize] == NONE {
                        open.push((walk.visit(target, at), graph.first[target as usize]));
                    }
                }
            }
        }
        walk.ranks.push(walk.nodes.len() as u32);
    }
    walk
}

/// Who points to each, by places.
struct Predecessors {
    first: Vec<u32>,
    places: Vec<u32>,
}

fn before(
    graph: PointerGraph,
    roots: &[ExternalHolder],
    count: u32,
    walk: &DfsOrder,
) -> Predecessors {
    let mut first = vec![0; walk.nodes.len() + 1];
    let each = |work: &mut dyn FnMut(u32, u32)| {
        let mut next_root = 0;
        for place in 1..walk.nodes.len() as u32 {
            let node = walk.nodes[place as usize];
            let targets = match node < count {
                true => graph.targets(node),
                false => {
                    work(0, place);
                    next_root += 1;
                    &roots[next_root - 1].targets
                }
            };
            for target in targets {
                let target = walk.places[*target as usize];
                if walk.rank(place) <= walk.rank(target) {
                    work(place, target);
                }
            }
        }
    };
    each(&mut |_, target| first[target as usize + 1] += 1);
    for at in 1..first.len() {
        first[at] += first[at - 1];
    }
    let mut places = vec![0; first[first.len() - 1] as usize];
    let mut filled = first.clone();
    each(&mut |place, target| {
        let at = &mut filled[target as usize];
        places[*at as usize] = place;
        *at += 1;
    });
    drop(graph);
    Predecessors { first, places }
}

/// Makes each one's parent in the search its dominator.
fn dominate(before: &Predecessors, parents: &mut [u32]) {
    let count = parents.len() as u32;
    let mut forest = Forest {
        above: parents.to_vec(),
        label: (0..count).collect(),
        semi: (0..count).collect(),
        path: Vec::new(),
    };
    for at in (1..count).rev() {
        let range = before.first[at as usize]..before.first[at as usize + 1];
        let mut semi = parents[at as usize];
        for place in &before.places[range.start as usize..range.end as usize] {
            let label = forest.least(*place, at + 1);
            semi = semi.min(forest.semi[label as usize]);
        }
        forest.semi[at as usize] = semi;
    }
    for at in 1..count as usize {
        let mut dominator = parents[at];
        while dominator > forest.semi[at] {
            dominator = parents[dominator as usize];
        }
        parents[at] = dominator;
    }
}

/// The part of the search's tree from some place on, whose paths are compressed as they are used.
struct Forest {
    above: Vec<u32>,
    label: Vec<u32>,
    semi: Vec<u32>,
    path: Vec<u32>,
}

impl Forest {
    /// Of those above a place, from the place `linked` on: the one with the least `semi`.
    fn least(&mut self, place: u32, linked: u32) -> u32 {
        let mut at = place;
        while self.above[at as usize] >= linked {
            self.path.push(at);
            at = self.above[at as usize];
        }
        while let Some(below) = self.path.pop() {
            let (upper, lower) = (self.label[at as usize], self.label[below as usize]);
            if self.semi[upper as usize] < self.semi[lower as usize] {
                self.label[below as usize] = upper;
            }
            self.above[below as usize] = self.above[at as usize];
            at = below;
        }
        self.label[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use petgraph::algo::dominators::simple_fast;
    use petgraph::graph::{DiGraph, NodeIndex};

    use super::*;

    fn graph(count: u32, pointers: &[(u32, u32)]) -> PointerGraph {
        let mut graph = PointerGraph {
            first: vec![0],
            targets: Vec::new(),
        };
        for object in 0..count {
            let of_object = pointers.iter().filter(|pointer| pointer.0 == object);
            graph.targets.extend(of_object.map(|pointer| pointer.1));
            graph.first.push(graph.targets.len() as u32);
        }
        graph
    }

    fn roots(ranks: &[(u8, &[u32])]) -> Vec<ExternalHolder> {
        let roots = ranks.iter().enumerate();
        let root = |(holder, (rank, targets)): (usize, &(u8, &[u32]))| ExternalHolder {
            holder: holder as u32,
            rank: *rank,
            targets: targets.to_vec(),
        };
        roots.map(root).collect()
    }

    /// Who holds each node that is held, by the nodes' numbers.
    fn holders(tree: &HolderTree) -> Vec<(u32, u32)> {
        let parent = |place: usize| tree.nodes[tree.parents[place] as usize];
        let mut found: Vec<_> = (1..tree.nodes.len())
            .map(|place| (tree.nodes[place], parent(place)))
            .collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn what_several_hold_is_held_by_the_one_before_them() {
        let check = |pointers: &[(u32, u32)], ranks: &[(u8, &[u32])], expected: &[(u32, u32)]| {
            let tree = tree(graph(4, pointers), &roots(ranks));
            assert_eq!(holders(&tree), expected, "{pointers:?}");
        };
        let diamond = [(0, 1), (0, 2), (1, 3), (2, 3)];
        check(
            &diamond,
            &[(0, &[0])],
            &[(0, 4), (1, 0), (2, 0), (3, 0), (4, NONE)],
        );
        // Linked both ways.
        let list = [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)];
        check(
            &list,
            &[(0, &[0, 3])],
            &[(0, 4), (1, 4), (2, 4), (3, 4), (4, NONE)],
        );
        // Two variables hold the same: the nearer one is told.
        let both = [(0, 4), (4, NONE), (5, NONE)];
        check(&[], &[(0, &[0]), (0, &[])], &both);
        check(&[], &[(0, &[0]), (0, &[0])], &both);
        let farther = [(0, 4), (1, 5), (4, NONE), (5, NONE)];
        check(&[(0, 1)], &[(0, &[0]), (0, &[1])], &farther);
        // A stack does not count where a variable holds it, nor what the stack's own objects point to.
        check(&[], &[(0, &[0]), (1, &[0])], &both);
        let back = [(0, 1), (2, 1)];
        let expected = [(0, 4), (1, 0), (2, 5), (4, NONE), (5, NONE)];
        check(&back, &[(0, &[0]), (1, &[2])], &expected);
    }

    #[test]
    fn what_others_hold_too_is_marked() {
        let both = tree(graph(2, &[(0, 1)]), &roots(&[(0, &[0]), (0, &[1])]));
        let shared: Vec<_> = both
            .shared
            .iter()
            .map(|place| both.nodes[*place as usize])
            .collect();
        assert_eq!(shared, [1]);
    }

    #[test]
    fn the_dominators_of_random_graphs_are_those_of_another_algorithm() {
        let mut state = 1_u32;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for round in 0..300 {
            let count = 1 + random(40);
            let pointers: Vec<_> = (0..random(3 * count))
                .map(|_| (random(count), random(count)))
                .collect();
            let targets: Vec<_> = (0..1 + random(3)).map(|_| random(count)).collect();
            let tree = tree(graph(count, &pointers), &roots(&[(0, &targets)]));
            let from_root = targets.iter().map(|target| (count, *target));
            let all = pointers.iter().copied().chain(from_root);
            let other = DiGraph::<(), ()>::from_edges(all);
            let expected = simple_fast(&other, NodeIndex::new(count as usize));
            for (node, holder) in holders(&tree) {
                let dominator = expected.immediate_dominator(NodeIndex::new(node as usize));
                let dominator = dominator.map_or(NONE, |node| node.index() as u32);
                assert_eq!(holder, dominator, "{round}: {node}");
            }
        }
    }
}
