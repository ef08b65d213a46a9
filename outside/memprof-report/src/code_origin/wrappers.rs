//! Wrappers of malloc in the program, found by their shape: they are in front of the allocator, and return what it
//! gave to callers that chose its size; or many functions call them, and their names say that they allocate.

mod function_ids;

use std::cell::OnceCell;
use std::collections::BTreeMap;

use self::function_ids::{FunctionId, FunctionIds};
use super::allocating_name::AllocatingName;
use super::reason::{BlockUse, OriginReason, Verdict, WrapperShape};
use super::{CodeOrigin, CodeOrigins};
use crate::call_shape::{Argument, CallShape};
use crate::demangle::Language;
use crate::names::{Frame, StringId};
use crate::stacks::{AddressId, StackId};
use crate::symbolized_profile::SymbolizedProfile;

/// Different callers from which a function counts as one of general use.
const MANY_CALLERS: u32 = 3;

/// Most levels of wrappers around wrappers.
const MAX_ROUNDS: usize = 8;

/// Smallest share of the stacks with a wrapper in which it is in front of the allocator, in percent.
const MIN_FRONT_PERCENT: u32 = 75;

/// Uses of a block, in the order of their numbers.
const BLOCK_USES: [BlockUse; 3] = [BlockUse::PassedOn, BlockUse::Returned, BlockUse::Kept];

/// Calls by a function that lead directly to the allocator.
#[derive(Debug, Default)]
struct FrontCalls {
    stacks: Vec<StackId>,
    /// Callers, one for each stack.
    callers: Vec<FunctionId>,
    /// Numbers of stacks by the use of the block, in the order of [`BLOCK_USES`].
    block_uses: [u32; 3],
    /// Whether the function is little more than the call.
    is_short: bool,
    /// Whether many places of its file call the function.
    has_many_calls: bool,
    /// Whether it is in a library or an interpreter.
    is_in_library: bool,
    name: Option<StringId>,
    /// Stacks in which plumbing of the same file called it, where only the plumbing has a symbol.
    plumbing_callers: u32,
    /// Stacks in which the caller's name says that it allocates.
    allocating_callers: u32,
}

impl FrontCalls {
    /// Number of different functions among the callers: `callers` has one entry for each stack.
    fn count_distinct_callers(&self) -> u32 {
        let mut callers = self.callers.clone();
        callers.sort_unstable();
        callers.dedup();
        callers.len() as u32
    }
}

/// Finds wrappers of malloc, and wrappers around wrappers up to [`MAX_ROUNDS`] levels, and changes the verdicts on them
/// to plumbing, which reports fold into its callers. A function is no wrapper if, in more than a quarter of its stacks
/// ([`MIN_FRONT_PERCENT`]), another function of the program lies between it and the allocator.
pub(super) fn mark_wrappers(origins: &mut CodeOrigins, named: &SymbolizedProfile) {
    let functions = FunctionIds::new(named);
    let stacks = LeafView {
        named,
        allocates: vec![OnceCell::new(); functions.count],
        functions,
    };
    let candidates: Vec<_> = origins.verdicts.iter().map(may_be_wrapper).collect();
    let mut calls: BTreeMap<FunctionId, FrontCalls> = BTreeMap::new();
    // By function that may be a wrapper: the number of stacks that contain it.
    let mut uses: BTreeMap<FunctionId, u32> = BTreeMap::new();
    // Stacks to scan in the next round: in those of a new wrapper, its caller is now in front of the allocator.
    let mut pending: Vec<_> = (0..named.profile.stacks.len() as u32)
        .map(StackId)
        .collect();
    for _ in 0..MAX_ROUNDS {
        for stack in pending.drain(..) {
            stacks.add_front_call(origins, stack, &mut calls);
        }
        let shape = |(function, front): (&FunctionId, &FrontCalls)| {
            Some((*function, stacks.wrapper_shape(front)?))
        };
        let shapes: BTreeMap<_, _> = calls.iter().filter_map(shape).collect();
        if shapes.is_empty() {
            return;
        }
        let is_new = |function: &FunctionId| !uses.contains_key(function);
        let new: Vec<FunctionId> = shapes.keys().copied().filter(is_new).collect();
        if !new.is_empty() {
            let functions = &stacks.functions;
            uses.append(&mut functions.count_stacks_by_function(named, origins, &candidates, &new));
        }
        let mut wrappers: Vec<Option<WrapperShape>> = vec![None; stacks.functions.count];
        calls.retain(|function, front| {
            let Some(&shape) = shapes.get(function) else {
                return true;
            };
            let uses = uses[function];
            // A function that allocates mostly through others is no wrapper.
            if u64::from(shape.stacks) * 100 < u64::from(uses) * u64::from(MIN_FRONT_PERCENT) {
                return true;
            }
            wrappers[*function as usize] = Some(shape);
            pending.append(&mut front.stacks);
            false
        });
        if pending.is_empty() {
            return;
        }
        stacks.treat_wrappers_as_plumbing(origins, &wrappers);
    }
}

/// Returns whether a function with this verdict may turn out to be a wrapper of malloc. False if a rule, a pattern of
/// the user or other strong evidence decided.
fn may_be_wrapper(verdict: &Verdict) -> bool {
    match verdict.reason {
        OriginReason::MappedFile => verdict.origin == CodeOrigin::Interpreter,
        OriginReason::OwnSource
        | OriginReason::Program
        | OriginReason::SystemLibrary
        | OriginReason::NamedInLibrary
        | OriginReason::UnnamedInLibrary
        | OriginReason::UnnamedInModule => true,
        OriginReason::Pattern
        | OriginReason::Script
        | OriginReason::ScriptLibrary(_)
        | OriginReason::LibrarySource(_)
        | OriginReason::LibrarySourceAndName(_)
        | OriginReason::Unloaded
        | OriginReason::HelperInLibrary
        | OriginReason::Wrapper(_)
        | OriginReason::Name(_)
        | OriginReason::Unknown => false,
    }
}

/// Returns whether a verdict is on a function with a symbol in a library, or on a function in an interpreter's file. A
/// function there counts as a wrapper if only its name says that it allocates.
fn is_in_library(verdict: &Verdict) -> bool {
    matches!(
        verdict.reason,
        OriginReason::SystemLibrary | OriginReason::NamedInLibrary | OriginReason::MappedFile
    )
}

/// Stacks of a profile, seen from the leaf.
struct LeafView<'p> {
    named: &'p SymbolizedProfile,
    functions: FunctionIds,
    /// By function id: whether the function's name says that it allocates, once that was asked.
    allocates: Vec<OnceCell<bool>>,
}

/// A frame at the end of a stack, with the index of its [`Verdict`].
#[derive(Clone, Copy)]
struct LeafFrame<'p> {
    address: AddressId,
    frame: &'p Frame,
    function: FunctionId,
    /// Whether it is the function whose code contains the address, not an inlined one.
    is_outermost: bool,
    verdict: usize,
}

impl<'p> LeafView<'p> {
    /// Iterates over the frames of a stack, leaf first, without those of the allocator's addresses at the leaf.
    fn leaf_frames<'s>(
        &'s self,
        origins: &'s CodeOrigins,
        stack: StackId,
    ) -> impl Iterator<Item = LeafFrame<'p>> + 's {
        let addresses = self.named.program_frames(stack).iter();
        addresses.flat_map(move |&address| {
            let frames = self.named.names.frames(address);
            let verdicts = &origins.by_address[address.0 as usize];
            let functions = &self.functions.by_address[address.0 as usize];
            (0..frames.len()).map(move |index| LeafFrame {
                address,
                frame: &frames[index],
                function: functions[index],
                is_outermost: index + 1 == frames.len(),
                verdict: verdicts[index] as usize,
            })
        })
    }

    /// Finds the function of a stack that comes first after the allocator and plumbing at the leaf. Adds the stack, the
    /// function's caller and the function's use of the block to the entry of this function in `calls`. A library's
    /// function without a symbol is replaced by the function that it helps, see
    /// [`front_frame_and_caller`](Self::front_frame_and_caller). Adds nothing if the function cannot be a wrapper, or
    /// has no caller.
    fn add_front_call(
        &self,
        origins: &CodeOrigins,
        stack: StackId,
        calls: &mut BTreeMap<FunctionId, FrontCalls>,
    ) {
        let mut frames = self.leaf_frames(origins, stack);
        let mut callee = None;
        let front = frames.find(|frame| {
            let is_plumbing = origins.verdicts[frame.verdict].origin <= CodeOrigin::Plumbing
                || origins.is_allocator[frame.verdict];
            if is_plumbing {
                callee = Some(frame.frame.function);
            }
            !is_plumbing
        });
        let Some(front) = front.filter(|front| may_be_wrapper(&origins.verdicts[front.verdict]))
        else {
            return;
        };
        let (front, caller) = self.front_frame_and_caller(origins, front, &mut frames);
        let Some(caller) = caller else {
            return;
        };
        let calls = calls.entry(front.function).or_default();
        calls.stacks.push(stack);
        calls.callers.push(caller.function);
        calls.plumbing_callers += u32::from(self.is_plumbing_helper(origins, front, caller));
        calls.allocating_callers += u32::from(self.has_allocating_name(caller));
        calls.name = front.frame.named.then_some(front.frame.function);
        calls.is_in_library = is_in_library(&origins.verdicts[front.verdict]);
        let shape = self.named.names.call_shapes.get(&front.address);
        if let Some(shape) = shape.filter(|_| front.is_outermost) {
            let callee = callee.map_or("malloc", |callee| self.named.names.strings.get(callee));
            calls.is_short = shape.is_short;
            calls.has_many_calls = shape.has_many_calls;
            let block_use = match block_use(shape, callee) {
                _ if self.is_rust_or_d(front.frame) => BlockUse::Kept,
                block_use => block_use,
            };
            calls.block_uses[block_use as usize] += 1;
        }
    }

    /// Returns the function that counts as the one in front of the allocator, and its caller, which is `None` at the
    /// root. A library's function without a symbol is taken for a helper of the nearest caller that has a symbol and
    /// lies in the same file; that caller counts in its place, if it exists and may be a wrapper. Otherwise `first`
    /// counts. `frames` yields the frames after `first`, towards the root.
    fn front_frame_and_caller(
        &self,
        origins: &CodeOrigins,
        first: LeafFrame<'p>,
        frames: &mut impl Iterator<Item = LeafFrame<'p>>,
    ) -> (LeafFrame<'p>, Option<LeafFrame<'p>>) {
        let caller = frames.next();
        let reason = origins.verdicts[first.verdict].reason;
        if !matches!(reason, OriginReason::UnnamedInLibrary) {
            return (first, caller);
        }
        let mut next = caller;
        while let Some(frame) = next.filter(|frame| self.are_in_same_mapping(first, *frame)) {
            next = frames.next();
            if !frame.frame.named {
                continue;
            }
            if !may_be_wrapper(&origins.verdicts[frame.verdict]) {
                break;
            }
            // The call in its code is that of the helper, not of the allocator.
            let front = LeafFrame {
                is_outermost: false,
                ..frame
            };
            return (front, next);
        }
        (first, caller)
    }

    /// Returns whether `callee` is a helper of plumbing: it has no symbol, and its `caller` is plumbing, has a symbol
    /// and lies in the same file.
    fn is_plumbing_helper(
        &self,
        origins: &CodeOrigins,
        callee: LeafFrame<'_>,
        caller: LeafFrame<'_>,
    ) -> bool {
        let is_plumbing = origins.verdicts[caller.verdict].origin == CodeOrigin::Plumbing;
        is_plumbing
            && caller.frame.named
            && !callee.frame.named
            && self.are_in_same_mapping(callee, caller)
    }

    /// Returns whether a function has a symbol whose name says that it allocates. Parses each function's name once.
    fn has_allocating_name(&self, frame: LeafFrame<'_>) -> bool {
        let name = self.named.names.strings.get(frame.frame.function);
        let allocates = || AllocatingName::parse(name).allocates;
        frame.frame.named && *self.allocates[frame.function as usize].get_or_init(allocates)
    }

    /// Returns whether two frames lie in one mapping; true also for two frames that are in no mapping.
    fn are_in_same_mapping(&self, one: LeafFrame<'_>, other: LeafFrame<'_>) -> bool {
        let mapping_of = |frame: LeafFrame<'_>| self.named.profile.mapping_of_frame(frame.address);
        mapping_of(one) == mapping_of(other)
    }

    /// Returns whether a function is written in Rust or D, by its symbol; false without a symbol. In these languages, a
    /// function returns an object of its own, not a block for its caller, so it is no wrapper of malloc.
    fn is_rust_or_d(&self, frame: &Frame) -> bool {
        let symbol = frame.linkage.map(|id| self.named.names.strings.get(id));
        matches!(
            symbol.and_then(Language::from_symbol),
            Some(Language::Rust | Language::D)
        )
    }

    /// Decides whether a function is a wrapper of malloc, and returns the evidence for it; `None` if it is no wrapper.
    /// The function's most frequent use of the block, its name and its callers decide: how many callers there are, in
    /// the profile or in its file, and whether their names say that they allocate. A function that is mostly called by
    /// plumbing, as its helper, is a wrapper in any case.
    fn wrapper_shape(&self, calls: &FrontCalls) -> Option<WrapperShape> {
        let name = calls.name.map(|name| self.named.names.strings.get(name));
        let name = name.map(AllocatingName::parse).unwrap_or_default();
        let callers = calls.count_distinct_callers();
        let is_general = callers >= MANY_CALLERS || calls.has_many_calls;
        let most = calls.block_uses.iter().max().filter(|most| **most > 0);
        let block_use = most.and_then(|most| {
            let index = calls.block_uses.iter().position(|count| count == most)?;
            Some(BLOCK_USES[index])
        });
        let is_helper = u64::from(calls.plumbing_callers) * 100
            >= calls.stacks.len() as u64 * u64::from(MIN_FRONT_PERCENT);
        let is_wrapper = match block_use {
            _ if is_helper => true,
            _ if calls.is_in_library && name.allocates => true,
            Some(BlockUse::PassedOn) if calls.name.is_none() && calls.is_short => true,
            Some(BlockUse::PassedOn) => {
                is_general || name.mentions_memory || (name.grows && callers > 1)
            }
            // A compiler's copy of a wrapper for one size has this form, too.
            Some(BlockUse::Returned) => {
                (name.allocates && callers > 1) || (name.grows && is_general)
            }
            // Wrappers with a header or a list of blocks are called by those for strings, zeroed blocks and so on.
            Some(BlockUse::Kept) if name.allocates => {
                is_general || calls.allocating_callers as usize == calls.stacks.len()
            }
            Some(BlockUse::Kept) => is_general && name.grows,
            None => name.allocates || (name.grows && is_general),
        };
        is_wrapper.then_some(WrapperShape {
            stacks: calls.stacks.len() as u32,
            callers,
            block_use,
            has_many_calls: calls.has_many_calls,
            has_allocating_name: name.allocates || name.grows || name.mentions_memory,
        })
    }

    /// Changes the verdicts on wrappers to plumbing, unless stronger evidence has decided on them. `wrappers` has, by
    /// function id, the evidence that the function is a wrapper; `None` if it is none.
    fn treat_wrappers_as_plumbing(
        &self,
        origins: &mut CodeOrigins,
        wrappers: &[Option<WrapperShape>],
    ) {
        for (functions, verdicts) in self.functions.by_address.iter().zip(&origins.by_address) {
            for (function, verdict) in functions.iter().zip(verdicts) {
                let verdict = &mut origins.verdicts[*verdict as usize];
                if let Some(shape) = wrappers[*function as usize]
                    && may_be_wrapper(verdict)
                {
                    *verdict = Verdict::new(CodeOrigin::Plumbing, OriginReason::Wrapper(shape));
                }
            }
        }
    }
}

/// Returns the use that a function makes of a block that it allocates: it keeps the block, returns a block of constant
/// size, or returns a block of a size that its caller chose. `callee` is the allocation function that it calls, and
/// `shape` describes the machine code around this call.
fn block_use(shape: &CallShape, callee: &str) -> BlockUse {
    let [first, second] = shape.arguments;
    // A constant size: the argument of malloc, both of calloc, the second of realloc.
    let is_first_fixed = first == Argument::Constant && second != Argument::Computed;
    let is_fixed = is_first_fixed || (callee.contains("realloc") && second == Argument::Constant);
    match shape.returns_result {
        true if is_fixed => BlockUse::Returned,
        true => BlockUse::PassedOn,
        false => BlockUse::Kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Names;
    use crate::profile::Profile;

    #[test]
    fn unnamed_function_that_passes_blocks_on_is_wrapper_if_short_or_called_often() {
        let named = SymbolizedProfile {
            profile: Profile::default(),
            names: Names::default(),
            depths: Vec::new(),
        };
        let view = LeafView {
            functions: FunctionIds::new(&named),
            named: &named,
            allocates: Vec::new(),
        };
        let check = |block_use: BlockUse, mut calls: FrontCalls, expected| {
            calls.stacks = vec![StackId(0)];
            calls.callers = vec![0];
            calls.block_uses[block_use as usize] = 1;
            assert_eq!(view.wrapper_shape(&calls).is_some(), expected, "{calls:?}");
        };
        let short = || FrontCalls {
            is_short: true,
            ..FrontCalls::default()
        };
        let called_often = || FrontCalls {
            has_many_calls: true,
            ..FrontCalls::default()
        };
        check(BlockUse::PassedOn, FrontCalls::default(), false);
        check(BlockUse::PassedOn, short(), true);
        check(BlockUse::PassedOn, called_often(), true);
        check(BlockUse::Returned, called_often(), false);
        check(BlockUse::Kept, called_often(), false);
    }
}
