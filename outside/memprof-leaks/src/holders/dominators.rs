//! Dominator tree, by the algorithm semi-NCA (Georgiadis, "Linear-time algorithms for dominators and related
//! problems", 2005). The iterative algorithm of crates for graphs takes a step for each pair of objects in a
//! doubly linked list, and needs hash tables for all objects.

use super::external::ExternalHolder;
use super::graph::PointerGraph;
use super::{HolderTree, NO_NODE};

/// Finds the holder of each object that the roots reach. An object that several external holders reach gets the nearest
/// of these, and is listed as shared. The nodes of the roots have the numbers after those of the objects.
pub(super) fn find_dominator_tree(graph: PointerGraph, roots: &[ExternalHolder]) -> HolderTree {
    let count = graph.first.len() as u32 - 1;
    let nearest = nearest_holders(&graph, roots, count);
    let order = depth_first_order(&graph, roots, count);
    let predecessors = collect_predecessors(graph, roots, count, &order);
    let mut parents = order.parents;
    set_dominators(&predecessors, &mut parents);
    let mut tree = HolderTree {
        nodes: order.nodes,
        parents,
        shared: Vec::new(),
    };
    // Index in the tree of each root's node; index 0 is the process.
    let mut holders = vec![0; roots.len()];
    for (index, node) in (0..).zip(&tree.nodes).skip(1) {
        if *node >= count {
            holders[(*node - count) as usize] = index;
        }
    }
    for index in 1..tree.nodes.len() {
        let node = tree.nodes[index];
        // The process is the only dominator of an object that several holders reach.
        if tree.parents[index] == 0 && node < count {
            tree.parents[index] = holders[nearest[node as usize] as usize];
            tree.shared.push(index as u32);
        }
    }
    tree
}

/// Index of each object's nearest holder, by the object's number; [`NO_NODE`] if no root reaches the object. Holders of
/// a lower rank come first, however far they are.
fn nearest_holders(graph: &PointerGraph, roots: &[ExternalHolder], count: u32) -> Vec<u32> {
    let mut nearest = vec![NO_NODE; count as usize];
    for same in roots.chunk_by(|one, next| one.rank == next.rank) {
        let mut found = Vec::new();
        for root in same {
            for target in &root.targets {
                let own = &mut nearest[*target as usize];
                if *own == NO_NODE {
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
                    if *own == NO_NODE {
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

/// Nodes in the order in which a depth-first search first visits them.
struct DfsOrder {
    nodes: Vec<u32>,
    /// Node from which each was visited first.
    parents: Vec<u32>,
    /// Index in `nodes` of each object, by its number.
    indices: Vec<u32>,
    /// For each rank, the end of the nodes that its roots reached first.
    ranks: Vec<u32>,
}

impl DfsOrder {
    /// Rank of the roots from which the node with this index was visited first.
    fn rank(&self, node: u32) -> usize {
        self.ranks.partition_point(|end| *end <= node)
    }

    /// Appends a node with the index of its parent; returns its own index. Stores the index of an object also by the
    /// object's number.
    fn append_node(&mut self, node: u32, parent: u32) -> u32 {
        let index = self.nodes.len() as u32;
        self.nodes.push(node);
        self.parents.push(parent);
        if let Some(own) = self.indices.get_mut(node as usize) {
            *own = index;
        }
        index
    }
}

/// Numbers the nodes in depth-first order, from `roots`, which are sorted by rank. Objects are the nodes below `count`,
/// external holders those from `count` on. Entry 0 of the order is an artificial root above all holders.
fn depth_first_order(graph: &PointerGraph, roots: &[ExternalHolder], count: u32) -> DfsOrder {
    let mut order = DfsOrder {
        nodes: vec![NO_NODE],
        parents: vec![0],
        indices: vec![NO_NODE; count as usize],
        ranks: Vec::new(),
    };
    // Stack of the search: node of each object whose pointers are followed, and its next pointer.
    let mut open: Vec<(u32, u32)> = Vec::new();
    for same in roots.chunk_by(|one, next| one.rank == next.rank) {
        for root in same {
            let node = order.append_node(count + root.holder, 0);
            for target in &root.targets {
                if order.indices[*target as usize] != NO_NODE {
                    continue;
                }
                open.push((
                    order.append_node(*target, node),
                    graph.first[*target as usize],
                ));
                while let Some((node, next)) = open.last_mut() {
                    let (node, object) = (*node, order.nodes[*node as usize]);
                    if *next == graph.first[object as usize + 1] {
                        open.pop();
                        continue;
                    }
                    let target = graph.targets[*next as usize];
                    *next += 1;
                    if order.indices[target as usize] == NO_NODE {
                        open.push((
                            order.append_node(target, node),
                            graph.first[target as usize],
                        ));
                    }
                }
            }
        }
        order.ranks.push(order.nodes.len() as u32);
    }
    order
}

/// Predecessors of each node in the graph, as nodes of the depth-first order.
struct Predecessors {
    first: Vec<u32>,
    nodes: Vec<u32>,
}

/// Collects for each node the nodes that point to it, except those of a later rank: an object belongs to the holders of
/// the lowest rank that reaches it. Consumes the graph to release its memory.
fn collect_predecessors(
    graph: PointerGraph,
    roots: &[ExternalHolder],
    count: u32,
    order: &DfsOrder,
) -> Predecessors {
    let mut first = vec![0; order.nodes.len() + 1];
    let for_each_edge = |visit: &mut dyn FnMut(u32, u32)| {
        // The roots were visited in the order of `roots`.
        let mut next_root = 0;
        for from in 1..order.nodes.len() as u32 {
            let node = order.nodes[from as usize];
            let targets = match node < count {
                true => graph.targets(node),
                false => {
                    visit(0, from);
                    next_root += 1;
                    &roots[next_root - 1].targets
                }
            };
            for target in targets {
                let target = order.indices[*target as usize];
                if order.rank(from) <= order.rank(target) {
                    visit(from, target);
                }
            }
        }
    };
    for_each_edge(&mut |_, target| first[target as usize + 1] += 1);
    for index in 1..first.len() {
        first[index] += first[index - 1];
    }
    let mut nodes = vec![0; first[first.len() - 1] as usize];
    let mut filled = first.clone();
    for_each_edge(&mut |from, target| {
        let end = &mut filled[target as usize];
        nodes[*end as usize] = from;
        *end += 1;
    });
    drop(graph);
    Predecessors { first, nodes }
}

/// Replaces each node's parent in the depth-first search by its immediate dominator, from Lengauer and Tarjan's
/// semidominators. Node 0 is the root.
fn set_dominators(predecessors: &Predecessors, parents: &mut [u32]) {
    let count = parents.len() as u32;
    let mut forest = Forest {
        above: parents.to_vec(),
        label: (0..count).collect(),
        semi: (0..count).collect(),
        path: Vec::new(),
    };
    for node in (1..count).rev() {
        let range = predecessors.first[node as usize]..predecessors.first[node as usize + 1];
        let mut semi = parents[node as usize];
        for predecessor in &predecessors.nodes[range.start as usize..range.end as usize] {
            let label = forest.node_with_least_semi(*predecessor, node + 1);
            semi = semi.min(forest.semi[label as usize]);
        }
        forest.semi[node as usize] = semi;
    }
    for node in 1..count as usize {
        let mut dominator = parents[node];
        while dominator > forest.semi[node] {
            dominator = parents[dominator as usize];
        }
        parents[node] = dominator;
    }
}

/// The part of the search's tree that is processed so far. Its paths are compressed when they are used.
struct Forest {
    above: Vec<u32>,
    label: Vec<u32>,
    semi: Vec<u32>,
    path: Vec<u32>,
}

impl Forest {
    /// Node with the least `semi` among `node` and those above it, up to the last one whose number is at least
    /// `linked`. Shortens the path for later calls.
    fn node_with_least_semi(&mut self, node: u32, linked: u32) -> u32 {
        let mut current = node;
        while self.above[current as usize] >= linked {
            self.path.push(current);
            current = self.above[current as usize];
        }
        while let Some(below) = self.path.pop() {
            let (upper, lower) = (self.label[current as usize], self.label[below as usize]);
            if self.semi[upper as usize] < self.semi[lower as usize] {
                self.label[below as usize] = upper;
            }
            self.above[below as usize] = self.above[current as usize];
            current = below;
        }
        self.label[node as usize]
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

    /// Holder of each node, by the nodes' `object_index`.
    fn holders(tree: &HolderTree) -> Vec<(u32, u32)> {
        let parent = |index: usize| tree.nodes[tree.parents[index] as usize];
        let mut found: Vec<_> = (1..tree.nodes.len())
            .map(|index| (tree.nodes[index], parent(index)))
            .collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn object_of_several_holders_is_held_by_their_dominator() {
        let check = |pointers: &[(u32, u32)], ranks: &[(u8, &[u32])], expected: &[(u32, u32)]| {
            let tree = find_dominator_tree(graph(4, pointers), &roots(ranks));
            assert_eq!(holders(&tree), expected, "{pointers:?}");
        };
        let diamond = [(0, 1), (0, 2), (1, 3), (2, 3)];
        check(
            &diamond,
            &[(0, &[0])],
            &[(0, 4), (1, 0), (2, 0), (3, 0), (4, NO_NODE)],
        );
        // The list is linked both ways.
        let list = [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)];
        check(
            &list,
            &[(0, &[0, 3])],
            &[(0, 4), (1, 4), (2, 4), (3, 4), (4, NO_NODE)],
        );
        // Two variables hold the same object: the nearer one is its holder.
        let both = [(0, 4), (4, NO_NODE), (5, NO_NODE)];
        check(&[], &[(0, &[0]), (0, &[])], &both);
        check(&[], &[(0, &[0]), (0, &[0])], &both);
        let farther = [(0, 4), (1, 5), (4, NO_NODE), (5, NO_NODE)];
        check(&[(0, 1)], &[(0, &[0]), (0, &[1])], &farther);
        // A stack is no holder of what a variable holds, and pointers of its objects do not change what a
        // variable holds.
        check(&[], &[(0, &[0]), (1, &[0])], &both);
        let back = [(0, 1), (2, 1)];
        let expected = [(0, 4), (1, 0), (2, 5), (4, NO_NODE), (5, NO_NODE)];
        check(&back, &[(0, &[0]), (1, &[2])], &expected);
    }

    #[test]
    fn object_of_two_holders_is_shared() {
        let both = find_dominator_tree(graph(2, &[(0, 1)]), &roots(&[(0, &[0]), (0, &[1])]));
        let shared: Vec<_> = both
            .shared
            .iter()
            .map(|index| both.nodes[*index as usize])
            .collect();
        assert_eq!(shared, [1]);
    }

    #[test]
    fn dominators_of_random_graphs_equal_those_of_petgraph() {
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
            let tree = find_dominator_tree(graph(count, &pointers), &roots(&[(0, &targets)]));
            let from_root = targets.iter().map(|target| (count, *target));
            let all = pointers.iter().copied().chain(from_root);
            let other = DiGraph::<(), ()>::from_edges(all);
            let expected = simple_fast(&other, NodeIndex::new(count as usize));
            for (node, holder) in holders(&tree) {
                let dominator = expected.immediate_dominator(NodeIndex::new(node as usize));
                let dominator = dominator.map_or(NO_NODE, |node| node.index() as u32);
                assert_eq!(holder, dominator, "{round}: {node}");
            }
        }
    }
}
