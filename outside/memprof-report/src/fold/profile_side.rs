//! The stacks of one profile as functions. An address stands for a list of functions, so a stack needs no list of its
//! own.

use std::iter;

use foldhash::HashMap;

use super::folded_stack::TimedAmounts;
use super::function_table::FunctionTable;
use super::{Granularity, Selection};
use crate::code_origin::{CodeOrigins, OriginRules};
use crate::comparison::Comparison;
use crate::confidence::Confidence;
use crate::names::StringId;
use crate::overloads::FunctionNames;
use crate::profile::{Sample, SampleType};
use crate::stacks::{AddressId, StackId};
use crate::symbolized_profile::SymbolizedProfile;

/// A profile in a fold: the profile itself, or its base.
#[derive(Debug)]
pub(super) struct ProfileSide<'p> {
    named: &'p SymbolizedProfile,
    sample_type: SampleType,
    is_base: bool,
    /// By address: end of its functions in `functions`, which start where those of the address before end.
    ends: Vec<u32>,
    /// Functions of the addresses, root first.
    functions: Vec<StringId>,
    /// By address: number of its innermost functions that are the allocator's.
    allocator_counts: Vec<u32>,
    /// Functions, root first, of the stacks that differ from those of their addresses.
    own_lists: HashMap<StackId, Box<[StringId]>>,
}

/// A place in the stack of a sample, between two functions.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackPlace {
    /// Number of functions from here to the leaf.
    functions_left: u32,
    /// Index of the address, from the leaf on, and number of its functions that are towards the root.
    address: u32,
    function: u32,
}

impl<'p> ProfileSide<'p> {
    /// Enters the functions of all addresses of a profile into `table`, and names closures by the stacks of the samples
    /// that have a value.
    pub(super) fn new(
        named: &'p SymbolizedProfile,
        is_base: bool,
        selection: Selection<'_>,
        origin_rules: &OriginRules,
        table: &mut FunctionTable,
    ) -> Self {
        let origins = CodeOrigins::new(named, origin_rules);
        let names = &named.names;
        let mut function_names = FunctionNames::new(names, selection.overloads, origin_rules.flat);
        let mut side = Self {
            named,
            sample_type: selection.sample_type,
            is_base,
            ends: Vec::new(),
            functions: Vec::new(),
            allocator_counts: Vec::new(),
            own_lists: HashMap::default(),
        };
        let files = table.unnamed_places.add_files(&named.profile);
        for id in (0..named.profile.stacks.addresses().len() as u32).map(AddressId) {
            let mapping = named.profile.mapping_of_frame(id);
            let file = mapping.and_then(|mapping| files[mapping]);
            let frames = names.frames(id).iter().zip(origins.origins(id));
            let functions = frames.map(|(frame, origin)| match names.language(id) {
                Some(language) => table.intern_managed(frame, language, names, origin),
                None => {
                    let function = function_names.name(frame);
                    let granularity = selection.granularity;
                    let function =
                        table.intern_function(frame, &function, names, granularity, origin);
                    let places = &mut table.unnamed_places;
                    places.add_function(function, file, frame.named);
                    function
                }
            });
            let functions: Vec<StringId> = functions.collect();
            side.add_address(functions, table);
        }
        if selection.granularity == Granularity::Functions {
            side.qualify_closures(table);
        }
        side
    }

    /// Adds the next address, with its functions, innermost first.
    fn add_address(&mut self, mut functions: Vec<StringId>, table: &mut FunctionTable) {
        let allocators = functions.iter().take_while(|id| table.is_allocator(**id));
        self.allocator_counts.push(allocators.count() as u32);
        functions.reverse();
        self.functions.extend_from_slice(&functions);
        self.ends.push(self.functions.len() as u32);
    }

    /// Gives each stack in which a closure without a path can be named a list of its own.
    fn qualify_closures(&mut self, table: &mut FunctionTable) {
        if !self.functions.iter().any(|id| table.is_closure(*id)) {
            return;
        }
        let names = &self.named.names;
        let mentions_closure = table.mentions_closure(names);
        let has_closure: Vec<bool> = (0..self.ends.len() as u32)
            .map(|id| {
                self.functions_of(AddressId(id))
                    .iter()
                    .any(|id| table.is_closure(*id))
            })
            .collect();
        let mut is_seen = vec![false; self.named.profile.stacks.len()];
        for index in self.samples_with_value() {
            let stack = self.samples()[index].stack;
            if std::mem::replace(&mut is_seen[stack.0 as usize], true) {
                continue;
            }
            let addresses = self.named.program_frames(stack);
            if !addresses.iter().any(|id| has_closure[id.0 as usize]) {
                continue;
            }
            let of_addresses = addresses
                .iter()
                .flat_map(|id| self.functions_of(*id).iter().rev());
            let mut functions: Vec<StringId> = of_addresses.copied().collect();
            if table.qualify_closures(&mut functions, addresses, names, &mentions_closure) {
                let leading = functions
                    .iter()
                    .take_while(|id| table.is_allocator(**id))
                    .count();
                functions.drain(..leading.min(functions.len().saturating_sub(1)));
                functions.reverse();
                self.own_lists.insert(stack, functions.into());
            }
        }
    }

    /// Number of all samples.
    pub(super) fn sample_count(&self) -> usize {
        self.samples().len()
    }

    /// Indexes of the samples with a value other than 0.
    pub(super) fn samples_with_value(&self) -> impl Iterator<Item = usize> + Clone + use<'p> {
        let sample_type = self.sample_type;
        let samples = self.named.profile.samples.iter().enumerate();
        samples
            .filter_map(move |(index, sample)| (sample.values[sample_type] != 0).then_some(index))
    }

    /// Value of a sample, on the side of the profile or of the base.
    pub(super) fn value(&self, sample: usize) -> Comparison {
        let sample = &self.samples()[sample];
        let mut values = Comparison {
            confidence: Confidence::new(&self.named.profile, sample, self.sample_type),
            ..Comparison::default()
        };
        let value = if self.is_base {
            &mut values.base
        } else {
            &mut values.new
        };
        *value = sample.values[self.sample_type];
        values
    }

    /// Memory in use of a sample with its allocation time; `None` if it has no time.
    pub(super) fn timed_amounts(&self, sample: usize) -> Option<TimedAmounts> {
        let sample = &self.samples()[sample];
        let [_, _, objects, bytes] = sample.values.0;
        Some((sample.alloc_time?, [bytes, objects]))
    }

    /// Appends the functions of a sample's stack, root first, as [`root_of_stack`](Self::root_of_stack) says.
    pub(super) fn append_functions(&self, sample: usize, functions: &mut Vec<StringId>) {
        let mut place = self.root_of_stack(sample);
        functions.extend(iter::from_fn(|| self.next_function(sample, &mut place)));
    }

    /// Returns the place in front of the functions of a sample's stack, root first. Allocator functions that were inlined
    /// at the leaf are none of these, unless there are no others: then the outermost one stays.
    pub(super) fn root_of_stack(&self, sample: usize) -> StackPlace {
        let stack = self.samples()[sample].stack;
        let addresses = self.named.program_frames(stack);
        let functions_left = match self.own_list(stack) {
            Some(list) => list.len(),
            None => self.function_count(addresses) - self.trimmed_count(addresses),
        };
        StackPlace {
            functions_left: functions_left as u32,
            address: addresses.len().saturating_sub(1) as u32,
            function: 0,
        }
    }

    /// Returns the next function of a sample's stack, towards the leaf, and moves `place` behind it. `None` at the end.
    pub(super) fn next_function(&self, sample: usize, place: &mut StackPlace) -> Option<StringId> {
        place.functions_left = place.functions_left.checked_sub(1)?;
        let stack = self.samples()[sample].stack;
        if let Some(list) = self.own_list(stack) {
            return Some(list[list.len() - 1 - place.functions_left as usize]);
        }
        let addresses = self.named.program_frames(stack);
        loop {
            let functions = self.functions_of(addresses[place.address as usize]);
            if let Some(function) = functions.get(place.function as usize) {
                place.function += 1;
                return Some(*function);
            }
            (place.address, place.function) = (place.address - 1, 0);
        }
    }

    /// Functions of a stack that has a list of its own, root first.
    fn own_list(&self, stack: StackId) -> Option<&[StringId]> {
        // Most profiles have none, and a hash takes as long as all the rest of a step.
        if self.own_lists.is_empty() {
            return None;
        }
        self.own_lists.get(&stack).map(|list| &**list)
    }

    /// Samples of the profile.
    fn samples(&self) -> &'p [Sample] {
        &self.named.profile.samples
    }

    /// Functions of an address, root first.
    fn functions_of(&self, address: AddressId) -> &[StringId] {
        let index = address.0 as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        &self.functions[start as usize..self.ends[index] as usize]
    }

    /// Number of functions of addresses.
    fn function_count(&self, addresses: &[AddressId]) -> usize {
        addresses
            .iter()
            .map(|id| self.functions_of(*id).len())
            .sum()
    }

    /// Number of functions at the leaf that are left out: the allocator's, but not the outermost function. `addresses`
    /// come leaf first.
    fn trimmed_count(&self, addresses: &[AddressId]) -> usize {
        let mut trimmed = 0;
        for address in addresses {
            let count = self.allocator_counts[address.0 as usize] as usize;
            trimmed += count;
            if count < self.functions_of(*address).len() {
                return trimmed;
            }
        }
        trimmed.saturating_sub(1)
    }
}
