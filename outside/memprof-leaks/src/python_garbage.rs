//! Garbage of Python's: cycles to which nothing leads, and which its collector will free. It is told from what is
//! leaked as the collector does: where an object counts more references than other garbage has to it, somebody forgot
//! to give one back, and nobody ever frees it.

use std::collections::HashMap;

use crate::analysis::AnalyzedSnapshot;
use crate::error::Error;
use crate::names::references;
use crate::objects::{Object, Objects};
use crate::snapshot_memory::CachedReader;

/// Bits of a pointer in which the interpreter keeps flags.
const FLAGS: u64 = 0b11;
/// What is known of an object, and that it waits, in bytes.
const OF_OBJECT: u64 = 64;

/// Marks garbage as reached.
///
/// # Errors
/// `Memory`.
pub(crate) fn mark_python_garbage(seen: &AnalyzedSnapshot<'_>) -> Result<(), Error> {
    let objects = &seen.objects;
    let linked = || {
        objects
            .unreachable()
            .filter_map(|object| objects.python_object_in(&object))
    };
    let count = linked().count() as u64;
    if count == 0 {
        return Ok(());
    }
    seen.budget.require(count * OF_OBJECT)?;
    let mut memory = CachedReader::new(&seen.view);
    let mut unexplained: HashMap<u64, u32> = linked()
        .map(|start| (start, references(&mut memory, start)))
        .collect();
    for object in objects.unreachable() {
        for word in words(&mut memory, &object) {
            if objects.may_contain(word)
                && let Some(references) = unexplained.get_mut(&(word & !FLAGS))
            {
                *references = references.saturating_sub(1);
            }
        }
    }
    let lost = unexplained
        .iter()
        .filter(|(_, references)| **references > 0);
    let lost = mark_from(objects, &mut memory, lost.map(|(start, _)| *start));
    mark_from(objects, &mut memory, unexplained.into_keys());
    for start in lost {
        objects.unmark(start);
    }
    Ok(())
}

/// Marks what these lead to as reached, and returns what was not before.
fn mark_from(
    objects: &Objects,
    memory: &mut CachedReader<'_>,
    from: impl Iterator<Item = u64>,
) -> Vec<u64> {
    let mut reached: Vec<u64> = from.filter_map(|start| objects.mark(start)).collect();
    let mut next = 0;
    while let Some(object) = reached.get(next).and_then(|start| objects.object(*start)) {
        let found = words(memory, &object)
            .filter(|word| objects.may_contain(*word))
            .filter_map(|word| objects.mark(word));
        reached.extend(found);
        next += 1;
    }
    reached
}

fn words(memory: &mut CachedReader<'_>, object: &Object) -> impl Iterator<Item = u64> {
    let places = object.range.clone().step_by(8);
    places.map_while(|place| memory.word(place))
}
