//! Functions of a fold: their names, code origins, and what the fold asks of them.

use std::collections::HashMap;

use super::Granularity;
use super::unnamed_places::UnnamedPlaces;
use crate::allocator_frames::is_allocator_frame;
use crate::closures::{OuterFrame, is_closure, qualified_closure_name};
use crate::code_origin::CodeOrigin;
use crate::managed::Place;
use crate::names::{Frame, Names, StringId, Strings};
use crate::stacks::AddressId;

/// Functions by id, in the order in which they were entered.
#[derive(Debug, Default)]
pub(super) struct FunctionTable {
    pub(super) functions: Strings,
    pub(super) origins: Vec<CodeOrigin>,
    /// By function: whether it is the allocator's.
    is_allocator: Vec<bool>,
    /// By function: whether it is a closure whose name lacks the path.
    is_closure: Vec<bool>,
    pub(super) places: HashMap<StringId, Place>,
    pub(super) unnamed_places: UnnamedPlaces,
}

impl FunctionTable {
    /// Returns whether a function is the allocator's, by its name.
    pub(super) fn is_allocator(&self, function: StringId) -> bool {
        self.is_allocator[function.0 as usize]
    }

    /// Returns whether a function is a closure whose name lacks the path.
    pub(super) fn is_closure(&self, function: StringId) -> bool {
        self.is_closure[function.0 as usize]
    }

    /// Returns, by function id, the position of the function's name in sorted order.
    pub(super) fn name_ranks(&self) -> Vec<u32> {
        let mut ranks = vec![0; self.functions.len()];
        for (rank, id) in (0..).zip(ids_by_name(&self.functions)) {
            ranks[id.0 as usize] = rank;
        }
        ranks
    }

    /// Returns the id of a frame's function, or of its function and line with [`Granularity::Lines`] if the source file
    /// is known. `function` is the function's name. The id keeps the highest `origin` that any call gave for it.
    pub(super) fn intern_function(
        &mut self,
        frame: &Frame,
        function: &str,
        names: &Names,
        granularity: Granularity,
        origin: CodeOrigin,
    ) -> StringId {
        let id = match (granularity, frame.file) {
            (Granularity::Lines, Some(file)) => {
                let name = format!("{function} {}:{}", names.strings.get(file), frame.line);
                self.functions.intern(&name)
            }
            _ => self.functions.intern(function),
        };
        let index = id.0 as usize;
        if index == self.is_allocator.len() {
            self.is_allocator.push(is_allocator_frame(frame, names));
            self.is_closure
                .push(frame.linkage.is_none() && is_closure(function));
            self.origins.push(CodeOrigin::default());
        }
        // A function that is in several files, or in the base too, is the program's own if one of them is.
        self.origins[index] = self.origins[index].max(origin);
        id
    }

    /// Returns the id of a function of an interpreted program together with its line: each line has a row of its own in
    /// a report. Records the language, file and line in `places`. The id keeps the highest `origin` that any call gave
    /// for it.
    pub(super) fn intern_managed_function(
        &mut self,
        frame: &Frame,
        language: StringId,
        names: &Names,
        origin: CodeOrigin,
    ) -> StringId {
        let function = names.strings.get(frame.function);
        let file = frame.file.map(|file| names.strings.get(file));
        let id = self.functions.intern(&match (file, frame.line) {
            (None, _) => function.to_owned(),
            (Some(file), 0) => format!("{function} {file}"),
            (Some(file), line) => format!("{function} {file}:{line}"),
        });
        let index = id.0 as usize;
        if index == self.origins.len() {
            self.is_allocator.push(false);
            self.is_closure.push(false);
            self.origins.push(origin);
        }
        self.origins[index] = self.origins[index].max(origin);
        self.places.entry(id).or_insert_with(|| Place {
            language: names.strings.get(language).to_owned(),
            file: file.map(str::to_owned),
            line: frame.line,
        });
        id
    }

    /// Replaces closures whose names lack a path by names with the path, which are found in the names of the frames
    /// that called them. Returns whether any was replaced. `functions` are those of one stack, leaf first: one for each
    /// frame of the stack's `addresses`. `mentions_closure` says by string id whether a name may contain the type of a
    /// closure.
    pub(super) fn qualify_closures(
        &mut self,
        functions: &mut [StringId],
        addresses: &[AddressId],
        names: &Names,
        mentions_closure: &[bool],
    ) -> bool {
        let frames: Vec<&Frame> = addresses.iter().flat_map(|id| names.frames(*id)).collect();
        let mut is_changed = false;
        for (index, function) in functions.iter_mut().enumerate() {
            let at = function.0 as usize;
            if !self.is_closure[at] {
                continue;
            }
            let outer = frames[index + 1..].iter().map(|frame| OuterFrame {
                name: names.strings.get(frame.function),
                is_same_file: frame.file == frames[index].file,
                mentions_closure: mentions_closure[frame.function.0 as usize],
            });
            let Some(name) = qualified_closure_name(self.functions.get(*function), outer) else {
                continue;
            };
            let qualified = self.functions.intern(&name);
            is_changed |= qualified != *function;
            *function = qualified;
            let (is_allocator, origin) = (self.is_allocator[at], self.origins[at]);
            if function.0 as usize == self.origins.len() {
                self.is_allocator.push(is_allocator);
                self.is_closure.push(false);
                self.origins.push(origin);
            }
        }
        is_changed
    }
}

/// Ids of all strings, sorted by the strings.
pub(super) fn ids_by_name(strings: &Strings) -> Vec<StringId> {
    let mut ids: Vec<StringId> = (0..strings.len() as u32).map(StringId).collect();
    ids.sort_unstable_by_key(|id| strings.get(*id));
    ids
}
