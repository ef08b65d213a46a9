//! Direct jumps and calls of a program.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use iced_x86::FlowControl;

use super::allocator_code::AllocatorCode;
use super::prologue::{branch_target, decode_instructions};

/// Most bytes of functions that are decoded. Further functions count as calling everything.
const MAX_DECODED_BYTES: usize = 64 << 20;
/// Most byte sequences that look like jumps into patched prologues by coincidence. Among more of them, some are surely
/// real.
const MAX_CANDIDATES: usize = 1000;

/// Direct calls of functions, decoded once each.
#[derive(Debug)]
pub(crate) struct CallGraph<'a> {
    code: &'a AllocatorCode,
    /// Targets by function; `None` if its bytes are not all in the program's code.
    targets: HashMap<u64, Option<Vec<u64>>>,
    decoded_bytes: usize,
}

impl<'a> CallGraph<'a> {
    /// Creates the graph of the calls in `code`. Each function is decoded when it is first looked up.
    pub(crate) fn new(code: &'a AllocatorCode) -> Self {
        Self {
            code,
            targets: HashMap::new(),
            decoded_bytes: 0,
        }
    }

    /// Returns whether a function calls one of `others`, directly or through further functions; a function among
    /// `others` may call itself. True also if that is unknown, because code is missing or more than 64 MiB of code
    /// were decoded.
    pub(crate) fn calls_any_of(&mut self, function: u64, others: &HashSet<u64>) -> bool {
        let mut visited = HashSet::from([function]);
        let mut pending = vec![function];
        while let Some(function) = pending.pop() {
            if self.decoded_bytes > MAX_DECODED_BYTES {
                return true;
            }
            let Some(targets) = self.call_targets(function) else {
                return true;
            };
            for target in targets {
                if others.contains(&target) {
                    return true;
                }
                let Some((start, _)) = self.code.function_at(target) else {
                    continue;
                };
                if visited.insert(start) {
                    pending.push(start);
                }
            }
        }
        false
    }

    /// Returns the targets of a function's jumps and calls that leave it, and of calls of itself. Empty if the function
    /// never returns, like `abort`: an allocation through it never completes. `None` if its bytes are unknown.
    fn call_targets(&mut self, function: u64) -> Option<Vec<u64>> {
        let targets = self.targets.entry(function).or_insert_with(|| {
            let length = self
                .code
                .function_at(function)
                .map_or(0, |(_, found)| found.length);
            let bytes = self.code.bytes(function, length)?;
            self.decoded_bytes += bytes.len();
            let own = function..function.saturating_add(length);
            let mut returns = false;
            let mut leaving = Vec::new();
            for each in decode_instructions(bytes, function) {
                let is_inside = branch_target(&each).is_some_and(|target| own.contains(&target));
                let is_call = matches!(
                    each.flow_control(),
                    FlowControl::Call | FlowControl::IndirectCall
                );
                returns |= match each.flow_control() {
                    FlowControl::Return | FlowControl::IndirectBranch => true,
                    FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => !is_inside,
                    _ => false,
                };
                if !is_inside || is_call {
                    leaving.extend(self.code.call_target(&each));
                }
            }
            Some(if returns { leaving } else { Vec::new() })
        });
        targets.clone()
    }
}

/// Finds a jump or call, anywhere in the program, to one of `ranges` after its first byte. Returns its address and the
/// index of the range. `None` if there is none. After 1000 byte sequences that look like such a jump, the next one
/// counts as a jump without a check. Ignores short jumps from one function to another, which no compiler emits.
pub(crate) fn find_jump_into(code: &AllocatorCode, ranges: &[Range<u64>]) -> Option<(u64, usize)> {
    let (lowest, highest) = ranges.iter().fold((u64::MAX, 0), |(low, high), range| {
        (low.min(range.start), high.max(range.end))
    });
    let range_index = |target: u64| {
        let mut inner = ranges.iter();
        let is_near = (lowest..highest).contains(&target);
        is_near.then(|| inner.position(|range| range.start < target && target < range.end))?
    };
    let mut candidates = 0;
    for (start, bytes) in &code.sections {
        for offset in 0..bytes.len() {
            // `call` and `jmp`, then conditional jumps, each with a distance of 32 bits.
            let (distance, length) = match bytes[offset..] {
                [0xe8 | 0xe9, a, b, c, d, ..] => ([a, b, c, d], 5),
                [0x0f, 0x80..=0x8f, a, b, c, d, ..] => ([a, b, c, d], 6),
                _ => continue,
            };
            let address = start + offset as u64;
            let distance = i64::from(i32::from_le_bytes(distance));
            let target = (address + length).wrapping_add_signed(distance);
            let Some(index) = range_index(target) else {
                continue;
            };
            candidates += 1;
            if candidates > MAX_CANDIDATES || is_jump_instruction(code, address, target) {
                return Some((address, index));
            }
        }
    }
    None
}

/// Returns whether the bytes at `address` are a jump to `target`, and not part of other instructions. True if that is
/// unknown.
fn is_jump_instruction(code: &AllocatorCode, address: u64, target: u64) -> bool {
    let function = code.function_at(address).and_then(|(start, function)| {
        let bytes = code.bytes(start, function.length)?;
        Some((start, bytes))
    });
    function.is_none_or(|(start, bytes)| {
        decode_instructions(bytes, start).any(|each| branch_target(&each) == Some(target))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    /// Builds functions of 16 bytes. Each has a branch, `None` for none: the opcode of a call or jump, the index of the
    /// function to which it leads, and an offset in that.
    fn program(branches: &[Option<(u8, usize, u64)>]) -> AllocatorCode {
        let mut bytes = Vec::new();
        let mut functions = Vec::new();
        for (index, branch) in branches.iter().enumerate() {
            let address = AT + 16 * index as u64;
            let mut code = [0x90; 16];
            if let Some((opcode, to, offset)) = branch {
                let target = AT + 16 * *to as u64 + offset;
                let distance = target.wrapping_sub(address + 13) as u32;
                code[8] = *opcode;
                code[9..13].copy_from_slice(&distance.to_le_bytes());
            }
            code[15] = 0xc3;
            bytes.extend(code);
            functions.push((address, 16, "f"));
        }
        AllocatorCode::for_test(vec![(AT, bytes)], &functions)
    }

    #[test]
    fn calls_through_other_functions_are_found() {
        const CALL: u8 = 0xe8;
        const JUMP: u8 = 0xe9;
        let check = |branches: &[_], others: &[usize], expected| {
            let code = program(branches);
            let others = others.iter().map(|index| AT + 16 * *index as u64);
            let calls = CallGraph::new(&code).calls_any_of(AT, &others.collect());
            assert_eq!(calls, expected, "{branches:?}");
        };
        check(&[None, None], &[0, 1], false);
        check(&[Some((CALL, 1, 0)), None], &[0, 1], true);
        check(&[Some((JUMP, 1, 0)), None], &[1], true);
        check(&[Some((CALL, 1, 0)), Some((JUMP, 2, 0)), None], &[2], true);
        check(&[Some((CALL, 1, 0)), Some((JUMP, 1, 0)), None], &[2], false);
        check(&[Some((CALL, 0, 0)), None], &[0], true);
        check(&[Some((CALL, 1, 0)), Some((CALL, 0, 0))], &[0], true);
    }

    #[test]
    fn calls_through_slots_are_followed_and_those_that_never_return_are_not() {
        let slot = AT + 0x100;
        let check = |functions: [&[u8]; 3], expected| {
            let mut bytes = vec![0x90; 48];
            for (index, code) in functions.into_iter().enumerate() {
                bytes[16 * index..][..code.len()].copy_from_slice(code);
            }
            let named = [0, 1, 2].map(|index| (AT + 16 * index, 16, "f"));
            let code = AllocatorCode::for_test(vec![(AT, bytes)], &named).with_slot(slot, AT + 32);
            let reached = CallGraph::new(&code).calls_any_of(AT, &HashSet::from([AT + 32]));
            assert_eq!(reached, expected, "{functions:x?}");
        };
        let call = [0xe8, 11, 0, 0, 0, 0xc3];
        // endbr64; bnd jmp *slot(%rip), as an entry of a procedure linkage table; another slot; call *slot(%rip).
        let stub = |distance: u8| [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, distance, 0, 0, 0];
        check([&call, &stub(0xe5), &[0xc3]], true);
        check([&call, &stub(0xed), &[0xc3]], false);
        check([&[0xff, 0x15, 0xfa, 0, 0, 0, 0xc3], &[0xc3], &[0xc3]], true);
        // It calls the other function, and then ends the process (hlt) or returns.
        check([&call, &[0xe8, 11, 0, 0, 0, 0xf4], &[0xc3]], false);
        check([&call, &[0xe8, 11, 0, 0, 0, 0xc3], &[0xc3]], true);
    }

    #[test]
    fn function_longer_than_the_code_counts_as_calling() {
        // A jmp to 0x1015 within another instruction, in a function that claims 256 bytes.
        let mut bytes = vec![0x90; 48];
        bytes[..7].copy_from_slice(&[0x48, 0xb8, 0xe9, 0x0e, 0, 0, 0]);
        let range = AT + 16..AT + 22;
        let check = |length, expected| {
            let functions = [(AT, length, "f"), (AT + 256, 16, "g")];
            let code = AllocatorCode::for_test(vec![(AT, bytes.clone())], &functions);
            let found = find_jump_into(&code, std::slice::from_ref(&range));
            assert_eq!(found, expected, "{length}");
            let calls = CallGraph::new(&code).calls_any_of(AT, &HashSet::from([AT + 256]));
            assert_eq!(calls, expected.is_some(), "{length}");
        };
        check(16, None);
        check(256, Some((AT + 2, 0)));
    }

    #[test]
    fn branch_into_patched_bytes_is_found() {
        let check = |branches: &[_], expected| {
            let code = program(branches);
            let ranges = [AT + 16..AT + 22, AT + 32..AT + 37];
            assert_eq!(find_jump_into(&code, &ranges), expected, "{branches:?}");
        };
        let far = |offset| [Some((0xe9, 2, offset)), None, None];
        check(&far(0), None);
        check(&far(1), Some((AT + 8, 1)));
        check(&far(4), Some((AT + 8, 1)));
        check(&far(5), None);
        check(&[None, None, Some((0xe8, 1, 5))], Some((AT + 40, 0)));
    }
}
