//! What is leaked, with proof: nothing pointed to it at two moments, a second apart.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::heap::{self, Heap};
use crate::objects::{Object, Objects};
use crate::reach::reach;
use crate::roots::roots;
use crate::snapshot::{Snapshot, Subject};
use crate::view::View;

/// Between two snapshots: what is on its way from one place to another has arrived then.
const APART: Duration = Duration::from_secs(1);
/// How often a snapshot is taken again whose heap was in the midst of a change.
const TRIES: usize = 3;

/// How to look.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the process may stand still, for each snapshot.
    pub max_pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_pause: Duration::from_millis(100),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// The allocators whose heaps were walked.
    pub allocators: Vec<&'static str>,
    /// Resident memory of the process, in bytes.
    pub rss: u64,
    /// How long it stood still, for each snapshot.
    pub stopped: Vec<Duration>,
    /// How long that had been estimated.
    pub estimate: Duration,
    /// Objects that live, leaked or not.
    pub objects: u64,
    /// Bytes that were searched for pointers.
    pub searched: u64,
    /// What is leaked, by size, the most bytes first.
    pub leaked: Vec<Group>,
    /// What might hold pointers and could not be searched.
    pub unread: Vec<String>,
    /// What limits the result.
    pub warnings: Vec<String>,
}

/// Leaked objects that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// In bytes, of each: as the allocator gives it out.
    pub size: u64,
    /// How many.
    pub objects: u64,
    /// Of all.
    pub bytes: u64,
    /// The address of one.
    pub example: u64,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The process is copied; estimated, it stands still for so long.
    Snapshot,
    /// The heap of the copy is walked.
    Walk,
    /// So many objects live; they are searched for.
    Search(u64),
    /// The next snapshot is awaited.
    Wait,
}

/// Looks at a process twice. `progress` is told what is being done.
///
/// # Errors
/// Why not; the process goes on as before.
pub fn prove(pid: u32, options: Options, progress: &dyn Fn(Step)) -> Result<Proof, Error> {
    let subject = Subject::look_up(pid)?;
    let mut proof = Proof {
        rss: subject.status.resident,
        ..Proof::default()
    };
    let first = look(&subject, options, progress, &mut proof)?;
    let begun = Instant::now();
    progress(Step::Wait);
    thread::sleep(APART.saturating_sub(begun.elapsed()));
    let second = look(&subject, options, progress, &mut proof)?;
    proof.objects = second.count();
    proof.leaked = groups(second.leaked().filter(|object| first.is_leaked(object)));
    Ok(proof)
}

/// Takes a snapshot, and marks what is reached in it.
fn look(
    subject: &Subject,
    options: Options,
    progress: &dyn Fn(Step),
    proof: &mut Proof,
) -> Result<Objects, Error> {
    for attempt in 1.. {
        progress(Step::Snapshot);
        let snapshot = subject.snapshot(options.max_pause)?;
        proof.stopped.push(snapshot.stopped);
        proof.estimate = snapshot.estimate;
        let looked = search(&snapshot, attempt == TRIES, progress, proof);
        let is_reaped = snapshot.release(subject);
        if !is_reaped {
            let message = "a zombie is left in it until it ends: it was not to be had for wait4(2)";
            warn(&mut proof.warnings, message.to_owned());
        }
        match looked? {
            Some(objects) => return Ok(objects),
            None => continue,
        }
    }
    unreachable!("the last attempt returns");
}

/// `None` where a part of the heap did not prove itself, which another moment may mend.
fn search(
    snapshot: &Snapshot,
    is_last: bool,
    progress: &dyn Fn(Step),
    proof: &mut Proof,
) -> Result<Option<Objects>, Error> {
    progress(Step::Walk);
    let view = View::of(snapshot)?;
    let (allocators, heap) = heaps(&view, snapshot)?;
    if !heap.unproven.is_empty() && !is_last {
        return Ok(None);
    }
    let own = apart(heap.own);
    let mut objects = Objects::new(heap.spans);
    objects.free(&heap.cached);
    objects.silence(&heap.silent);
    let roots = roots(snapshot, &view, &own);
    progress(Step::Search(objects.count()));
    let searched = reach(snapshot, &view, &objects, &roots)?;
    proof.allocators = allocators;
    proof.searched = searched.bytes as u64;
    for part in heap.unproven {
        warn(
            &mut proof.warnings,
            format!("nothing of this is told, because it did not prove itself: {part}"),
        );
    }
    for part in roots.unread {
        warn(&mut proof.unread, part);
    }
    Ok(Some(objects))
}

/// The same memory as ranges that do not overlap, by address.
fn apart(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

fn warn(warnings: &mut Vec<String>, message: String) {
    if !warnings.contains(&message) {
        warnings.push(message);
    }
}

/// The heaps of all allocators in a process.
fn heaps(view: &View, snapshot: &Snapshot) -> Result<(Vec<&'static str>, Heap), Error> {
    const UNKNOWN: [&str; 4] = ["libtcmalloc", "libmimalloc", "libsnmalloc", "libhoard"];
    let unknown = UNKNOWN.iter().find(|name| {
        view.regions
            .iter()
            .any(|region| region.name.contains(*name))
    });
    if let Some(name) = unknown {
        return Err(Error::NoHeap(format!(
            "its malloc is {name}'s, whose heap memprof cannot walk"
        )));
    }
    let glibc = heap::glibc::heap(view).map(|heap| ("glibc", heap));
    let jemalloc = heap::jemalloc::heap(view, &snapshot.threads).map(|heap| ("jemalloc", heap));
    let (mut names, mut all) = (Vec::new(), Heap::default());
    for (name, heap) in glibc.into_iter().chain(jemalloc) {
        names.push(name);
        all.extend(heap);
    }
    match names.is_empty() {
        true => Err(Error::NoHeap(
            "neither an arena of glibc's malloc nor slabs of jemalloc's proved themselves"
                .to_owned(),
        )),
        false => Ok((names, all)),
    }
}

fn groups(leaked: impl Iterator<Item = Object>) -> Vec<Group> {
    let mut groups = std::collections::BTreeMap::new();
    for object in leaked {
        let size = object.size();
        let group = groups.entry(size).or_insert(Group {
            size,
            objects: 0,
            bytes: 0,
            example: object.range.start,
        });
        group.objects += 1;
        group.bytes += size;
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups
}
