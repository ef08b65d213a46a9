//! Graph of all pointers between objects.

use std::ops::ControlFlow;

use super::pointer_scanner::PointerScanner;

/// Bytes per object to find dominators: its first pointer and its nearest holder (8), the depth-first order and its
/// stack (20), its first predecessor, twice (8), and the forest (16).
const BYTES_PER_OBJECT: u64 = 52;
/// Bytes per pointer to find dominators: its target and its predecessor.
const BYTES_PER_POINTER: u64 = 8;

/// Pointers between objects, by the objects' `object_index`.
pub(super) struct PointerGraph {
    /// Index of each object's first pointer in `targets`, and the number of all pointers.
    pub(super) first: Vec<u32>,
    pub(super) targets: Vec<u32>,
}

impl PointerGraph {
    /// Reads the pointers of all objects. `None` if the graph and its dominators need more than `budget` bytes, or if
    /// there are more than `u32::MAX` pointers.
    pub(super) fn read(scanner: &PointerScanner<'_>, budget: u64) -> Option<Self> {
        let count = scanner.object_index.count();
        let for_objects = u64::from(count) * BYTES_PER_OBJECT;
        let limit = (budget.checked_sub(for_objects)? / BYTES_PER_POINTER).min(u32::MAX.into());
        let mut graph = Self {
            first: Vec::with_capacity(count as usize + 1),
            targets: Vec::new(),
        };
        graph.first.push(0);
        let mut memory = scanner.new_reader();
        for (number, object) in scanner.object_index.all().enumerate() {
            let read = scanner.for_each_target(number as u32, &object, &mut memory, |target| {
                if graph.targets.len() as u64 >= limit {
                    return ControlFlow::Break(());
                }
                graph.targets.push(target);
                ControlFlow::Continue(())
            });
            if read.is_break() {
                return None;
            }
            graph.first.push(graph.targets.len() as u32);
        }
        Some(graph)
    }

    /// Numbers of the objects to which an object points.
    pub(super) fn targets(&self, object: u32) -> &[u32] {
        let object = object as usize;
        &self.targets[self.first[object] as usize..self.first[object + 1] as usize]
    }
}
