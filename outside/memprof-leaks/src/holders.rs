//! Through whom what lives is held: the dominators of the heap's objects where memory allows, else one shortest
//! path to each.
//!
//! Variables come first, then stacks, other memory, registers and the kernel: of what a variable leads to, nobody
//! else is said to be the holder. Else a stale word on a stack would hide the owner of all that it leads to.

mod dominators;
mod edges;
mod external;
mod graph;
mod groups;
mod holder;
mod kinds;
mod samples;
mod shortest_paths;

use self::edges::PointerScanner;
use self::external::ExternalHolders;
use self::graph::PointerGraph;
pub use self::groups::{GroupKind, HolderGroup};
use self::groups::{HolderGroups, levels};
pub use self::holder::Holder;
pub use self::kinds::HeapObjectKind;
use self::kinds::HeapObjectKinds;
pub use self::samples::{HeldSamples, ObjectTotals, SampledGroup};
use crate::analysis::{AnalysisOptions, AnalysisReport, AnalyzedSnapshot, OnPhase, Phase};
use crate::error::Error;
use crate::names::NameResolver;
use crate::objects::ObjectIndex;
use crate::snapshot::CopyTarget;

/// No object, and no place in a tree.
const NONE: u32 = u32::MAX;
/// What finding holders takes at least, in bytes for each object: its kind (4), its place in the tree (8), that it
/// waits to be looked at (8), of which its level and its nearest sample take the place later.
const OF_OBJECT: u64 = 21;

/// Who holds the memory of a process.
#[derive(Clone, Debug)]
pub struct Holding {
    /// Pauses, memory read and warnings of the look.
    pub looks: AnalysisReport,
    /// How holders were found.
    pub method: Method,
    /// Objects of one kind with the same holders, each behind the one that holds it. The first one is the
    /// whole process.
    pub levels: Vec<HolderGroup>,
    /// The object that was asked for, where it lives and is held.
    pub object: Option<HolderPath>,
    /// The sampled objects, where they were asked for.
    pub samples: Option<HeldSamples>,
}

/// What is asked for besides the levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    #[default]
    None,
    /// The object in which this address lies.
    Object(u64),
    /// The objects that are samples of a profiler, with their stacks.
    Samples,
}

/// How holders were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// All that is reached only through a holder would be gone with it.
    Dominators,
    /// One shortest path leads to each object: others may lead there too.
    ShortestPath,
}

/// One object, and what holds it.
#[derive(Clone, Debug)]
pub struct HolderPath {
    /// The object itself first, its outermost holder last.
    pub links: Vec<(GroupKind, Option<u64>)>,
    /// What is held through it, with itself.
    pub objects: u64,
    /// In bytes.
    pub bytes: u64,
}

/// Objects and holders, each behind the one that holds it; the first one holds all.
struct HolderTree {
    /// Numbers of objects, or behind them of holders.
    nodes: Vec<u32>,
    /// The place of the one that holds it. An object's is before its own, a holder's anywhere.
    parents: Vec<u32>,
    /// The places of objects that other holders lead to as well, in order.
    shared: Vec<u32>,
}

/// Looks at a process once.
///
/// # Errors
/// Why not; the process goes on as before.
pub fn holders(
    pid: u32,
    detail: Detail,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Holding, Error> {
    let subject = CopyTarget::inspect(pid)?;
    let mut looks = AnalysisReport::new(&subject.status, options);
    let found = looks.with_snapshot(&subject, options, progress, |looks, seen| {
        progress(Phase::Mark(looks.objects));
        find_holders(&seen, looks, detail)
    })?;
    // By then the copy is gone, of which every page counts that the process writes to.
    let samples = found.samples.map(|samples| {
        progress(Phase::Symbolize);
        samples.named(pid, &mut looks)
    });
    Ok(Holding {
        looks,
        method: found.method,
        levels: found.levels,
        object: found.object,
        samples,
    })
}

/// What was found in a snapshot.
struct FoundHolders {
    method: Method,
    levels: Vec<HolderGroup>,
    object: Option<HolderPath>,
    samples: Option<samples::UnsymbolizedSamples>,
}

fn find_holders(
    seen: &AnalyzedSnapshot<'_>,
    looks: &mut AnalysisReport,
    detail: Detail,
) -> Result<FoundHolders, Error> {
    let numbers = ObjectIndex::new(&seen.objects);
    let numbers = numbers.ok_or_else(|| Error::NoHeap("it has too many objects".to_owned()))?;
    let mut budget = seen.budget;
    let sampled = match detail {
        Detail::Samples => Some(samples::SampledObjects::of(seen, &numbers)?),
        Detail::None | Detail::Object(_) => None,
    };
    budget.take(sampled.as_ref().map_or(0, samples::SampledObjects::memory))?;
    budget.require(looks.objects * OF_OBJECT)?;
    let mut names = NameResolver::new(&seen.view);
    let kinds = HeapObjectKinds::of(&numbers, &mut names);
    let edges = PointerScanner::new(seen, &numbers);
    let holders = ExternalHolders::find(seen, &edges, &mut names, &mut budget)?;
    budget.require(looks.objects * OF_OBJECT)?;
    let (method, tree) = match PointerGraph::of(&edges, budget.left()) {
        Some(graph) => (Method::Dominators, dominators::tree(graph, &holders.roots)),
        None => (
            Method::ShortestPath,
            shortest_paths::tree(&edges, &holders.roots),
        ),
    };
    looks.searched = edges.searched();
    seen.snapshot.require_room()?;
    let room = budget.left().saturating_sub(looks.objects * OF_OBJECT);
    let HolderGroups {
        levels,
        levels_of,
        is_whole,
    } = levels(&tree, &numbers, &kinds, &holders, room);
    if !is_whole {
        looks.warn("some objects are counted with what holds them: to show them takes more memory (--max-memory)".to_owned());
    }
    let object = match detail {
        Detail::Object(address) => Some(address),
        Detail::None | Detail::Samples => None,
    };
    let object = object.and_then(|address| {
        let number = numbers.number(address)?;
        let place = tree.nodes.iter().position(|node| *node == number)?;
        Some(chain(&tree, place as u32, &numbers, &levels, &levels_of))
    });
    let samples =
        sampled.map(|sampled| sampled.restrict_to_held(seen, &tree, &numbers, &levels_of));
    Ok(FoundHolders {
        method,
        levels,
        object,
        samples,
    })
}

fn chain(
    tree: &HolderTree,
    place: u32,
    numbers: &ObjectIndex<'_>,
    levels: &[HolderGroup],
    levels_of: &[u32],
) -> HolderPath {
    let mut chain = HolderPath {
        links: Vec::new(),
        objects: 0,
        bytes: 0,
    };
    let address = |node: u32| (node < numbers.count()).then(|| numbers.object(node).range.start);
    let mut at = place;
    while at != 0 {
        let link = levels[levels_of[at as usize] as usize].link.clone();
        chain.links.push((link, address(tree.nodes[at as usize])));
        at = tree.parents[at as usize];
    }
    let mut is_inside = vec![false; tree.nodes.len()];
    for at in place as usize..tree.nodes.len() {
        is_inside[at] = at == place as usize || is_inside[tree.parents[at] as usize];
        if is_inside[at] {
            chain.objects += 1;
            chain.bytes += numbers.object(tree.nodes[at]).size();
        }
    }
    chain
}
