//! Python garbage: unreachable cycles that the collector will free. Like the collector, memprof distinguishes
//! them from leaks by reference counts: if an object has more references than other garbage has pointers to
//! it, a reference was never released, and the object is never freed.

use std::collections::HashMap;

use crate::analysis::AnalyzedSnapshot;
use crate::error::Error;
use crate::objects::{Object, Objects};
use crate::python::reference_count;
use crate::snapshot_memory::CachedReader;

/// Bits of a pointer in which the interpreter has flags.
const POINTER_FLAGS: u64 = 0b11;
/// Bytes per object: its reference count and its queue entry.
const BYTES_PER_OBJECT: u64 = 64;

/// Marks Python garbage, and all that it reaches, as reachable. An unreachable Python object is garbage if pointers of
/// unreachable objects explain all of its references: Python's collector will free it. An object with more references
/// is leaked: the object and all that it reaches stay unmarked. Fails with `Memory` if the search needs more memory
/// than `--max-memory`.
pub(crate) fn mark_python_garbage(analyzed: &AnalyzedSnapshot<'_>) -> Result<(), Error> {
    let objects = &analyzed.objects;
    let python_objects = || {
        objects
            .unreachable()
            .filter_map(|object| objects.python_object_in(&object))
    };
    let count = python_objects().count() as u64;
    if count == 0 {
        return Ok(());
    }
    analyzed.budget.require_bytes(count * BYTES_PER_OBJECT)?;
    let mut memory = CachedReader::new(&analyzed.view);
    let mut unexplained_references: HashMap<u64, u32> = python_objects()
        .map(|start| (start, reference_count(&mut memory, start)))
        .collect();
    for object in objects.unreachable() {
        for word in object_words(&mut memory, &object) {
            if objects.may_contain(word)
                && let Some(references) = unexplained_references.get_mut(&(word & !POINTER_FLAGS))
            {
                *references = references.saturating_sub(1);
            }
        }
    }
    let leaked = unexplained_references
        .iter()
        .filter(|(_, references)| **references > 0);
    // The leaked objects and all that they reach are marked first, and these marks are cleared at last. The second call
    // marks the garbage that is left.
    let leaked = mark_all_from(objects, &mut memory, leaked.map(|(start, _)| *start));
    mark_all_from(objects, &mut memory, unexplained_references.into_keys());
    for start in leaked {
        objects.unmark(start);
    }
    Ok(())
}

/// Marks the objects at `starts` and all that they reach. Returns the starts of those that were not marked before.
fn mark_all_from(
    objects: &Objects,
    memory: &mut CachedReader<'_>,
    starts: impl Iterator<Item = u64>,
) -> Vec<u64> {
    let mut reached: Vec<u64> = starts
        .filter_map(|start| objects.mark_target(start))
        .collect();
    let mut next = 0;
    while let Some(object) = reached
        .get(next)
        .and_then(|start| objects.object_at(*start))
    {
        let found = object_words(memory, &object)
            .filter(|word| objects.may_contain(*word))
            .filter_map(|word| objects.mark_target(word));
        reached.extend(found);
        next += 1;
    }
    reached
}

/// Words of an object, up to the first that cannot be read.
fn object_words(memory: &mut CachedReader<'_>, object: &Object) -> impl Iterator<Item = u64> {
    let addresses = object.range.clone().step_by(8);
    addresses.map_while(|address| memory.read_word(address))
}
