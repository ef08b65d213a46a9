//! Folded stacks: root first, by function, each stack once. All formats except pprof and jeprof are rendered from
//! them.

mod folded_stacks;

use std::collections::HashMap;

use self::folded_stacks::StackIndex;
pub use self::folded_stacks::{FoldedStack, FoldedStacks};
use crate::allocator_frames::is_allocator_function;
use crate::closures::{OuterFrame, is_closure, mentions_closure, qualified_closure};
use crate::code_origin::{CodeOrigin, CodeOrigins, OriginRules};
use crate::comparison::Comparison;
use crate::confidence::Confidence;
use crate::managed::Place;
use crate::names::{Frame, Names, StringId, Strings};
use crate::overloads::{FunctionNames, Overloads};
use crate::profile::SampleType;
use crate::stacks::AddressId;
use crate::symbolized_profile::SymbolizedProfile;

/// Granularity of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// One frame per function name.
    #[default]
    Functions,
    /// One frame per name, file and line.
    Lines,
}

/// Folded stacks of a profile, and of its base in a comparison.
#[derive(Debug, Default)]
pub struct Folded {
    /// Names of the functions.
    pub functions: Strings,
    /// Code origin of each function, by its id.
    pub origins: Vec<CodeOrigin>,
    /// Stacks in the order of their function names.
    pub stacks: FoldedStacks,
    /// Whether only the frames of the highest code origin in each stack are visible.
    pub(crate) is_origin_filtered: bool,
    /// Places of the functions of interpreted programs.
    pub(crate) places: HashMap<StringId, Place>,
}

impl Folded {
    /// Folds a profile and, for a comparison, its `base`; without one, the base values are 0. Stacks are matched by
    /// name, never by address, so the two may come from different runs and builds.
    pub fn new(
        profile: &SymbolizedProfile,
        base: Option<&SymbolizedProfile>,
        sample_type: SampleType,
        granularity: Granularity,
        origin_rules: &OriginRules,
    ) -> Self {
        let mut fold = FoldBuilder::default();
        let overloads = Overloads::new([Some(profile), base].into_iter().flatten());
        let selection = Selection {
            sample_type,
            granularity,
            overloads: &overloads,
        };
        fold.add(profile, selection, origin_rules, |values| &mut values.new);
        if let Some(base) = base {
            fold.add(base, selection, origin_rules, |values| &mut values.base);
            fold.stacks.clear_unchanged_variance();
        }
        fold.into_sorted()
    }

    /// Visible functions of a stack, root first: all, or, after `with_origin_filter`, those of its highest code origin.
    pub(crate) fn visible_functions<'s>(
        &self,
        stack: FoldedStack<'s>,
    ) -> impl Iterator<Item = StringId> + use<'s, '_> {
        let origin_of = |id: &StringId| self.origins[id.0 as usize];
        let highest = match self.is_origin_filtered {
            true => stack.functions.iter().map(origin_of).max(),
            false => None,
        };
        let functions = stack.functions.iter().copied();
        functions.filter(move |id| highest.is_none_or(|highest| origin_of(id) == highest))
    }

    /// Keeps the stacks whole but lets [`visible_functions`](Self::visible_functions) return only frames of the
    /// highest code origin in each stack (program before library before …). Used for tables.
    pub(crate) fn with_origin_filter(self) -> Self {
        Self {
            is_origin_filtered: true,
            ..self
        }
    }

    /// Reduces each stack to the frames of its highest code origin: the program's own functions if there are any. A
    /// stack's value then counts for the last of these.
    pub fn into_origin_filtered(mut self) -> Self {
        let origins = &self.origins;
        let origin_of = |id: StringId| origins[id.0 as usize];
        self.stacks.retain_functions(|functions| {
            let highest = functions.iter().map(|id| origin_of(*id)).max();
            move |id| Some(origin_of(id)) == highest
        });
        self.stacks.sort(&ids_by_name(&self.functions));
        self.is_origin_filtered = true;
        self
    }
}

/// Selects the value of samples and the names of frames for folding.
#[derive(Clone, Copy)]
struct Selection<'a> {
    sample_type: SampleType,
    granularity: Granularity,
    overloads: &'a Overloads,
}

/// Folded stacks that are being built.
#[derive(Default)]
struct FoldBuilder {
    functions: Strings,
    origins: Vec<CodeOrigin>,
    /// By function: whether it is the allocator's.
    is_allocator: Vec<bool>,
    /// By function: whether it is a closure whose name lacks the path.
    is_closure: Vec<bool>,
    stacks: FoldedStacks,
    index: StackIndex,
    places: HashMap<StringId, Place>,
}

impl FoldBuilder {
    /// Adds a profile's samples to the stacks of function names, without the allocator's frames at the leaf. Leaves out
    /// samples whose value of the selected type is 0. `side` selects the value to add to: the profile's or the base's.
    fn add(
        &mut self,
        named: &SymbolizedProfile,
        selection: Selection<'_>,
        origin_rules: &OriginRules,
        side: impl Fn(&mut Comparison) -> &mut i64,
    ) {
        let SymbolizedProfile {
            profile,
            names,
            depths,
        } = named;
        let sample_type = selection.sample_type;
        let origins = CodeOrigins::new(named, origin_rules);
        let mut function_names = FunctionNames::new(names, selection.overloads, origin_rules.flat);
        let by_address: Vec<Box<[StringId]>> = (0..profile.stacks.addresses().len())
            .map(|index| {
                let id = AddressId(index as u32);
                let frames = names.frames(id).iter().zip(origins.origins(id));
                frames
                    .map(|(frame, origin)| match names.language(id) {
                        Some(language) => self.intern_managed(frame, language, names, origin),
                        None => {
                            let function = function_names.name(frame);
                            self.intern_function(
                                frame,
                                &function,
                                names,
                                selection.granularity,
                                origin,
                            )
                        }
                    })
                    .collect()
            })
            .collect();
        let mentions_closure: Vec<bool> = match self.is_closure.contains(&true) {
            true => names.strings.iter().map(mentions_closure).collect(),
            false => Vec::new(),
        };
        let mut functions = Vec::new();
        for sample in &profile.samples {
            if sample.values[sample_type] == 0 {
                continue;
            }
            let depth = depths[sample.stack.0 as usize] as usize;
            functions.clear();
            let addresses = &profile.stacks.frames(sample.stack)[depth..];
            for id in addresses {
                functions.extend_from_slice(&by_address[id.0 as usize]);
            }
            if selection.granularity == Granularity::Functions {
                self.qualify_closures(&mut functions, addresses, names, &mentions_closure);
            }
            self.trim_inlined_allocator(&mut functions);
            functions.reverse();
            let mut values = Comparison {
                confidence: Confidence::new(profile, sample, sample_type),
                ..Comparison::default()
            };
            *side(&mut values) = sample.values[sample_type];
            let alloc_time = sample.alloc_time.map(|alloc_time| {
                let [_, _, objects, bytes] = sample.values.0;
                (alloc_time, [bytes, objects])
            });
            self.stacks
                .add(&mut self.index, &functions, values, alloc_time);
        }
    }

    /// Returns the id of a frame's function, or of its function and line with [`Granularity::Lines`] if the file is
    /// known. The id's code origin is the highest of those with which this was called.
    fn intern_function(
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
            self.is_allocator
                .push(is_allocator_function(names.strings.get(frame.function)));
            self.is_closure
                .push(frame.linkage.is_none() && is_closure(function));
            self.origins.push(CodeOrigin::default());
        }
        // A function that is in several files, or in the base too, is the program's own if one of them is.
        self.origins[index] = self.origins[index].max(origin);
        id
    }

    /// Returns the id of a function of an interpreted program and its line: each line has a row of its own. Records the
    /// language, file and line under a new id.
    fn intern_managed(
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

    /// Replaces closures without a path among the `functions` of a stack, leaf first, by names with the path, where one
    /// is found. `addresses` are the frames of the stack. `mentions_closure` says by string id whether a name may
    /// contain the type of a closure.
    fn qualify_closures(
        &mut self,
        functions: &mut [StringId],
        addresses: &[AddressId],
        names: &Names,
        mentions_closure: &[bool],
    ) {
        if !functions.iter().any(|id| self.is_closure[id.0 as usize]) {
            return;
        }
        let frames: Vec<&Frame> = addresses.iter().flat_map(|id| names.frames(*id)).collect();
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
            let Some(name) = qualified_closure(self.functions.get(*function), outer) else {
                continue;
            };
            *function = self.functions.intern(&name);
            let (is_allocator, origin) = (self.is_allocator[at], self.origins[at]);
            if function.0 as usize == self.origins.len() {
                self.is_allocator.push(is_allocator);
                self.is_closure.push(false);
                self.origins.push(origin);
            }
        }
    }

    /// Removes allocator functions that were inlined at the leaf, which is the start of `functions`, except the last
    /// function.
    fn trim_inlined_allocator(&self, functions: &mut Vec<StringId>) {
        let leading = functions
            .iter()
            .take_while(|id| self.is_allocator[id.0 as usize])
            .count();
        functions.drain(..leading.min(functions.len().saturating_sub(1)));
    }

    /// Converts the folded stacks to the result, sorted by their function names.
    fn into_sorted(mut self) -> Folded {
        drop(self.index);
        self.stacks.sort(&ids_by_name(&self.functions));
        Folded {
            functions: self.functions,
            origins: self.origins,
            stacks: self.stacks,
            is_origin_filtered: false,
            places: self.places,
        }
    }
}

#[cfg(test)]
impl Folded {
    /// Folds stacks of functions, root first, with a value and that of a base.
    pub(crate) fn from_stacks<'n>(stacks: impl Iterator<Item = (Vec<&'n str>, i64, i64)>) -> Self {
        let mut fold = FoldBuilder::default();
        for (functions, new, base) in stacks {
            let functions: Vec<_> = functions
                .into_iter()
                .map(|function| fold.functions.intern(function))
                .collect();
            let values = Comparison {
                new,
                base,
                ..Comparison::default()
            };
            fold.stacks.add(&mut fold.index, &functions, values, None);
        }
        fold.into_sorted()
    }
}

/// Ids of all strings, sorted by the strings.
fn ids_by_name(strings: &Strings) -> Vec<StringId> {
    let mut ids: Vec<StringId> = (0..strings.len() as u32).map(StringId).collect();
    ids.sort_unstable_by_key(|id| strings.get(*id));
    ids
}
