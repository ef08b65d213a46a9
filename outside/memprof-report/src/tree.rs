//! The call tree: collapsed stacks merged by their common beginnings.

use crate::comparison::Comparison;
use crate::error::Result;
use crate::fold::Folded;
use crate::limits::MemoryLeft;
use crate::names::StringId;

/// A function at one place of the call tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// None for the root.
    pub function: Option<StringId>,
    /// Its index; the root is its own parent.
    pub parent: u32,
    /// 0 for the root.
    pub depth: u32,
    /// With its callees.
    pub total: Comparison,
    /// Without.
    pub own: Comparison,
}

/// What a node takes in memory, with what is made of it.
const NODE: u64 = 224;

/// The nodes, each before its callees, these in the order of their names.
pub(crate) fn tree(folded: &Folded, mut room: MemoryLeft) -> Result<Vec<Node>> {
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
            room.charge(NODE)?;
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

/// The callees of each node, the largest first.
pub(crate) fn children(nodes: &[Node]) -> Vec<Vec<u32>> {
    let mut children = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate().skip(1) {
        children[node.parent as usize].push(index as u32);
    }
    let size = |&index: &u32| std::cmp::Reverse(nodes[index as usize].total.value().unsigned_abs());
    for list in &mut children {
        list.sort_by_key(size);
    }
    children
}
