//! The stacks of one profile as functions. An address stands for a list of functions, so a stack needs no list of its
//! own.

use std::cmp::Ordering;

use foldhash::HashMap;

use super::folded_stack::TimedAmounts;
use super::function_table::FunctionTable;
use super::{Granularity, Selection};
use crate::closures::mentions_closure;
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
    /// Number of addresses towards the root.
    addresses: u32,
    /// Number of functions of the next address, or of a list of the stack's own, that are towards the root.
    function: u32,
    /// Number of addresses that are left out at the leaf.
    trimmed: u32,
}

/// Functions of a stack, root first.
#[derive(Debug)]
pub(super) struct StackFunctions<'s> {
    side: &'s ProfileSide<'s>,
    /// Functions of a stack that has a list of its own.
    own_function_list: Option<&'s [StringId]>,
    /// Addresses, leaf first; empty if the stack has a list of its own.
    addresses: &'s [AddressId],
    place: StackPlace,
}

impl<'p> ProfileSide<'p> {
    /// Enters the functions of all addresses of a profile into `table`. If rows stand for functions, not for source
    /// lines, also gives full names to closures, which the callers in the samples' stacks show.
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
                Some(language) => table.intern_managed_function(frame, language, names, origin),
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

    /// Adds the next address by its `functions`, innermost first, and counts how many of the innermost ones are the
    /// allocator's.
    fn add_address(&mut self, mut functions: Vec<StringId>, table: &mut FunctionTable) {
        let allocators = functions.iter().take_while(|id| table.is_allocator(**id));
        self.allocator_counts.push(allocators.count() as u32);
        functions.reverse();
        self.functions.extend_from_slice(&functions);
        self.ends.push(self.functions.len() as u32);
    }

    /// Finds full names for closures whose names lack a path. A full name depends on the callers, so each stack that
    /// gets one has a list of functions of its own from then on, without the allocator's at the leaf. Skips stacks of
    /// samples whose value is 0.
    fn qualify_closures(&mut self, table: &mut FunctionTable) {
        if !self.functions.iter().any(|id| table.is_closure(*id)) {
            return;
        }
        let names = &self.named.names;
        let mentions_closure: Vec<bool> = names.strings.iter().map(mentions_closure).collect();
        let has_closure: Vec<bool> = (0..self.ends.len() as u32)
            .map(|id| {
                self.functions_of_address(AddressId(id))
                    .iter()
                    .any(|id| table.is_closure(*id))
            })
            .collect();
        let mut is_seen = vec![false; self.named.profile.stacks.len()];
        for index in self.nonzero_sample_indexes() {
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
                .flat_map(|id| self.functions_of_address(*id).iter().rev());
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

    /// Number of all samples, also of those without a value.
    pub(super) fn sample_count(&self) -> usize {
        self.samples().len()
    }

    /// Indexes of the samples with a value other than 0.
    pub(super) fn nonzero_sample_indexes(&self) -> impl Iterator<Item = usize> + Clone + use<'p> {
        let sample_type = self.sample_type;
        let samples = self.named.profile.samples.iter().enumerate();
        samples
            .filter_map(move |(index, sample)| (sample.values[sample_type] != 0).then_some(index))
    }

    /// Returns the value of a sample and its confidence as a comparison. The value is that of the base if this is the
    /// base's side, else that of the profile; the other value is 0.
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

    /// Returns a sample's bytes and objects in use, with their allocation time. `None` if the sample has no allocation
    /// time.
    pub(super) fn timed_amounts(&self, sample: usize) -> Option<TimedAmounts> {
        let sample = &self.samples()[sample];
        let [_, _, objects, bytes] = sample.values.0;
        Some((sample.alloc_time?, [bytes, objects]))
    }

    /// Appends the functions of a sample's stack, root first. Leaves out the allocator's functions at the leaf, but
    /// keeps the outermost of them if the stack has no other functions.
    pub(super) fn append_functions(&self, sample: usize, functions: &mut Vec<StringId>) {
        let stack = self.samples()[sample].stack;
        if let Some(list) = self.own_function_list(stack) {
            functions.extend_from_slice(list);
            return;
        }
        let addresses = self.named.program_frames(stack);
        let trimmed = self.trimmed_address_count(addresses) as usize;
        for address in addresses[trimmed..].iter().rev() {
            match self.functions_of_address(*address) {
                // Most addresses have one function, for which a call of memcpy takes longer than the copy.
                [function] => functions.push(*function),
                list => functions.extend_from_slice(list),
            }
        }
        let last = addresses.get(trimmed);
        let trimmed = last.map_or(0, |address| self.trimmed_function_count(*address));
        functions.truncate(functions.len() - trimmed);
    }

    /// Returns the place before the first function of a sample's stack, at its root. From there,
    /// [`functions_after`](Self::functions_after) iterates over the functions that
    /// [`append_functions`](Self::append_functions) appends.
    pub(super) fn place_at_root(&self, sample: usize) -> StackPlace {
        let stack = self.samples()[sample].stack;
        StackPlace {
            addresses: 0,
            function: 0,
            trimmed: self.trimmed_address_count(self.named.program_frames(stack)),
        }
    }

    /// Returns the functions of a sample's stack that come after a place, root first.
    pub(super) fn functions_after(&self, sample: usize, place: StackPlace) -> StackFunctions<'_> {
        let stack = self.samples()[sample].stack;
        let own_function_list = self.own_function_list(stack);
        let addresses = match own_function_list {
            Some(_) => &[],
            None => self.named.program_frames(stack),
        };
        StackFunctions {
            side: self,
            own_function_list,
            addresses,
            place,
        }
    }

    /// Functions of a stack whose list differs from the functions of its addresses, root first. `None` for all other
    /// stacks.
    fn own_function_list(&self, stack: StackId) -> Option<&[StringId]> {
        // Most profiles have none, and the hash takes as long as all the rest of reading a stack's next function.
        if self.own_lists.is_empty() {
            return None;
        }
        self.own_lists.get(&stack).map(|list| &**list)
    }

    fn samples(&self) -> &'p [Sample] {
        &self.named.profile.samples
    }

    /// Functions of an address, root first.
    fn functions_of_address(&self, address: AddressId) -> &[StringId] {
        let index = address.0 as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        &self.functions[start as usize..self.ends[index] as usize]
    }

    /// Number of addresses at a stack's leaf that are left out, because all of their functions are the allocator's. If
    /// that holds for all addresses, the outermost one with a function stays. `addresses` come leaf first.
    fn trimmed_address_count(&self, addresses: &[AddressId]) -> u32 {
        let is_trimmed = |address: &AddressId| {
            self.allocator_counts[address.0 as usize] as usize
                == self.functions_of_address(*address).len()
        };
        let has_function = |address: &AddressId| !self.functions_of_address(*address).is_empty();
        let first = addresses.iter().position(|address| !is_trimmed(address));
        let first = first.or_else(|| addresses.iter().rposition(has_function));
        first.unwrap_or(0) as u32
    }

    /// Number of innermost functions that are left out of the address at a stack's leaf: the allocator's, but never all
    /// functions of the address.
    fn trimmed_function_count(&self, address: AddressId) -> usize {
        let count = self.allocator_counts[address.0 as usize] as usize;
        count.min(self.functions_of_address(address).len().saturating_sub(1))
    }
}

impl<'s> StackFunctions<'s> {
    /// Place after the functions that the iterator has returned.
    pub(super) fn place(&self) -> StackPlace {
        self.place
    }

    /// Functions of the address at `place`, root first, or the stack's own list if it has one. Without the allocator's
    /// functions at the leaf. `None` at the end of the stack.
    fn current_functions(&self) -> Option<&'s [StringId]> {
        if let Some(list) = self.own_function_list {
            return (self.place.addresses == 0).then_some(list);
        }
        // `place` counts addresses from the root, but `addresses` come leaf first.
        let left = (self.addresses.len() as u32).checked_sub(self.place.addresses + 1)?;
        let address = self.addresses[left as usize];
        let functions = self.side.functions_of_address(address);
        match left.cmp(&self.place.trimmed) {
            Ordering::Less => None,
            Ordering::Equal => {
                functions.get(..functions.len() - self.side.trimmed_function_count(address))
            }
            Ordering::Greater => Some(functions),
        }
    }
}

impl Iterator for StackFunctions<'_> {
    type Item = StringId;

    fn next(&mut self) -> Option<StringId> {
        loop {
            let functions = self.current_functions()?;
            if let Some(function) = functions.get(self.place.function as usize) {
                self.place.function += 1;
                return Some(*function);
            }
            (self.place.addresses, self.place.function) = (self.place.addresses + 1, 0);
        }
    }
}
