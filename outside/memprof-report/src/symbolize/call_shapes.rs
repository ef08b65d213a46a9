//! Reads the shapes of calls near the leaf of stacks from a file's code.

use object::{Architecture, Object, ObjectSection, ReadRef};

use super::address::LinkedAddress;
use super::unwinding_rules::UnwindingRules;
use crate::call_shape::CallShape;
use crate::stacks::{AddressId, StackId, Stacks};

/// Frames at the leaf in which a wrapper of malloc is searched for; a stack may start in the allocator itself.
const LEAF_FRAMES: usize = 6;

/// Returns for each address, by its id, whether it is among the first [`LEAF_FRAMES`] of a stack.
pub(super) fn addresses_near_leaves(stacks: &Stacks) -> Vec<bool> {
    let mut is_near_leaf = vec![false; stacks.addresses().len()];
    for index in 0..stacks.len() as u32 {
        for id in stacks.frames(StackId(index)).iter().take(LEAF_FRAMES) {
            is_near_leaf[id.0 as usize] = true;
        }
    }
    is_near_leaf
}

/// Returns the shapes of calls in a file. `calls` has the address of each call's last byte, `data` are the bytes of the
/// file. Empty if the file has no x86-64 code, or no unwinding `rules`, which say where functions start and end.
pub(super) fn read_call_shapes<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    data: R,
    rules: Option<&UnwindingRules<'d>>,
    calls: &[(LinkedAddress, AddressId)],
) -> Vec<(AddressId, CallShape)> {
    let shapes = match (file.architecture(), rules) {
        (Architecture::X86_64, Some(rules)) => read_shapes(file, data, rules, calls),
        _ => None,
    };
    shapes.unwrap_or_default()
}

/// Returns the shapes of calls in x86-64 code. Functions of more than [`CallShape::MAX_BYTES`] are not read, so the
/// shapes of their calls are unknown. `None` if the file has no section of code.
fn read_shapes<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    data: R,
    rules: &UnwindingRules<'d>,
    calls: &[(LinkedAddress, AddressId)],
) -> Option<Vec<(AddressId, CallShape)>> {
    let text = file.section_by_name(".text")?;
    let code_of = |start: u64, length: u64| {
        // Where calls are few, only the code of their functions is read: all of it may be a hundred megabytes.
        if calls.len() as u64 * CallShape::MAX_BYTES > text.size() {
            return text.data_range(start, length).ok()?;
        }
        let (offset, size) = text.file_range()?;
        let from = start.checked_sub(text.address())?;
        let is_inside = from.checked_add(length)? <= size;
        data.read_bytes_at(offset.checked_add(from)?, length)
            .ok()
            .filter(|_| is_inside)
    };
    let shape = |&(call, id): &(LinkedAddress, AddressId)| {
        let function = rules.function(call)?;
        let code = match function.bytes {
            0..=CallShape::MAX_BYTES => code_of(function.start, function.bytes)?,
            _ => &[],
        };
        Some((
            id,
            CallShape::read(code, function.start, call.wrapping_add(1)),
        ))
    };
    Some(calls.iter().filter_map(shape).collect())
}
