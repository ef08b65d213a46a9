//! Reads the shapes of calls near the leaf of stacks from a file's code.

use foldhash::HashMap;
use object::{Architecture, Object, ObjectSection, ReadRef};

use super::address::LinkedAddress;
use super::symbol_matcher::SymbolCode;
use super::unwinding_rules::FunctionCode;
use crate::call_shape::CallShape;
use crate::stacks::{AddressId, StackId, Stacks};

/// Frames at the leaf in which a wrapper of malloc is searched for; a stack may start in the allocator itself.
const LEAF_FRAMES: usize = 6;

/// Calls of a function in its file from which it counts as one of general use. Nearly all functions of Debian's
/// stripped programs with this number, that pass a computed size to malloc, are wrappers.
const MANY_CALLS: u32 = 32;

/// Largest code in which calls are counted, in bytes: it is read as a whole.
const MAX_COUNTED_BYTES: u64 = 32 << 20;

/// A call near the leaf of a stack.
pub(super) struct LeafCall {
    /// Address of the call's last byte.
    pub(super) address: LinkedAddress,
    pub(super) id: AddressId,
    /// Code of the symbol that contains the call; `None` if no symbol does.
    pub(super) symbol: Option<SymbolCode>,
}

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

/// Returns the shapes of calls in a file: how the calling function uses the result and where the arguments come from.
/// `data` are the bytes of the file. `function_at` returns the code of the function that contains an address, and is
/// called for calls that no symbol with a size contains. Leaves out calls in no known function, and those whose code
/// cannot be read. Empty if the file has no x86-64 code.
pub(super) fn read_call_shapes<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    data: R,
    function_at: impl Fn(LinkedAddress) -> Option<FunctionCode>,
    calls: &[LeafCall],
) -> Vec<(AddressId, CallShape)> {
    let shapes = match file.architecture() {
        Architecture::X86_64 => read_x86_64_call_shapes(file, data, function_at, calls),
        _ => None,
    };
    shapes.unwrap_or_default()
}

/// Returns the shapes of calls in x86-64 code. They also say whether many places of the file call the function that
/// makes the call. Functions of more than [`CallShape::MAX_BYTES`] are not read: their calls get the shape of a call
/// without code. `None` if the file has no section `.text`.
fn read_x86_64_call_shapes<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    data: R,
    function_at: impl Fn(LinkedAddress) -> Option<FunctionCode>,
    calls: &[LeafCall],
) -> Option<Vec<(AddressId, CallShape)>> {
    let text = file.section_by_name(".text")?;
    let code_of = |start: u64, length: u64| {
        // With many calls, the whole section is read; with few, only the code of their functions, because the section
        // may have a hundred megabytes.
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
    let shape = |call: &LeafCall| {
        let function = match call.symbol {
            Some(SymbolCode::Sized(code)) => code,
            Some(SymbolCode::Unsized { .. }) | None => function_at(call.address)?,
        };
        let code = match function.bytes {
            0..=CallShape::MAX_BYTES => code_of(function.start, function.bytes)?,
            _ => &[],
        };
        let return_address = call.address.wrapping_add(1);
        Some(CallShape::read(code, function.start, return_address))
    };
    let shapes = calls.iter().filter_map(|call| Some((call, shape(call)?)));
    let mut shapes: Vec<(&LeafCall, CallShape)> = shapes.collect();
    let counted = shapes
        .iter()
        .filter(|(call, shape)| call.symbol.is_none() && shape.returns_result && !shape.is_short);
    let mut counts: HashMap<u64, u32> = counted.map(|(_, shape)| (shape.function, 0)).collect();
    if !counts.is_empty()
        && text.size() <= MAX_COUNTED_BYTES
        && let Ok(code) = text.data()
    {
        count_calls(code, text.address(), &mut counts);
    }
    for (_, shape) in &mut shapes {
        let count = counts.get(&shape.function);
        shape.has_many_calls = count.is_some_and(|count| *count >= MANY_CALLS);
    }
    let shapes = shapes.into_iter().map(|(call, shape)| (call.id, shape));
    Some(shapes.collect())
}

/// Counts the direct calls of, and jumps to, each function in `counts`, which has the functions by their start. `code`
/// is x86-64 code that starts at the address `start`. Each byte is tried as the start of an instruction: to decode the
/// instructions takes longer, and bytes that only look like a call hardly ever lead to the start of one of the
/// functions.
fn count_calls(code: &[u8], start: u64, counts: &mut HashMap<u64, u32>) {
    const CALL: u8 = 0xe8;
    const JUMP: u8 = 0xe9;
    for (index, bytes) in code.windows(5).enumerate() {
        let [CALL | JUMP, a, b, c, d] = *bytes else {
            continue;
        };
        let distance = i32::from_le_bytes([a, b, c, d]);
        let next = start.wrapping_add(index as u64 + 5);
        let function = next.wrapping_add_signed(distance.into());
        counts.entry(function).and_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_jumps_to_function_are_counted() {
        // nop; call 0x1000; jmp 0x1000; call 0x2000; mov eax, [rip-20]
        let code = [
            &[0x90][..],
            &[0xe8, 0xfa, 0xff, 0xff, 0xff],
            &[0xe9, 0xf5, 0xff, 0xff, 0xff],
            &[0xe8, 0xf0, 0x0f, 0, 0],
            &[0x8b, 0x05, 0xec, 0xff, 0xff, 0xff],
        ]
        .concat();
        let mut counts = HashMap::from_iter([(0x1000, 0), (0x1001, 0)]);
        count_calls(&code, 0x1000, &mut counts);
        assert_eq!(counts, HashMap::from_iter([(0x1000, 2), (0x1001, 0)]));
    }
}
