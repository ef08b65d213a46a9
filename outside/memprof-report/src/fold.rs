//! Folded stacks: root first, by function, each stack once. All formats except pprof and jeprof are rendered from
//! them.

mod folded_stack;
mod folded_stacks;
mod function_table;
mod profile_side;
mod sample_stacks;
mod stack_lists;
mod unnamed_places;

use std::collections::HashMap;

pub use self::folded_stack::FoldedStack;
pub use self::folded_stacks::{FoldedStacks, StackCursor};
use self::function_table::{FunctionTable, ids_by_name};
use self::profile_side::ProfileSide;
use self::sample_stacks::SampleStacks;
use self::stack_lists::{StackIndex, StackLists};
use self::unnamed_places::UnnamedPlaces;
use crate::code_origin::{CodeOrigin, OriginRules};
use crate::managed::Place;
use crate::names::{StringId, Strings};
use crate::overloads::Overloads;
use crate::profile::SampleType;
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
#[derive(Debug)]
pub struct Folded<'p> {
    /// Names of the functions.
    pub functions: Strings,
    /// Code origin of each function, by its id.
    pub origins: Vec<CodeOrigin>,
    /// Stacks in the order of their function names.
    pub stacks: FoldedStacks<'p>,
    /// Whether only the frames of the highest code origin in each stack are visible.
    pub(crate) is_origin_filtered: bool,
    /// Places of the functions of interpreted programs.
    pub(crate) places: HashMap<StringId, Place>,
    unnamed_places: UnnamedPlaces,
}

impl<'p> Folded<'p> {
    /// Folds a profile and, for a comparison, its `base`; without one, the base values are 0. Stacks are matched by
    /// name, never by address, so the two may come from different runs and builds.
    pub fn new(
        profile: &'p SymbolizedProfile,
        base: Option<&'p SymbolizedProfile>,
        sample_type: SampleType,
        granularity: Granularity,
        origin_rules: &OriginRules,
    ) -> Self {
        let mut table = FunctionTable::default();
        let overloads = Overloads::new([Some(profile), base].into_iter().flatten());
        let selection = Selection {
            sample_type,
            granularity,
            overloads: &overloads,
        };
        let profile = ProfileSide::new(profile, false, selection, origin_rules, &mut table);
        let base =
            base.map(|base| ProfileSide::new(base, true, selection, origin_rules, &mut table));
        let samples = SampleStacks::new(profile, base, &table.name_ranks());
        Self {
            functions: table.functions,
            origins: table.origins,
            stacks: FoldedStacks::from_samples(samples),
            is_origin_filtered: false,
            places: table.places,
            unnamed_places: table.unnamed_places,
        }
    }

    /// Iterates over the functions of a stack that a report shows, root first: all or, after
    /// [`with_origin_filter`](Self::with_origin_filter), those of the stack's highest code origin. A function without a
    /// symbol has the name that [`name_unnamed_functions_by_calls`](Self::name_unnamed_functions_by_calls) gave it for
    /// the library function that it calls, if any.
    pub(crate) fn visible_functions<'s>(
        &self,
        stack: FoldedStack<'s>,
    ) -> impl Iterator<Item = StringId> + use<'s, '_, 'p> {
        let origin_of = |id: &StringId| self.origins[id.0 as usize];
        let highest = match self.is_origin_filtered {
            true => stack.functions.iter().map(origin_of).max(),
            false => None,
        };
        let named = self
            .unnamed_places
            .find_call_name(stack.functions, &self.origins);
        let functions = stack.functions.iter().enumerate();
        let functions = functions.map(move |(index, id)| match named {
            Some((place, row)) if place == index => row,
            _ => *id,
        });
        functions.filter(move |id| highest.is_none_or(|highest| origin_of(id) == highest))
    }

    /// Keeps the stacks whole but lets [`visible_functions`](Self::visible_functions) return only frames of the highest
    /// code origin in each stack (program before library before …), and names the calls of places without a symbol.
    /// Used for tables.
    pub(crate) fn with_origin_filter(mut self) -> Self {
        self.is_origin_filtered = true;
        self.name_unnamed_functions_by_calls();
        self
    }

    /// Reduces each stack to the frames of its highest code origin: the program's own functions if there are any.
    /// Stacks that become equal are merged. A stack's own value then counts for the innermost frame that is left.
    pub fn into_origin_filtered(self) -> Folded<'static> {
        let filtered = self.with_origin_filter();
        let (mut lists, mut index) = (StackLists::default(), StackIndex::default());
        let mut visible = Vec::new();
        filtered.stacks.for_each(|stack| {
            visible.clear();
            visible.extend(filtered.visible_functions(stack));
            lists.add_values(&mut index, &visible, stack.values, stack.alloc_times);
        });
        lists.sort_by_names(&ids_by_name(&filtered.functions));
        Folded {
            functions: filtered.functions,
            origins: filtered.origins,
            stacks: FoldedStacks::from_lists(lists),
            is_origin_filtered: true,
            places: filtered.places,
            unnamed_places: UnnamedPlaces::default(),
        }
    }

    /// Creates names for the program's functions without a symbol to which stacks are attributed, together with the
    /// library function that they call, because the filter by origin leaves the library function out.
    fn name_unnamed_functions_by_calls(&mut self) {
        if !self.unnamed_places.has_unnamed_own_function(&self.origins) {
            return;
        }
        let (names, origins) = (&mut self.functions, &mut self.origins);
        self.stacks.for_each(|stack| {
            self.unnamed_places
                .add_call_name(stack.functions, names, origins);
        });
    }
}

/// Selects the value of samples and the names of frames for folding.
#[derive(Clone, Copy)]
struct Selection<'a> {
    sample_type: SampleType,
    granularity: Granularity,
    overloads: &'a Overloads,
}

#[cfg(test)]
impl Folded<'static> {
    /// Folds stacks of functions, root first, with a value and that of a base.
    pub(crate) fn from_stacks<'n>(stacks: impl Iterator<Item = (Vec<&'n str>, i64, i64)>) -> Self {
        let mut functions = Strings::default();
        let (mut lists, mut index) = (StackLists::default(), StackIndex::default());
        for (stack, new, base) in stacks {
            let stack: Vec<_> = stack
                .into_iter()
                .map(|name| functions.intern(name))
                .collect();
            let values = crate::comparison::Comparison {
                new,
                base,
                ..Default::default()
            };
            lists.add_values(&mut index, &stack, values, &[]);
        }
        lists.sort_by_names(&ids_by_name(&functions));
        Self {
            functions,
            origins: Vec::new(),
            stacks: FoldedStacks::from_lists(lists),
            is_origin_filtered: false,
            places: HashMap::new(),
            unnamed_places: UnnamedPlaces::default(),
        }
    }
}
