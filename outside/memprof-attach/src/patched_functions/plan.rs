//! Plans which functions of a program are patched.

use std::collections::{BTreeMap, HashSet};

use memprof_sampler::{EntryRow, EntryTable, Role, Shape};

use super::allocator_code::{AllocatorCode, AllocatorFunction, OTHER_ALLOCATOR};
use super::call_graph::{CallGraph, find_jump_into};
use super::function_names::KnownFunction;
use super::prologue::{Prologue, decode_instructions, initial_jump};
use crate::error::AttachError;

/// Largest length of a forwarder, in bytes: a function that cannot be patched, and need not be, because it calls a
/// patched one with the same purpose. A longer function may also do the work itself.
const MAX_FORWARDER_LENGTH: usize = 128;

/// Functions to patch, and those that are skipped.
#[derive(Debug)]
pub(crate) struct PatchPlan {
    pub(crate) functions: Vec<PlannedPatch>,
    /// Functions that only allocate and cannot be patched: sentences with each name and reason.
    pub(crate) skipped: Vec<String>,
}

/// A function to patch.
#[derive(Debug)]
pub(crate) struct PlannedPatch {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Address of the function.
    pub(crate) address: u64,
    pub(crate) prologue: Prologue,
    /// Bytes of the function.
    pub(crate) code: Vec<u8>,
    /// Whether the function allocates through another planned function, or by calling itself. Then only the outer
    /// call is sampled.
    pub(crate) is_outer: bool,
}

impl PlannedPatch {
    /// Returns the offset in the function at which the jump is written, in bytes.
    pub(crate) fn jump_offset(&self) -> usize {
        (self.prologue.range.start - self.address) as usize
    }

    /// Returns the function's bytes that the jump replaces.
    pub(crate) fn original_bytes(&self) -> &[u8] {
        &self.code[self.jump_offset()..][..EntryRow::JUMP_SIZE]
    }
}

impl PatchPlan {
    /// Plans the patches of a program or library: one for each function of its allocators, except for those that only
    /// forward to another such function, and those that only allocate and cannot be patched.
    ///
    /// # Errors
    /// `NotPatched`: `malloc` or a function that frees cannot be patched. Without a hook at every function that
    /// frees, freed blocks would count as live for ever. Also if there are too many functions, or if a jump leads
    /// into the first bytes of one.
    pub(crate) fn new(code: &AllocatorCode) -> Result<Self, AttachError> {
        let hooked = functions_to_hook(code)?;
        let allocates = hooked
            .iter()
            .filter(|(_, (known, _))| known.shape != Shape::Free)
            .map(|(address, _)| *address);
        let allocates: HashSet<u64> = allocates.chain([OTHER_ALLOCATOR]).collect();
        let mut plan = Self {
            functions: Vec::new(),
            skipped: Vec::new(),
        };
        for (address, (known, function)) in &hooked {
            let bytes = code.bytes(*address, function.length);
            // A function that only jumps to another allocator function needs no patch: the hook of the other one counts
            // its calls.
            let forwarded =
                bytes.and_then(|bytes| code.call_target(&initial_jump(bytes, *address)?));
            if forwarded.is_some_and(|other| {
                let hooked = hooked.get(&other);
                other == OTHER_ALLOCATOR
                    || hooked.is_some_and(|(other, _)| known.shape == other.shape)
            }) {
                continue;
            }
            let prologue = bytes.ok_or_else(|| "lies outside of the code".to_owned());
            let prologue = prologue.and_then(|bytes| {
                Prologue::new(bytes, *address).map_err(|reason| reason.to_string())
            });
            match prologue {
                Ok(prologue) => plan.functions.push(PlannedPatch {
                    name: known.name.clone(),
                    shape: known.shape,
                    address: *address,
                    code: bytes.unwrap_or_default().to_vec(),
                    prologue,
                    is_outer: false,
                }),
                // A short function that calls a hooked one of the same shape: the hook of that one counts its calls.
                Err(_)
                    if bytes.is_some_and(|bytes| {
                        bytes.len() <= MAX_FORWARDER_LENGTH
                            && decode_instructions(bytes, *address)
                                .filter_map(|each| code.call_target(&each))
                                .filter_map(|target| hooked.get(&target))
                                .any(|(other, _)| known.shape == other.shape)
                    }) => {}
                Err(reason) => plan.record_skipped_function(known, &reason)?,
            }
        }
        if plan.functions.len() > EntryTable::MAX_ENTRIES {
            let message = format!("it has {} functions that allocate", plan.functions.len());
            return Err(AttachError::NotPatched(message));
        }
        let ranges: Vec<_> = plan
            .functions
            .iter()
            .map(|each| each.prologue.range.clone())
            .collect();
        if let Some((jump, index)) = find_jump_into(code, &ranges) {
            let name = &plan.functions[index].name;
            let message = format!("{name} is entered behind its first byte by a jump at {jump:#x}");
            return Err(AttachError::NotPatched(message));
        }
        let mut graph = CallGraph::new(code);
        for function in &mut plan.functions {
            let start = function.address;
            function.is_outer = allocates.contains(&start) && graph.calls_any_of(start, &allocates);
        }
        Ok(plan)
    }

    /// Records that a function is not patched, with the reason. Fails with `NotPatched` if the function must be
    /// patched: `malloc`, and every function that frees.
    fn record_skipped_function(
        &mut self,
        known: &KnownFunction,
        reason: &str,
    ) -> Result<(), AttachError> {
        let sentence = format!("{} {reason}", known.name);
        let base = known.name.strip_prefix(&*known.group);
        if known.shape.role() == Role::Frees || base == Some("malloc") {
            return Err(AttachError::NotPatched(sentence));
        }
        self.skipped.push(sentence);
        Ok(())
    }
}

/// Returns the file's allocator functions, which get hooks, by address, each with one of its names. Fails with
/// `NotPatched` if one of them is an indirect function or has names with different arguments, if two have one name, or
/// if the process's `malloc` or `free` is missing.
fn functions_to_hook(
    code: &AllocatorCode,
) -> Result<BTreeMap<u64, (&KnownFunction, &AllocatorFunction)>, AttachError> {
    let mut hooked = BTreeMap::new();
    let mut names = HashSet::new();
    for (address, function) in code.functions() {
        // A name of C is preferred, because the hooks of GOT slots have these names.
        let Some(known) = function.names.iter().min_by_key(|each| each.group.len()) else {
            continue;
        };
        let fail = |message: String| Err(AttachError::NotPatched(message));
        if function.is_indirect {
            return fail(format!("{} is an indirect function", known.name));
        }
        if let Some(other) = function.names.iter().find(|each| each.shape != known.shape) {
            let (one, other) = (&known.name, &other.name);
            return fail(format!(
                "{one} and {other} are one function, with different arguments"
            ));
        }
        let mut own_names = function.names.iter();
        if let Some(duplicate) = own_names.find(|each| !names.insert(&each.name)) {
            return fail(format!(
                "it has two functions that are called {}",
                duplicate.name
            ));
        }
        hooked.insert(address, (known, function));
    }
    let needed: &[&str] = if code.serves_malloc {
        &["malloc", "free"]
    } else {
        &[]
    };
    match needed
        .iter()
        .find(|needed| !names.iter().any(|name| name == *needed))
    {
        Some(missing) => Err(AttachError::NotPatched(format!(
            "its symbols do not name {missing}"
        ))),
        None => Ok(hooked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patched_functions::MallocOwner;

    const AT: u64 = 0x40_1000;
    /// push %rbx, six times; pop, six times; ret: has a relocatable prologue.
    const PLAIN: [u8; 13] = [
        0x53, 0x53, 0x53, 0x53, 0x53, 0x53, 0x5b, 0x5b, 0x5b, 0x5b, 0x5b, 0x5b, 0xc3,
    ];
    const SHORT: [u8; 2] = [0x90, 0xc3];

    /// Planned names with whether they are outer functions, and skipped ones; or the end of the error text.
    type Expected<'a> = Result<(&'a [(&'a str, bool)], &'a [&'a str]), &'a str>;

    /// Plans functions that lie 32 bytes apart, and compares the plan or the error. Each has its names, separated by
    /// blanks, and its code.
    fn check(functions: &[(&str, &[u8])], expected: Expected<'_>) {
        let mut bytes = Vec::new();
        let mut named = Vec::new();
        for (index, (names, code)) in functions.iter().enumerate() {
            let address = AT + 32 * index as u64;
            bytes.extend_from_slice(code);
            bytes.resize(32 * (index + 1), 0xcc);
            named.extend(
                names
                    .split(' ')
                    .map(|name| (address, code.len() as u64, name)),
            );
        }
        let code = AllocatorCode::for_test(vec![(AT, bytes)], &named);
        match (PatchPlan::new(&code), expected) {
            (Ok(plan), Ok((planned, skipped))) => {
                let functions = plan.functions.iter();
                let found: Vec<_> = functions.map(|each| (&*each.name, each.is_outer)).collect();
                assert_eq!(
                    (&*found, plan.skipped),
                    (
                        planned,
                        skipped.iter().map(|reason| (*reason).to_owned()).collect()
                    )
                );
            }
            (Err(error), Err(reason)) => assert!(error.to_string().ends_with(reason), "{error}"),
            (plan, expected) => panic!("{functions:x?}: {plan:x?}, not {expected:?}"),
        }
    }

    /// A function that calls or jumps to another one, given by their indices.
    fn branch(opcode: u8, from: i32, to: i32) -> Vec<u8> {
        let distance = 32 * (to - from) - 11;
        [&PLAIN[..6], &[opcode], &distance.to_le_bytes(), &[0xc3]].concat()
    }

    #[test]
    fn functions_with_hooks_are_planned() {
        let (malloc, free) = (("malloc", &PLAIN[..]), ("free", &PLAIN[..]));
        check(
            &[malloc, free, ("other", &PLAIN)],
            Ok((&[("malloc", false), ("free", false)], &[])),
        );
        // A function with several names.
        let frees = ("_ZdlPvm tc_free free cfree", &PLAIN[..]);
        check(
            &[malloc, frees],
            Ok((&[("malloc", false), ("free", false)], &[])),
        );
        let one = ("malloc calloc", &PLAIN[..]);
        check(
            &[one, free],
            Err("malloc and calloc are one function, with different arguments"),
        );
        check(
            &[malloc, free, malloc],
            Err("it has two functions that are called malloc"),
        );
        check(&[malloc], Err("its symbols do not name free"));
        // A function that only allocates may be skipped, one that frees may not.
        let valloc = ("valloc", &SHORT[..]);
        let reason = "valloc has 2 bytes, and a jump takes 5";
        check(
            &[malloc, free, valloc],
            Ok((&[("malloc", false), ("free", false)], &[reason])),
        );
        check(
            &[malloc, ("free", &SHORT)],
            Err("free has 2 bytes, and a jump takes 5"),
        );
        check(
            &[("malloc", &SHORT), free],
            Err("malloc has 2 bytes, and a jump takes 5"),
        );
        check(
            &[malloc, free, ("realloc", &SHORT)],
            Err("realloc has 2 bytes, and a jump takes 5"),
        );
    }

    #[test]
    fn allocation_through_another_function_is_outer() {
        const CALL: u8 = 0xe8;
        const JUMP: u8 = 0xe9;
        let (malloc, free) = (("malloc", &PLAIN[..]), ("free", &PLAIN[..]));
        let plain = [("malloc", false), ("free", false)];
        for opcode in [CALL, JUMP] {
            let calls = branch(opcode, 2, 0);
            check(
                &[malloc, free, ("realloc", &calls)],
                Ok((&[plain[0], plain[1], ("realloc", true)], &[])),
            );
            let through = branch(opcode, 2, 3);
            let helper = branch(opcode, 3, 0);
            let all = [malloc, free, ("calloc", &*through), ("helper", &*helper)];
            check(&all, Ok((&[plain[0], plain[1], ("calloc", true)], &[])));
            // A call of free is no allocation.
            let frees = branch(opcode, 2, 1);
            check(
                &[malloc, free, ("realloc", &frees)],
                Ok((&[plain[0], plain[1], ("realloc", false)], &[])),
            );
        }
        // It only jumps to another function, which has a hook.
        let forwards = [&[JUMP][..], &(-32 - 5_i32).to_le_bytes()].concat();
        check(&[malloc, free, ("_ZdlPv", &forwards)], Ok((&plain, &[])));
        // It cannot be patched, and frees by the other one.
        let calls = [&[CALL][..], &(-32 - 5_i32).to_le_bytes(), &[0xc3]].concat();
        check(&[malloc, free, ("cfree", &calls)], Ok((&plain, &[])));
        let inside = [&[JUMP][..], &(2 - 64 - 5_i32).to_le_bytes()].concat();
        let reason = "malloc is entered behind its first byte by a jump at 0x401040";
        check(&[malloc, free, ("other", &inside)], Err(reason));
    }

    #[test]
    fn functions_of_an_allocator_beside_malloc_are_planned() {
        let slot = AT + 0x200;
        // jmp *slot(%rip) or call *slot(%rip), at an offset.
        let through = |opcode: u8, offset: u64| {
            let distance = (slot - (AT + offset + 6)) as u32;
            [&[0xff, opcode][..], &distance.to_le_bytes()].concat()
        };
        let functions = [
            ("mi_malloc", PLAIN.to_vec()),
            ("mi_free", PLAIN.to_vec()),
            // The C++ library's, of another file's malloc and free.
            ("_ZdlPv", through(0x25, 64)),
            (
                "_Znwm",
                [&PLAIN[..12], &through(0x15, 96 + 12), &[0xc3]].concat(),
            ),
        ];
        let mut bytes = Vec::new();
        let mut named = Vec::new();
        for (index, (name, code)) in functions.iter().enumerate() {
            bytes.extend_from_slice(code);
            bytes.resize(32 * (index + 1), 0xcc);
            named.push((AT + 32 * index as u64, code.len() as u64, *name));
        }
        let code = AllocatorCode::for_test(vec![(AT, bytes)], &named)
            .beside_malloc()
            .with_slot(slot, OTHER_ALLOCATOR);
        let plan = PatchPlan::new(&code).unwrap();
        let planned = plan.functions.iter();
        let planned: Vec<_> = planned.map(|each| (&*each.name, each.is_outer)).collect();
        let expected = [("mi_malloc", false), ("mi_free", false), ("_Znwm", true)];
        assert_eq!((&*planned, plan.skipped), (&expected[..], Vec::new()));
    }

    #[test]
    fn functions_of_this_processs_libc_are_planned() {
        let code = AllocatorCode::read(std::process::id(), MallocOwner::First);
        let code = code.unwrap().unwrap();
        assert_eq!(code.library.as_deref(), Some("libc.so.6"));
        let plan = PatchPlan::new(&code).unwrap();
        assert!(plan.skipped.is_empty(), "{:?}", plan.skipped);
        let is_outer = |name| {
            let mut functions = plan.functions.iter();
            let function = functions.find(|each| each.name == name);
            function.map(|function| function.is_outer)
        };
        // malloc is hot, and calls itself only on the way to an abort; reallocarray calls realloc through a slot.
        for name in ["malloc", "calloc"] {
            assert_eq!(is_outer(name), Some(false), "{name}");
        }
        for name in ["realloc", "posix_memalign", "reallocarray"] {
            assert_eq!(is_outer(name), Some(true), "{name}");
        }
    }
}
