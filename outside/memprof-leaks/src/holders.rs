//! Finds the holders of reachable memory: by the dominators of the heap's objects if memory allows, else by
//! one shortest path to each object.
//!
//! Variables come first, then stacks, other memory, registers and the kernel: an object that a variable
//! reaches is not assigned to any later holder. Otherwise a stale word on a stack would hide the owner of
//! everything that it reaches.

mod compact_paths;
mod dominators;
mod external;
mod graph;
mod groups;
mod holder;
mod kinds;
mod pointer_scanner;
mod python_pointers;
mod samples;
mod shortest_paths;
mod thread_memory;

use memprof_ptrace::ProgramWatch;

use self::external::ExternalHolders;
use self::graph::PointerGraph;
pub use self::groups::{GroupKind, HolderGroup};
use self::groups::{HolderGroups, group_by_kind};
pub use self::holder::Holder;
pub use self::kinds::HeapObjectKind;
use self::kinds::HeapObjectKinds;
use self::pointer_scanner::PointerScanner;
pub use self::samples::{HeldSamples, ObjectTotals, SampledGroup};
use crate::analysis::{AnalysisOptions, AnalysisReport, AnalyzedSnapshot, OnPhase, Phase};
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::names::NameResolver;
use crate::objects::ObjectIndex;
use crate::snapshot::CopyTarget;

/// Stands for no object number, or no node index.
const NO_NODE: u32 = u32::MAX;
/// Least bytes per object to find holders: its kind (4), its tree node (8), its queue entry (8), and one byte to spare.
/// Its group and its nearest sample reuse the memory of the queue entry later.
const BYTES_PER_OBJECT: u64 = 21;

/// Holders of a process's memory.
#[derive(Clone, Debug)]
pub struct Holding {
    /// Pauses, scanned memory and warnings of the analysis.
    pub report: AnalysisReport,
    /// Method by which holders were found.
    pub method: Method,
    /// Groups of objects of one kind with the same holders, each after the group that holds it. The first group is the
    /// whole process.
    pub groups: Vec<HolderGroup>,
    /// The requested object, if it is in use and reachable.
    pub object: Option<HolderPath>,
    /// The sampled objects, if requested.
    pub samples: Option<HeldSamples>,
}

/// Requested details besides the groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing besides the groups.
    #[default]
    None,
    /// The object that contains this address.
    Object(u64),
    /// The objects that a profiler has sampled, with their stacks.
    Samples,
}

/// Method by which holders are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Dominators: all that a holder holds would be unreachable without it.
    Dominators,
    /// One shortest path to each object: other holders may reach it, too.
    ShortestPath,
}

/// One object, and the chain of its holders.
#[derive(Clone, Debug)]
pub struct HolderPath {
    /// Kind and address of each element: first the object itself, last its outermost holder, which has no
    /// address.
    pub steps: Vec<(GroupKind, Option<u64>)>,
    /// Number of objects that the object holds, including itself.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// Tree of objects and holders, each node after the one that holds it. The first node is the process.
struct HolderTree {
    /// Object number of each node. Holders outside the heap have the numbers that follow those of the objects.
    nodes: Vec<u32>,
    /// Index of each node's holder. It precedes an object's node; a holder's node may be anywhere.
    parents: Vec<u32>,
    /// Indices of objects that other holders reach, too; sorted.
    shared: Vec<u32>,
}

/// Takes a snapshot of a process, and finds the holders of its memory. `detail` requests one object's path or the
/// sampled objects besides; `progress` is called at the start of each phase.
///
/// # Errors
/// A reason why the process was not analyzed; it runs on as before.
pub fn find_process_holders(
    pid: u32,
    detail: Detail,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Holding, Error> {
    let program = ProgramWatch::open(pid);
    let holding = find_holding(pid, detail, options, progress);
    holding.map_err(|error| program.explain_error(error, Error::may_be_exit_or_exec))
}

/// Takes a snapshot, finds the holders in it, and symbolizes the samples. An error does not say yet whether the process
/// ended or executed another program meanwhile: the caller adds that.
fn find_holding(
    pid: u32,
    detail: Detail,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Holding, Error> {
    let target = CopyTarget::inspect(pid)?;
    let mut report = AnalysisReport::new(&target.status, options);
    let found = report.with_snapshot(&target, options, progress, |report, analyzed| {
        progress(Phase::Mark(report.objects));
        find_holders_in_snapshot(&analyzed, report, detail)
    })?;
    // The stacks are symbolized after the snapshot is released, because the kernel duplicates every page that
    // the process writes until then.
    let samples = found.samples.map(|samples| {
        progress(Phase::Symbolize);
        samples.symbolize(pid, &mut report)
    });
    Ok(Holding {
        report,
        method: found.method,
        groups: found.groups,
        object: found.object,
        samples,
    })
}

/// Result of [`find_holders_in_snapshot`]; the samples are not symbolized yet.
struct FoundHolders {
    method: Method,
    groups: Vec<HolderGroup>,
    object: Option<HolderPath>,
    samples: Option<samples::UnsymbolizedSamples>,
}

/// Finds the holders in a snapshot: by dominators if the memory budget allows, else by shortest paths. If even that
/// takes too much memory, and no detail is requested, finds the groups only. With an address as `detail`, the result
/// also has the path from the object at this address to its outermost holder. Fails with `NoHeap` if there are too many
/// objects, with `NoSamples` if samples are requested and there is none, with `Memory` if the budget is too small, and
/// with `Headroom` or `CopyEnded` if the machine's memory runs short meanwhile.
fn find_holders_in_snapshot(
    analyzed: &AnalyzedSnapshot<'_>,
    report: &mut AnalysisReport,
    detail: Detail,
) -> Result<FoundHolders, Error> {
    let object_index = ObjectIndex::new(&analyzed.objects);
    let object_index =
        object_index.ok_or_else(|| Error::NoHeap("it has too many objects".to_owned()))?;
    let mut budget = analyzed.budget;
    let sampled = match detail {
        Detail::Samples => Some(samples::SampledObjects::find(analyzed, &object_index)?),
        Detail::None | Detail::Object(_) => None,
    };
    budget.reserve(
        sampled
            .as_ref()
            .map_or(0, samples::SampledObjects::memory_size),
    )?;
    let mut names = NameResolver::new(&analyzed.view, analyzed.python.as_ref());
    let scanner = PointerScanner::new(analyzed, &object_index, &mut budget)?;
    for warning in &scanner.python.warnings {
        report.add_warning(warning.clone());
    }
    report.searched = scanner.searched_bytes();
    let required = budget.require_bytes(report.objects * BYTES_PER_OBJECT);
    if required.is_err() && matches!(detail, Detail::None) {
        return find_groups_only(analyzed, report, &scanner, &mut names, budget);
    }
    required?;
    let kinds = HeapObjectKinds::read(&object_index, &mut names);
    warn_of_unread_types(&names, report);
    let holders = ExternalHolders::find(analyzed, &scanner, &mut names, &mut budget)?;
    budget.require_bytes(report.objects * BYTES_PER_OBJECT)?;
    let (method, tree) = match PointerGraph::read(&scanner, budget.remaining()) {
        Some(graph) => (
            Method::Dominators,
            dominators::find_dominator_tree(graph, &holders.roots),
        ),
        None => (
            Method::ShortestPath,
            shortest_paths::find_shortest_path_tree(&scanner, &holders.roots),
        ),
    };
    analyzed.snapshot.require_headroom()?;
    let max_bytes = budget
        .remaining()
        .saturating_sub(report.objects * BYTES_PER_OBJECT);
    let HolderGroups {
        groups,
        group_of,
        is_complete,
    } = group_by_kind(&tree, &object_index, &kinds, &holders, max_bytes);
    warn_of_incomplete_groups(is_complete, report);
    let object = match detail {
        Detail::Object(address) => Some(address),
        Detail::None | Detail::Samples => None,
    };
    let object = object.and_then(|address| {
        let number = object_index.number(address)?;
        let position = tree.nodes.iter().position(|node| *node == number)?;
        Some(holder_path(
            &tree,
            position as u32,
            &object_index,
            &groups,
            &group_of,
        ))
    });
    let samples = sampled
        .map(|sampled| sampled.restrict_to_reachable(analyzed, &tree, &object_index, &group_of));
    Ok(FoundHolders {
        method,
        groups,
        object,
        samples,
    })
}

/// Finds the groups of objects by shortest paths, but no path of one object and no samples: this takes less memory per
/// object. Fails with `Memory` if the budget is too small even for that.
fn find_groups_only(
    analyzed: &AnalyzedSnapshot<'_>,
    report: &mut AnalysisReport,
    scanner: &PointerScanner<'_>,
    names: &mut NameResolver<'_>,
    mut budget: MemoryBudget,
) -> Result<FoundHolders, Error> {
    budget.reserve(compact_paths::memory_size(report.objects))?;
    let holders = ExternalHolders::find(analyzed, scanner, names, &mut budget)?;
    let found = compact_paths::find_groups(scanner, &holders, names, budget.remaining());
    let (groups, is_complete) = found.ok_or(Error::Memory {
        // The true need is not known: `find_groups` stopped at the limit.
        needed: budget.limit() + report.objects * BYTES_PER_OBJECT,
        limit: budget.limit(),
    })?;
    analyzed.snapshot.require_headroom()?;
    warn_of_unread_types(names, report);
    warn_of_incomplete_groups(is_complete, report);
    Ok(FoundHolders {
        method: Method::ShortestPath,
        groups,
        object: None,
        samples: None,
    })
}

/// Adds warnings to the report about types of Python that were not read.
fn warn_of_unread_types(names: &NameResolver<'_>, report: &mut AnalysisReport) {
    for warning in names.python_warnings() {
        report.add_warning(warning);
    }
}

/// Adds a warning to the report unless `is_complete` is true, which says that each object is in a group of its kind.
fn warn_of_incomplete_groups(is_complete: bool, report: &mut AnalysisReport) {
    if !is_complete {
        report.add_warning("some objects are counted with what holds them: to show them takes more memory (--max-memory)".to_owned());
    }
}

/// Path from the node at `position` in the tree to its outermost holder, the node first. Also counts the objects and
/// bytes that the node holds, itself included. `group_of` has the index in `groups` of each node.
fn holder_path(
    tree: &HolderTree,
    position: u32,
    object_index: &ObjectIndex<'_>,
    groups: &[HolderGroup],
    group_of: &[u32],
) -> HolderPath {
    let mut path = HolderPath {
        steps: Vec::new(),
        objects: 0,
        bytes: 0,
    };
    let address =
        |node: u32| (node < object_index.count()).then(|| object_index.object(node).range.start);
    let mut node = position;
    // Node 0 is the process.
    while node != 0 {
        let kind = groups[group_of[node as usize] as usize].kind.clone();
        path.steps.push((kind, address(tree.nodes[node as usize])));
        node = tree.parents[node as usize];
    }
    // An object's node follows that of its holder, so one pass finds all nodes below `position`.
    let mut is_inside = vec![false; tree.nodes.len()];
    for node in position as usize..tree.nodes.len() {
        is_inside[node] = node == position as usize || is_inside[tree.parents[node] as usize];
        if is_inside[node] {
            path.objects += 1;
            path.bytes += object_index.object(tree.nodes[node]).size();
        }
    }
    path
}
