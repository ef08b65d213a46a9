//! One shortest path to each object.

use std::ops::ControlFlow;

use super::edges::PointerScanner;
use super::external::ExternalHolder;
use super::{HolderTree, NONE};

/// Finds the objects that roots lead to, the nearest first; roots of the first rank come before others.
pub(super) fn tree(edges: &PointerScanner<'_>, roots: &[ExternalHolder]) -> HolderTree {
    let count = edges.numbers.count();
    let mut tree = HolderTree {
        nodes: vec![NONE],
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
    let mut memory = edges.window();
    for same in roots.chunk_by(|one, next| one.rank == next.rank) {
        let mut level = Vec::new();
        for root in same {
            let place = tree.visit(count + root.holder, 0);
            let new = root.targets.iter().filter(|target| is_new(**target));
            level.extend(new.map(|target| (*target, place)));
        }
        while !level.is_empty() {
            // By address: what is near is read at once.
            level.sort_unstable();
            let mut next = Vec::new();
            for (object, parent) in level {
                let place = tree.visit(object, parent);
                let range = edges.numbers.object(object);
                // All of them: nobody stops it.
                let _whole = edges.of(object, &range, &mut memory, |target| {
                    if is_new(target) {
                        next.push((target, place));
                    }
                    ControlFlow::Continue(())
                });
            }
            level = next;
        }
    }
    tree
}

impl HolderTree {
    fn visit(&mut self, node: u32, parent: u32) -> u32 {
        self.nodes.push(node);
        self.parents.push(parent);
        self.nodes.len() as u32 - 1
    }
}
