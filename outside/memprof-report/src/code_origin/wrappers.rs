//! Wrappers of malloc in the program, found by their shape: they are in front of the allocator, and return what it
//! gave to callers that chose its size; or many functions call them, and their names say that they allocate.

use std::collections::{HashMap, HashSet};

use super::reason::{BlockUse, OriginReason, Verdict, WrapperShape};
use super::rules::{ALLOCATING_ENDS, GROWING_ENDS, MEMORY_PARTS};
use super::{CodeOrigin, CodeOrigins};
use crate::call_shape::{Argument, CallShape};
use crate::demangle::Language;
use crate::names::{Frame, StringId};
use crate::stacks::{AddressId, StackId};
use crate::symbolized_profile::SymbolizedProfile;

/// Different callers from which a function counts as one of general use.
const MANY_CALLERS: u32 = 3;

/// Most wrappers around wrappers.
const MAX_ROUNDS: usize = 8;

/// Smallest share of the stacks with a wrapper in which it is in front of the allocator, in percent.
const MIN_FRONT_PERCENT: u32 = 75;

/// Uses of a block, in the order of their numbers.
const BLOCK_USES: [BlockUse; 3] = [BlockUse::PassedOn, BlockUse::Returned, BlockUse::Kept];

/// A function: by its name or, without one, by its mapping and start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FunctionKey {
    Named(StringId),
    At(Option<usize>, u64),
}

/// Calls of a function's own that lead to the allocator.
#[derive(Debug, Default)]
struct FrontCalls {
    stacks: u32,
    callers: HashSet<FunctionKey>,
    /// Numbers of stacks by the use of the block, in the order of [`BLOCK_USES`].
    block_uses: [u32; 3],
    /// Whether the function is little more than the call.
    is_short: bool,
    /// Whether it is in a library or an interpreter.
    is_in_library: bool,
    name: Option<StringId>,
}

/// Marks the verdicts on wrappers of malloc as plumbing.
pub(super) fn mark(origins: &mut CodeOrigins, named: &SymbolizedProfile) {
    let stacks = LeafView { named };
    for _ in 0..MAX_ROUNDS {
        let mut wrappers: HashMap<FunctionKey, WrapperShape> = stacks
            .front_calls(origins)
            .into_iter()
            .filter_map(|(key, calls)| Some((key, stacks.wrapper_shape(&calls)?)))
            .collect();
        if wrappers.is_empty() {
            return;
        }
        stacks.drop_other_uses(origins, &mut wrappers);
        let mut changed = false;
        for index in 0..origins.by_address.len() {
            let id = AddressId(index as u32);
            for (position, frame) in named.names.frames(id).iter().enumerate() {
                let Some(shape) = wrappers.get(&stacks.key(id, frame)) else {
                    continue;
                };
                let verdict = &mut origins.verdicts[origins.by_address[index][position] as usize];
                if is_candidate(verdict) {
                    let reason = OriginReason::Wrapper(*shape);
                    *verdict = Verdict::new(CodeOrigin::Plumbing, reason);
                    changed = true;
                }
            }
        }
        if !changed {
            return;
        }
    }
}

/// Returns whether a verdict may be changed by a function's shape: no stronger evidence or rule decided.
fn is_candidate(verdict: &Verdict) -> bool {
    match verdict.reason {
        OriginReason::MappedFile => verdict.origin == CodeOrigin::Interpreter,
        OriginReason::OwnSource
        | OriginReason::Program
        | OriginReason::SystemLibrary
        | OriginReason::NamedInLibrary
        | OriginReason::UnnamedInLibrary => true,
        OriginReason::Pattern
        | OriginReason::LibrarySource(_)
        | OriginReason::LibrarySourceAndName(_)
        | OriginReason::Wrapper(_)
        | OriginReason::Name(_)
        | OriginReason::Unknown => false,
    }
}

/// Returns whether the function is in a library or an interpreter: there, one that allocates by its name is a wrapper.
fn is_in_library(verdict: &Verdict) -> bool {
    matches!(
        verdict.reason,
        OriginReason::SystemLibrary | OriginReason::NamedInLibrary | OriginReason::MappedFile
    )
}

/// Stacks of a profile, seen from the leaf.
struct LeafView<'p> {
    named: &'p SymbolizedProfile,
}

/// A frame at the end of a stack, with the index of its [`Verdict`].
#[derive(Clone, Copy)]
struct LeafFrame<'p> {
    address: AddressId,
    frame: &'p Frame,
    /// Whether it is the function whose code contains the address, not an inlined one.
    is_outermost: bool,
    verdict: usize,
}

impl<'p> LeafView<'p> {
    /// Frames of a stack, leaf first, without the allocator's addresses.
    fn frames<'s>(
        &'s self,
        origins: &'s CodeOrigins,
        stack: StackId,
    ) -> impl Iterator<Item = LeafFrame<'p>> + 's {
        let depth = self.named.depths[stack.0 as usize] as usize;
        let addresses = &self.named.profile.stacks.frames(stack)[depth..];
        addresses.iter().flat_map(move |&address| {
            let frames = self.named.names.frames(address);
            let verdicts = &origins.by_address[address.0 as usize];
            frames
                .iter()
                .zip(verdicts)
                .enumerate()
                .map(move |(index, (frame, verdict))| LeafFrame {
                    address,
                    frame,
                    is_outermost: index + 1 == frames.len(),
                    verdict: *verdict as usize,
                })
        })
    }

    fn key(&self, address: AddressId, frame: &Frame) -> FunctionKey {
        let shape = self.named.names.call_shapes.get(&address);
        match (frame.named, shape) {
            (false, Some(shape)) => {
                let mapping = self.named.profile.mapping_of_frame(address);
                FunctionKey::At(mapping, shape.function)
            }
            _ => FunctionKey::Named(frame.function),
        }
    }

    /// Returns, for each candidate that is the first frame after the allocator and plumbing, the stacks in which it is.
    fn front_calls(&self, origins: &CodeOrigins) -> HashMap<FunctionKey, FrontCalls> {
        let mut calls: HashMap<FunctionKey, FrontCalls> = HashMap::new();
        for index in 0..self.named.profile.stacks.len() {
            let mut frames = self.frames(origins, StackId(index as u32));
            let mut callee = "malloc";
            let front = frames.find(|frame| {
                let is_plumbing = origins.verdicts[frame.verdict].origin <= CodeOrigin::Plumbing
                    || origins.is_allocator[frame.verdict];
                if is_plumbing {
                    callee = self.named.names.strings.get(frame.frame.function);
                }
                !is_plumbing
            });
            let Some(front) = front.filter(|front| is_candidate(&origins.verdicts[front.verdict]))
            else {
                continue;
            };
            let Some(caller) = frames.next() else {
                continue;
            };
            let key = self.key(front.address, front.frame);
            let calls = calls.entry(key).or_default();
            calls.stacks += 1;
            calls.callers.insert(self.key(caller.address, caller.frame));
            calls.name = front.frame.named.then_some(front.frame.function);
            let shape = self.named.names.call_shapes.get(&front.address);
            calls.is_in_library = is_in_library(&origins.verdicts[front.verdict]);
            if let Some(shape) = shape.filter(|_| front.is_outermost) {
                calls.is_short = shape.is_short;
                let block_use = match block_use(shape, callee) {
                    _ if self.is_checked_language(front.frame) => BlockUse::Kept,
                    block_use => block_use,
                };
                calls.block_uses[block_use as usize] += 1;
            }
        }
        calls
    }

    /// Returns whether a function is of a language in which blocks have owners: what it returns is its own object.
    fn is_checked_language(&self, frame: &Frame) -> bool {
        let symbol = frame.linkage.map(|id| self.named.names.strings.get(id));
        matches!(
            symbol.and_then(Language::from_symbol),
            Some(Language::Rust | Language::D)
        )
    }

    /// Returns the shape of a wrapper. `None` if the function is none.
    fn wrapper_shape(&self, calls: &FrontCalls) -> Option<WrapperShape> {
        let name = calls.name.map(|name| self.named.names.strings.get(name));
        let name = name.map(AllocatingName::parse).unwrap_or_default();
        let callers = calls.callers.len() as u32;
        let is_general = callers >= MANY_CALLERS;
        let most = calls.block_uses.iter().max().filter(|most| **most > 0);
        let block_use = most.and_then(|most| {
            let index = calls.block_uses.iter().position(|count| count == most)?;
            Some(BLOCK_USES[index])
        });
        let is_wrapper = match block_use {
            _ if calls.is_in_library && name.allocates => true,
            Some(BlockUse::PassedOn) if calls.name.is_none() && calls.is_short => true,
            Some(BlockUse::PassedOn) => {
                is_general || name.mentions_memory || (name.grows && callers > 1)
            }
            // Copies of a function for one size are of this form too.
            Some(BlockUse::Returned) => {
                (name.allocates && callers > 1) || (name.grows && is_general)
            }
            Some(BlockUse::Kept) => is_general && (name.allocates || name.grows),
            None => name.allocates || (name.grows && is_general),
        };
        is_wrapper.then_some(WrapperShape {
            stacks: calls.stacks,
            callers,
            block_use,
            has_allocating_name: name.allocates || name.grows || name.mentions_memory,
        })
    }

    /// Removes those functions that allocate mostly through others.
    fn drop_other_uses(
        &self,
        origins: &CodeOrigins,
        wrappers: &mut HashMap<FunctionKey, WrapperShape>,
    ) {
        let mut uses: HashMap<FunctionKey, u32> = HashMap::new();
        let mut seen = Vec::new();
        for index in 0..self.named.profile.stacks.len() {
            seen.clear();
            for frame in self.frames(origins, StackId(index as u32)) {
                if !is_candidate(&origins.verdicts[frame.verdict]) {
                    continue;
                }
                let key = self.key(frame.address, frame.frame);
                if wrappers.contains_key(&key) && !seen.contains(&key) {
                    seen.push(key);
                    *uses.entry(key).or_default() += 1;
                }
            }
        }
        wrappers.retain(|key, shape| {
            let uses = uses.get(key).copied().unwrap_or_default();
            u64::from(shape.stacks) * 100 >= u64::from(uses) * u64::from(MIN_FRONT_PERCENT)
        });
    }
}

/// Returns the use of the block that a call of `callee` gave.
fn block_use(shape: &CallShape, callee: &str) -> BlockUse {
    let [first, second] = shape.arguments;
    let is_first_fixed = first == Argument::Constant && second != Argument::Computed;
    let is_fixed = is_first_fixed || (callee.contains("realloc") && second == Argument::Constant);
    match shape.returns_result {
        true if is_fixed => BlockUse::Returned,
        true => BlockUse::PassedOn,
        false => BlockUse::Kept,
    }
}

/// Hints of a name at allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AllocatingName {
    /// Whether a word of the name says that the function returns a new block, or a copy.
    allocates: bool,
    /// Whether a word says that it creates or enlarges something.
    grows: bool,
    /// Whether a word means memory.
    mentions_memory: bool,
}

impl AllocatingName {
    /// Parses the last component of a path. Numbers, and a letter that marks a variant, are no part of it.
    fn parse(name: &str) -> Self {
        let plain = name.split('(').next().unwrap_or(name);
        let plain = plain.trim_end_matches('>');
        let last = plain.rsplit(['.', ':', '<', ' ']).next().unwrap_or(plain);
        let lower = last.to_ascii_lowercase();
        let trimmed = lower.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
        let word = match trimmed.rsplit_once('_') {
            Some((rest, letter)) if letter.len() == 1 => rest,
            _ => trimmed,
        };
        let ends = |ends: &[&str]| ends.iter().any(|end| word.ends_with(end));
        let words = format!("_{lower}_");
        let allocates = ends(ALLOCATING_ENDS);
        Self {
            allocates,
            grows: ends(GROWING_ENDS),
            mentions_memory: allocates || MEMORY_PARTS.iter().any(|part| words.contains(part)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AllocatingName;

    #[test]
    fn names_of_wrappers_say_that_they_allocate() {
        let check = |name, allocates, grows, mentions_memory| {
            let expected = AllocatingName {
                allocates,
                grows,
                mentions_memory,
            };
            assert_eq!(AllocatingName::parse(name), expected, "{name}");
        };
        for name in [
            "xmalloc",
            "CPLMalloc",
            "MEM_mallocN",
            "tor_malloc_",
            "ber_memalloc_x",
            "g_strdup",
            "isc__mem_get",
            "aws_mem_acquire",
            "ruby_xmalloc2",
            "shop::Pool::allocate",
            "arena<int>::allocate",
            "caml_stat_alloc_2",
        ] {
            check(name, true, false, true);
        }
        for name in [
            "AcquireQuantumMemory",
            "pool_alloc_nocache",
            "malloc_multiply",
            "palloc_room",
        ] {
            check(name, false, false, true);
        }
        for name in ["buffer_new", "table_grow", "Vec::reserve"] {
            check(name, false, true, false);
        }
        for name in [
            "load_config",
            "session_open",
            "list_append",
            "add_member",
            "system_get",
            "add_up",
            "main",
            "",
            "Cart::add",
        ] {
            check(name, false, false, false);
        }
    }
}
