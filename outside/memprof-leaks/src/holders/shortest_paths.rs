//! Shortest paths from the roots to all objects, one for each.

use std::ops::ControlFlow;

use super::external::ExternalHolder;
use super::pointer_scanner::PointerScanner;
use super::{HolderTree, NO_NODE};

/// Finds the objects that the roots reach, the nearest first, each below the root or object that reaches it first.
/// Objects that roots of one rank reach come before the roots of the next rank. Lists no object as shared.
pub(super) fn find_shortest_path_tree(
    scanner: &PointerScanner<'_>,
    roots: &[ExternalHolder],
) -> HolderTree {
    let count = scanner.object_index.count();
    let mut tree = HolderTree {
        nodes: vec![NO_NODE],
        parents: vec![0],
        shared: Vec::new(),
    };
    let mut is_found = vec![0_u64; (count as usize).div_ceil(64)];
    let mut is_new = |object: u32| {
        let (word, bit) = (&mut is_found[object as usize / 64], 1 << (object % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    };
    let mut memory = scanner.new_reader();
    for same in roots.chunk_by(|one, next| one.rank == next.rank) {
        let mut group = Vec::new();
        for root in same {
            let node = tree.append_node(count + root.holder, 0);
            let new = root.targets.iter().filter(|target| is_new(**target));
            group.extend(new.map(|target| (*target, node)));
        }
        while !group.is_empty() {
            // Objects are sorted by address, so that neighbours are read at once.
            group.sort_unstable();
            let mut next = Vec::new();
            for (object, parent) in group {
                let node = tree.append_node(object, parent);
                let range = scanner.object_index.object(object);
                // The closure returns `Continue`, so all targets are visited.
                let _whole = scanner.for_each_target(object, &range, &mut memory, |target| {
                    if is_new(target) {
                        next.push((target, node));
                    }
                    ControlFlow::Continue(())
                });
            }
            group = next;
        }
    }
    tree
}

impl HolderTree {
    /// Appends a node with the index of its parent; returns its own index.
    fn append_node(&mut self, node: u32, parent: u32) -> u32 {
        self.nodes.push(node);
        self.parents.push(parent);
        self.nodes.len() as u32 - 1
    }
}
