//! Call tree: folded stacks merged by their common prefixes.

use crate::comparison::Comparison;
use crate::error::Result;
use crate::fold::Folded;
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

/// Memory of a node and of the output made from it, in bytes.
const BYTES_PER_NODE: u64 = 224;

/// Returns the nodes in preorder, callees sorted by name, because the stacks of `folded` are sorted so. Fails if the
/// nodes exceed the memory budget.
pub(crate) fn call_tree(folded: &Folded, mut memory_left: MemoryLeft) -> Result<Vec<Node>> {
    let root = Node {
        function: None,
        parent: 0,
        depth: 0,
        total: Comparison::default(),
        own: Comparison::default(),
    };
    let mut nodes = vec![root];
    let mut path: Vec<usize> = vec![0];
    for stack in &folded.stacks {
        let common = stack
            .functions
            .iter()
            .zip(&path[1..])
            .take_while(|&(&function, &node)| nodes[node].function == Some(function))
            .count();
        path.truncate(1 + common);
        for &function in &stack.functions[common..] {
            memory_left.charge(BYTES_PER_NODE)?;
            let parent = path[path.len() - 1];
            path.push(nodes.len());
            nodes.push(Node {
                function: Some(function),
                parent: parent as u32,
                depth: nodes[parent].depth + 1,
                ..root
            });
        }
        nodes[path[path.len() - 1]].own += stack.values;
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

/// Returns the callees of each node as indices of nodes, the largest first.
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
