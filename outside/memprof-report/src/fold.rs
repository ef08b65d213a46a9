//! Collapsed stacks: root first, by function, each once. All views but pprof and jeprof start here.

use std::collections::HashMap;

use crate::alloc_time::AllocTime;
use crate::allocator_frames::is_allocator;
use crate::code_origin::{CodeLocation, CodeOrigin, OriginRules};
use crate::comparison::Comparison;
use crate::confidence::Confidence;
use crate::names::{Frame, Names, StringId, Strings};
use crate::profile::{Profile, SampleType};
use crate::stacks::AddressId;

/// What one function of a stack is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// By its name.
    #[default]
    Functions,
    /// By name, file and line.
    Lines,
}

/// A named profile, ready to be viewed.
#[derive(Debug)]
pub struct SymbolizedProfile {
    /// Its values are estimates.
    pub profile: Profile,
    /// The names of its addresses.
    pub names: Names,
    /// By stack: how many addresses at the leaf belong to the allocator.
    pub depths: Vec<u32>,
}

/// One collapsed stack.
#[derive(Clone, Debug)]
pub struct FoldedStack {
    /// Root first.
    pub functions: Box<[StringId]>,
    /// In the profile and in its base.
    pub values: Comparison,
    /// The bytes and objects in use in the profile, by when they were allocated, where it tells; in any order.
    pub(crate) births: Vec<(AllocTime, [i64; 2])>,
}

/// Collapsed stacks of a profile, and of its base in a diff.
#[derive(Debug, Default)]
pub struct Folded {
    /// The functions' names.
    pub functions: Strings,
    /// By function: whose it is.
    pub whose: Vec<CodeOrigin>,
    /// In the order of their names.
    pub stacks: Vec<FoldedStack>,
    /// Whether only the most telling frames of each stack count.
    pub(crate) is_told: bool,
}

impl Folded {
    /// Folds a profile and its base. Stacks are matched by name, never by address, so that the two may come
    /// from different runs and builds.
    pub fn new(
        profile: &SymbolizedProfile,
        base: Option<&SymbolizedProfile>,
        sample_type: SampleType,
        granularity: Granularity,
        blame: &OriginRules,
    ) -> Self {
        let mut fold = FoldBuilder::default();
        let shown = (sample_type, granularity);
        fold.add(profile, shown, blame, |values| &mut values.new);
        if let Some(base) = base {
            fold.add(base, shown, blame, |values| &mut values.base);
            fold.drop_unchanged();
        }
        fold.sorted()
    }

    /// The functions of a stack that count, root first: all, or those of its most telling kind.
    pub(crate) fn visible_functions<'s>(
        &self,
        stack: &'s FoldedStack,
    ) -> impl Iterator<Item = StringId> + use<'s, '_> {
        let whose = |id: &StringId| self.whose[id.0 as usize];
        let most = match self.is_told {
            true => stack.functions.iter().map(whose).max(),
            false => None,
        };
        let functions = stack.functions.iter().copied();
        functions.filter(move |id| most.is_none_or(|most| whose(id) == most))
    }

    /// For a table: the stacks as they are, of which the functions of the most telling kind count.
    pub(crate) fn with_origin_filter(self) -> Self {
        Self {
            is_told: true,
            ..self
        }
    }

    /// Each stack with the frames of its most telling kind alone, which is the program's own functions
    /// wherever there is one; all others are folded into them.
    pub fn into_origin_filtered(self) -> Self {
        let Self {
            functions,
            whose,
            stacks,
            ..
        } = self;
        let mut fold = FoldBuilder {
            functions,
            whose,
            ..FoldBuilder::default()
        };
        for stack in stacks {
            let whose = |id: &&StringId| fold.whose[id.0 as usize];
            let most = stack.functions.iter().map(|id| whose(&id)).max();
            let told = stack.functions.iter().filter(|id| Some(whose(id)) == most);
            let held = fold.stacks.entry(told.copied().collect()).or_default();
            held.values += stack.values;
            held.births.extend(stack.births);
        }
        Self {
            is_told: true,
            ..fold.sorted()
        }
    }
}

/// What a stack holds.
#[derive(Default)]
struct StackTotals {
    values: Comparison,
    births: Vec<(AllocTime, [i64; 2])>,
}

#[derive(Default)]
struct FoldBuilder {
    functions: Strings,
    whose: Vec<CodeOrigin>,
    /// By function: whether it is the allocator's.
    allocating: Vec<bool>,
    /// By function: whose it is, where its name tells.
    by_name: Vec<Option<CodeOrigin>>,
    stacks: HashMap<Box<[StringId]>, StackTotals>,
}

impl FoldBuilder {
    fn add(
        &mut self,
        named: &SymbolizedProfile,
        (sample_type, granularity): (SampleType, Granularity),
        blame: &OriginRules,
        side: impl Fn(&mut Comparison) -> &mut i64,
    ) {
        let SymbolizedProfile {
            profile,
            names,
            depths,
        } = named;
        let places = CodeLocation::for_mappings(profile);
        let by_address: Vec<Box<[StringId]>> = (0..profile.stacks.addresses().len())
            .map(|index| {
                let id = AddressId(index as u32);
                let mapping = profile.mapping_of_frame(id);
                let place = mapping.map(|index| places[index]).unwrap_or_default();
                let frames = names.frames(id).iter();
                frames
                    .map(|frame| self.intern(frame, names, granularity, (blame, place)))
                    .collect()
            })
            .collect();
        let mut functions = Vec::new();
        for sample in &profile.samples {
            if sample.values[sample_type] == 0 {
                continue;
            }
            let depth = depths[sample.stack.0 as usize] as usize;
            functions.clear();
            for id in &profile.stacks.frames(sample.stack)[depth..] {
                functions.extend_from_slice(&by_address[id.0 as usize]);
            }
            self.trim_inlined(&mut functions);
            functions.reverse();
            let mut values = Comparison {
                evidence: Confidence::of(profile, sample, sample_type),
                ..Comparison::default()
            };
            *side(&mut values) = sample.values[sample_type];
            let held = match self.stacks.get_mut(functions.as_slice()) {
                Some(held) => held,
                None => self.stacks.entry(functions.as_slice().into()).or_default(),
            };
            held.values += values;
            if let Some(birth) = sample.birth {
                let [_, _, objects, bytes] = sample.values.0;
                held.births.push((birth, [bytes, objects]));
            }
        }
    }

    fn intern(
        &mut self,
        frame: &Frame,
        names: &Names,
        granularity: Granularity,
        (blame, place): (&OriginRules, CodeLocation),
    ) -> StringId {
        let function = names.strings.get(frame.function);
        let id = match (granularity, frame.file) {
            (Granularity::Lines, Some(file)) => {
                let name = format!("{function} {}:{}", names.strings.get(file), frame.line);
                self.functions.intern(&name)
            }
            _ => self.functions.intern(function),
        };
        let index = id.0 as usize;
        if index == self.allocating.len() {
            self.allocating.push(is_allocator(function));
            self.by_name
                .push(blame.origin_of_name(function, frame.named));
            self.whose.push(CodeOrigin::default());
        }
        // A function that is in several files, or in the base too, is the program's own if one of them is.
        let whose = self.by_name[index].unwrap_or_else(|| place.origin_of_frame(frame));
        self.whose[index] = self.whose[index].max(whose);
        id
    }

    /// A stack that holds the same to the byte kept its samples: no chance is in that difference.
    fn drop_unchanged(&mut self) {
        for held in self.stacks.values_mut() {
            if held.values.new == held.values.base {
                held.values.evidence.variance = 0.0;
            }
        }
    }

    /// Allocator functions inlined into their caller are trimmed like others.
    fn trim_inlined(&self, functions: &mut Vec<StringId>) {
        let leading = functions
            .iter()
            .take_while(|id| self.allocating[id.0 as usize])
            .count();
        functions.drain(..leading.min(functions.len().saturating_sub(1)));
    }

    fn sorted(self) -> Folded {
        let mut by_name: Vec<u32> = (0..self.functions.len() as u32).collect();
        by_name.sort_unstable_by_key(|&id| self.functions.get(StringId(id)));
        let mut rank = vec![0; by_name.len()];
        for (position, id) in by_name.into_iter().enumerate() {
            rank[id as usize] = position as u32;
        }
        let mut stacks: Vec<FoldedStack> = self
            .stacks
            .into_iter()
            .map(|(functions, StackTotals { values, births })| FoldedStack {
                functions,
                values,
                births,
            })
            .collect();
        let rank =
            |stack: &FoldedStack, at: usize| stack.functions.get(at).map(|id| rank[id.0 as usize]);
        stacks.sort_unstable_by(|a, b| {
            let longest = a.functions.len().max(b.functions.len());
            (0..longest)
                .map(|at| rank(a, at).cmp(&rank(b, at)))
                .find(|order| order.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        Folded {
            functions: self.functions,
            whose: self.whose,
            stacks,
            is_told: false,
        }
    }
}
