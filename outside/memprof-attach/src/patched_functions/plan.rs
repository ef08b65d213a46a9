//! Which functions of a program lead to memprof, and how.

use std::collections::{BTreeMap, HashSet};

use memprof_sampler::{Role, Signature};

use super::call_graph::{CallGraph, find_jump_into};
use super::program::{ProgramCode, ProgramFunction};
use super::prologue::Prologue;
use crate::error::Error;

/// Which functions get jumps, and which do not.
#[derive(Debug)]
pub(crate) struct PatchPlan {
    pub(crate) functions: Vec<PlannedPatch>,
    /// Functions that only allocate, and lead nowhere: their names, each with the reason.
    pub(crate) left_out: Vec<String>,
}

/// A function that gets a jump.
#[derive(Debug)]
pub(crate) struct PlannedPatch {
    /// The symbol whose hook serves it.
    pub(crate) name: &'static str,
    pub(crate) moved: Prologue,
    /// Its first bytes.
    pub(crate) code: Vec<u8>,
    /// It allocates, and calls others of these functions that do, or itself.
    pub(crate) is_outer: bool,
}

impl PatchPlan {
    /// # Errors
    /// `NotLed`: `malloc`, or a function that frees, cannot lead to memprof. What it took would seem to live for ever.
    pub(crate) fn of(code: &ProgramCode) -> Result<Self, Error> {
        let known = hooked_functions(code)?;
        let allocates = known
            .iter()
            .filter(|(_, (signature, _))| !signature.is_free());
        let allocates: HashSet<u64> = allocates.map(|(address, _)| *address).collect();
        let mut plan = Self {
            functions: Vec::new(),
            left_out: Vec::new(),
        };
        for (address, (signature, function)) in &known {
            let bytes = code.bytes(*address, function.length);
            let moved = bytes.ok_or_else(|| "lies outside of the program's code".to_owned());
            let moved = moved
                .and_then(|bytes| Prologue::of(bytes, *address).map_err(|why| why.to_string()));
            match moved {
                // Whoever calls it calls the other one.
                Ok(moved)
                    if moved.jump_target().is_some_and(|other| {
                        known
                            .get(&other)
                            .is_some_and(|(other, _)| signature.has_same_shape(other))
                    }) => {}
                Ok(moved) => plan.functions.push(PlannedPatch {
                    name: signature.name,
                    code: bytes.unwrap_or_default().to_vec(),
                    moved,
                    is_outer: false,
                }),
                Err(why) => plan.skip(signature, &why)?,
            }
        }
        let ranges: Vec<_> = plan
            .functions
            .iter()
            .map(|each| each.moved.range.clone())
            .collect();
        if let Some((from, which)) = find_jump_into(code, &ranges) {
            let name = plan.functions[which].name;
            let why = format!("{name} is entered behind its first byte by a jump at {from:#x}");
            return Err(Error::NotPatched(why));
        }
        let mut reach = CallGraph::of(code);
        for function in &mut plan.functions {
            let start = function.moved.range.start;
            function.is_outer = allocates.contains(&start) && reach.reaches(start, &allocates);
        }
        Ok(plan)
    }

    fn skip(&mut self, signature: &Signature, why: &str) -> Result<(), Error> {
        let sentence = format!("{} {why}", signature.name);
        if signature.role == Role::Frees || signature.name == "malloc" {
            return Err(Error::NotPatched(sentence));
        }
        self.left_out.push(sentence);
        Ok(())
    }
}

/// The program's functions that have hooks, each with that of the most arguments: which lets all of them through.
fn hooked_functions(
    code: &ProgramCode,
) -> Result<BTreeMap<u64, (&'static Signature, &ProgramFunction)>, Error> {
    let mut known = BTreeMap::new();
    let mut names = HashSet::new();
    for (address, function) in code.functions() {
        let signatures = &function.hooks;
        let Some(widest) = signatures.iter().max_by_key(|each| each.arguments()) else {
            continue;
        };
        let not_led = |why: String| Err(Error::NotPatched(why));
        if function.is_indirect {
            return not_led(format!("{} is an indirect function", widest.name));
        }
        if let Some(other) = signatures.iter().find(|each| !each.has_same_shape(widest)) {
            let (one, other) = (widest.name, other.name);
            return not_led(format!(
                "{one} and {other} are one function, with different arguments"
            ));
        }
        if let Some(twice) = signatures.iter().find(|each| !names.insert(each.name)) {
            return not_led(format!(
                "the program has two functions that are called {}",
                twice.name
            ));
        }
        known.insert(address, (*widest, function));
    }
    match ["malloc", "free"]
        .iter()
        .find(|name| !names.contains(**name))
    {
        Some(missing) => Err(Error::NotPatched(format!(
            "the program's symbols do not name {missing}"
        ))),
        None => Ok(known),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x40_1000;
    /// push %rbx, six times; pop, six times; ret: can be moved.
    const PLAIN: [u8; 13] = [
        0x53, 0x53, 0x53, 0x53, 0x53, 0x53, 0x5b, 0x5b, 0x5b, 0x5b, 0x5b, 0x5b, 0xc3,
    ];
    const SHORT: [u8; 2] = [0x90, 0xc3];

    /// Names and whether they are outer ones, and what is left out; or the end of the reason.
    type Expected<'a> = Result<(&'a [(&'a str, bool)], &'a [&'a str]), &'a str>;

    /// Functions at 32 bytes each, by their names; what is planned for them, or why nothing is.
    fn check(functions: &[(&str, &[u8])], expected: Expected<'_>) {
        let mut bytes = Vec::new();
        let mut named = Vec::new();
        for (index, (names, code)) in functions.iter().enumerate() {
            let at = AT + 32 * index as u64;
            bytes.extend_from_slice(code);
            bytes.resize(32 * (index + 1), 0xcc);
            named.extend(names.split(' ').map(|name| (at, code.len() as u64, name)));
        }
        let code = ProgramCode::made(vec![(AT, bytes)], &named);
        match (PatchPlan::of(&code), expected) {
            (Ok(plan), Ok((planned, left_out))) => {
                let functions = plan.functions.iter();
                let found: Vec<_> = functions.map(|each| (each.name, each.is_outer)).collect();
                assert_eq!(
                    (&*found, plan.left_out),
                    (
                        planned,
                        left_out.iter().map(|why| (*why).to_owned()).collect()
                    )
                );
            }
            (Err(error), Err(why)) => assert!(error.to_string().ends_with(why), "{error}"),
            (plan, expected) => panic!("{functions:x?}: {plan:x?}, not {expected:?}"),
        }
    }

    /// A function that calls or jumps to one of the others.
    fn branch(opcode: u8, from: i32, to: i32) -> Vec<u8> {
        let distance = 32 * (to - from) - 11;
        [&PLAIN[..6], &[opcode], &distance.to_le_bytes(), &[0xc3]].concat()
    }

    #[test]
    fn functions_with_hooks_are_led_to_them() {
        let (malloc, free) = (("malloc", &PLAIN[..]), ("free", &PLAIN[..]));
        check(
            &[malloc, free, ("other", &PLAIN)],
            Ok((&[("malloc", false), ("free", false)], &[])),
        );
        // One function by several names: the hook of the most arguments lets all through.
        let frees = ("free cfree _ZdlPvm _ZdlPv", &PLAIN[..]);
        check(
            &[malloc, frees],
            Ok((&[("malloc", false), ("_ZdlPvm", false)], &[])),
        );
        let one = ("malloc calloc", &PLAIN[..]);
        check(
            &[one, free],
            Err("calloc and malloc are one function, with different arguments"),
        );
        check(
            &[malloc, free, malloc],
            Err("the program has two functions that are called malloc"),
        );
        check(&[malloc], Err("the program's symbols do not name free"));
        // What only allocates may stay; what frees must not.
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
    fn what_calls_other_functions_counts_once() {
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
            // To free is no allocation.
            let frees = branch(opcode, 2, 1);
            check(
                &[malloc, free, ("realloc", &frees)],
                Ok((&[plain[0], plain[1], ("realloc", false)], &[])),
            );
        }
        // It only jumps to another one, which has a hook.
        let forwards = [&[JUMP][..], &(-32 - 5_i32).to_le_bytes()].concat();
        check(&[malloc, free, ("_ZdlPv", &forwards)], Ok((&plain, &[])));
        let inside = [&[JUMP][..], &(2 - 64 - 5_i32).to_le_bytes()].concat();
        let why = "malloc is entered behind its first byte by a jump at 0x401040";
        check(&[malloc, free, ("other", &inside)], Err(why));
    }
}
