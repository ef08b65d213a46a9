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

/// Iterates over the nodes in preorder, callees by name, as the stacks of `folded` are sorted. Needs no memory for them.
pub(crate) fn preorder(folded: &Folded) -> impl Iterator<Item = PreorderNode> {
    let first = folded.stacks.iter().next();
    let root = PreorderNode {
        function: None,
        depth: 0,
        own: first
            .filter(|stack| stack.functions.is_empty())
            .map_or_else(Comparison::default, |stack| stack.values),
    };
    let mut previous: &[StringId] = &[];
    let nodes = folded.stacks.iter().flat_map(move |stack| {
        let same = stack.functions.iter().zip(previous);
        let common = same.take_while(|(one, other)| one == other).count();
        previous = stack.functions;
        let last = stack.functions.len().wrapping_sub(1);
        let functions = stack.functions.iter().enumerate().skip(common);
        functions.map(move |(index, function)| PreorderNode {
            function: Some(*function),
            depth: index as u32 + 1,
            own: match index == last {
                true => stack.values,
                false => Comparison::default(),
            },
        })
    });
    std::iter::once(root).chain(nodes)
}

/// Fails if the nodes of the call tree, which are not built yet, would exceed the memory budget.
pub(crate) fn require_memory(folded: &Folded, mut memory_left: MemoryLeft) -> Result<()> {
    preorder(folded)
        .skip(1)
        .try_for_each(|_| memory_left.charge(BYTES_PER_NODE))
}

/// Returns the nodes in [`preorder`], with their values with callees. Fails if the nodes exceed the memory budget.
pub(crate) fn call_tree(folded: &Folded, memory_left: MemoryLeft) -> Result<Vec<Node>> {
    require_memory(folded, memory_left)?;
    let mut nodes: Vec<Node> = Vec::new();
    // Index of the last node of each depth.
    let mut path: Vec<u32> = Vec::new();
    for PreorderNode {
        function,
        depth,
        own,
    } in preorder(folded)
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
