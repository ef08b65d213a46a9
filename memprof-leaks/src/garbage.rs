//! Garbage of Python's: cycles to which nothing leads, and which its collector will free. It is told from what is
//! leaked as the collector does: where an object counts more references than other garbage has to it, somebody forgot
//! to give one back, and nobody ever frees it.

use std::collections::HashMap;

use crate::error::Error;
use crate::look::Seen;
use crate::names::references;
use crate::objects::{Object, Objects};
use crate::view::Window;

/// Bits of a pointer in which the interpreter keeps flags.
const FLAGS: u64 = 0b11;
/// What is known of an object, and that it waits, in bytes.
const OF_OBJECT: u64 = 64;

/// Marks garbage as reached.
///
/// # Errors
/// `Memory`.
pub(crate) fn spare(seen: &Seen<'_>) -> Result<(), Error> {
    let objects = &seen.objects;
    let linked = || {
        objects
            .leaked()
            .filter_map(|object| objects.linked(&object))
    };
    let count = linked().count() as u64;
    if count == 0 {
        return Ok(());
    }
    seen.budget.require(count * OF_OBJECT)?;
    let mut memory = Window::new(&seen.view);
    let mut unexplained: HashMap<u64, u32> = linked()
        .map(|start| (start, references(&mut memory, start)))
        .collect();
    for object in objects.leaked() {
        for word in words(&mut memory, &object) {
            if objects.may_hold(word)
                && let Some(references) = unexplained.get_mut(&(word & !FLAGS))
            {
                *references = references.saturating_sub(1);
            }
        }
    }
    let lost = unexplained
        .iter()
        .filter(|(_, references)| **references > 0);
    let lost = flood(objects, &mut memory, lost.map(|(start, _)| *start));
    flood(objects, &mut memory, unexplained.into_keys());
    for start in lost {
        objects.unreach(start);
    }
    Ok(())
}

/// Marks what these lead to as reached, and returns what was not before.
fn flood(objects: &Objects, memory: &mut Window<'_>, from: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut reached: Vec<u64> = from.filter_map(|start| objects.reach(start)).collect();
    let mut next = 0;
    while let Some(object) = reached.get(next).and_then(|start| objects.object(*start)) {
        let found = words(memory, &object)
            .filter(|word| objects.may_hold(*word))
            .filter_map(|word| objects.reach(word));
        reached.extend(found);
        next += 1;
    }
    reached
}

fn words(memory: &mut Window<'_>, object: &Object) -> impl Iterator<Item = u64> {
    let places = object.range.clone().step_by(8);
    places.map_while(|place| memory.word(place))
}
