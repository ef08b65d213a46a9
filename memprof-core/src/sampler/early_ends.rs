//! Counts of the samples whose stacks end early, with the files in which they end.

use std::path::{Path, PathBuf};

use memprof_messages::{EarlyEndReason, EarlyEnds};

use crate::allocators::loaded_objects::{self, EXECUTABLE, LoadedObject};

/// Returns the numbers of samples whose stacks end early, by reason and file, largest first. Counts since samples were
/// last dropped.
pub(super) fn list_early_ends() -> Vec<EarlyEnds> {
    let counted: Vec<_> = memprof_sampler::early_ends().collect();
    if counted.is_empty() {
        return Vec::new();
    }
    let objects = loaded_objects::list_loaded_objects();
    let mut ends: Vec<_> = counted
        .into_iter()
        .map(|each| EarlyEnds {
            reason: to_message_reason(each.reason).into(),
            object: each
                .object
                .and_then(|start| path_of_object_at(&objects, start)),
            samples: each.samples,
        })
        .collect();
    ends.sort_by_key(|each| std::cmp::Reverse(each.samples));
    ends
}

/// File of the object that starts at `address` or contains it; for the program itself, its real path if that can be
/// read. An object's start, rounded to a page, may be below its first segment. `None` if the object was unloaded in the
/// meantime.
fn path_of_object_at(objects: &[LoadedObject], address: usize) -> Option<PathBuf> {
    let object = objects.iter().find(|object| {
        let start = object.start_address();
        start == Some(address) || object.contains(address)
    })?;
    let path = object.path.clone();
    let is_program = path == Path::new(EXECUTABLE);
    let program = is_program.then(|| std::fs::read_link(&path).ok()).flatten();
    Some(program.unwrap_or(path))
}

/// Converts the sampler's reason why a stack ended early to the same reason as messages name it.
fn to_message_reason(reason: memprof_sampler::EarlyEndReason) -> EarlyEndReason {
    use memprof_sampler::EarlyEndReason as Sampled;
    match reason {
        Sampled::TooManyFrames => EarlyEndReason::TooManyFrames,
        Sampled::UnreadableStack => EarlyEndReason::UnreadableStack,
        Sampled::UnreadableFrameInformation => EarlyEndReason::UnreadableFrameInformation,
        Sampled::UnknownCode => EarlyEndReason::UnknownCode,
        Sampled::NoFrameInformation => EarlyEndReason::NoFrameInformation,
    }
}
