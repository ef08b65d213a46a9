//! Call tree: folded stacks merged by their common prefixes.

use crate::comparison::Comparison;
use crate::error::Result;
use crate::fold::{Folded, StackCursor};
use crate::limits::MemoryLeft;
use crate::names::StringId;

/// A function in the call tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// `None` for the root.
    pub function: Option<StringId>,
    /// Index of the parent; the root is its own.
    pub parent: u32,
    /// Distance from the root.
    pub depth: u32,
    /// Value with its callees.
    pub total: Comparison,
    /// Value without its callees.
    pub own: Comparison,
}

/// Memory of a node and of its place among its parent's callees, in bytes.
const BYTES_PER_NODE: u64 = 224;

/// A node in preorder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreorderNode {
    /// `None` for the root.
    pub(crate) function: Option<StringId>,
    /// Distance from the root.
    pub(crate) depth: u32,
    /// Value without its callees.
    pub(crate) own: Comparison,
}

/// Nodes in preorder, callees by name, as the folded stacks are sorted. None of them is kept in memory.
#[derive(Debug)]
pub(crate) struct Preorder<'f> {
    stacks: StackCursor<'f>,
    /// Functions of the current stack, root first, and its values.
    functions: Vec<StringId>,
    values: Comparison,
    /// Number of functions of the current stack that were returned, or that are nodes of the stack before.
    returned: usize,
    has_root: bool,
}

/// Iterates over the nodes of the call tree in preorder, callees by name.
pub(crate) fn preorder_nodes<'f>(folded: &'f Folded<'_>) -> Preorder<'f> {
    Preorder {
        stacks: folded.stacks.cursor(),
        functions: Vec::new(),
        values: Comparison::default(),
        returned: 0,
        has_root: false,
    }
}

impl Preorder<'_> {
    /// Reads the next stack, and skips the functions at its root that are nodes of the stack before, too. Returns false
    /// after the last stack.
    fn enter_next_stack(&mut self) -> bool {
        let Some(stack) = self.stacks.next_stack() else {
            return false;
        };
        let same = stack.functions.iter().zip(&self.functions);
        self.returned = same.take_while(|(one, other)| one == other).count();
        self.functions.truncate(self.returned);
        self.functions
            .extend_from_slice(&stack.functions[self.returned..]);
        self.values = stack.values;
        true
    }
}

impl Iterator for Preorder<'_> {
    type Item = PreorderNode;

    fn next(&mut self) -> Option<PreorderNode> {
        if !self.has_root {
            self.has_root = true;
            // A stack without functions is the first one.
            let has_own = self.enter_next_stack() && self.functions.is_empty();
            return Some(PreorderNode {
                function: None,
                depth: 0,
                own: if has_own {
                    self.values
                } else {
                    Comparison::default()
                },
            });
        }
        while self.returned == self.functions.len() {
            if !self.enter_next_stack() {
                return None;
            }
        }
        let function = self.functions[self.returned];
        self.returned += 1;
        Some(PreorderNode {
            function: Some(function),
            depth: self.returned as u32,
            own: match self.returned == self.functions.len() {
                true => self.values,
                false => Comparison::default(),
            },
        })
    }
}

/// Fails if the nodes of the call tree without the root, of `bytes_per_node` each, would exceed the memory budget.
pub(crate) fn check_tree_memory(
    folded: &Folded<'_>,
    bytes_per_node: u64,
    mut memory_left: MemoryLeft,
) -> Result<()> {
    preorder_nodes(folded)
        .skip(1)
        .try_for_each(|_| memory_left.charge(bytes_per_node))
}

/// Returns the nodes of the call tree in preorder, each with its own value and the value with its callees. Fails if the
/// nodes exceed the memory budget.
pub(crate) fn call_tree(folded: &Folded<'_>, memory_left: MemoryLeft) -> Result<Vec<Node>> {
    check_tree_memory(folded, BYTES_PER_NODE, memory_left)?;
    let mut nodes: Vec<Node> = Vec::new();
    // Index of the last node of each depth.
    let mut path: Vec<u32> = Vec::new();
    for PreorderNode {
        function,
        depth,
        own,
    } in preorder_nodes(folded)
    {
        path.truncate(depth as usize);
        nodes.push(Node {
            function,
            parent: path.last().copied().unwrap_or(0),
            depth,
            total: Comparison::default(),
            own,
        });
        path.push(nodes.len() as u32 - 1);
    }
    // A node comes after its parent, so its total is complete when it is added to the parent's.
    for index in (0..nodes.len()).rev() {
        let Node { own, parent, .. } = nodes[index];
        nodes[index].total += own;
        if index > 0 {
            let total = nodes[index].total;
            nodes[parent as usize].total += total;
        }
    }
    Ok(nodes)
}

/// Returns, by node index, the indices of the node's callees, those with the largest values first.
pub(crate) fn children_by_node(nodes: &[Node]) -> Vec<Vec<u32>> {
    let mut children = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate().skip(1) {
        children[node.parent as usize].push(index as u32);
    }
    let magnitude =
        |&index: &u32| std::cmp::Reverse(nodes[index as usize].total.value().unsigned_abs());
    for list in &mut children {
        list.sort_by_key(magnitude);
    }
    children
}
