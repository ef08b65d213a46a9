//! All pointers from objects to objects, in memory.

use std::ops::ControlFlow;

use super::edges::PointerScanner;

/// What finding dominators takes, in bytes: for each object, and for each pointer.
const OF_OBJECT: u64 = 52;
const OF_POINTER: u64 = 8;

/// Who points to whom, by the objects' numbers.
pub(super) struct PointerGraph {
    /// Where the pointers of each object begin among all; and where the last one's end.
    pub(super) first: Vec<u32>,
    pub(super) targets: Vec<u32>,
}

impl PointerGraph {
    /// Reads it; `None` where that and what is to be made of it take more memory than so many bytes.
    pub(super) fn of(edges: &PointerScanner<'_>, budget: u64) -> Option<Self> {
        let count = edges.numbers.count();
        let for_objects = u64::from(count) * OF_OBJECT;
        let limit = (budget.checked_sub(for_objects)? / OF_POINTER).min(u32::MAX.into());
        let mut graph = Self {
            first: Vec::with_capacity(count as usize + 1),
            targets: Vec::new(),
        };
        graph.first.push(0);
        let mut memory = edges.window();
        for (number, object) in edges.numbers.all().enumerate() {
            let read = edges.of(number as u32, &object, &mut memory, |target| {
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

    /// To what an object points.
    pub(super) fn targets(&self, object: u32) -> &[u32] {
        let object = object as usize;
        &self.targets[self.first[object] as usize..self.first[object + 1] as usize]
    }
}
