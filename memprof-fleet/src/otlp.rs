//! A sum of profiles in OpenTelemetry's protocol, which collectors take at `/v1development/profiles`: one
//! profile for each sample type, and one dictionary for all.

mod messages;

use std::collections::HashMap;

use memprof_report::{Address, AddressId, Named, SampleType, StackId, Strings};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::time::Instant;
use messages::{
    AnyValue, Dictionary, Empty, Function, KeyValue, Line, Location, Mapping, Profile,
    ProfilesData, Resource, ResourceProfiles, Sample, Scope, ScopeProfiles, Stack, ValueType,
};

const TYPES: [SampleType; 2] = [SampleType::InuseSpace, SampleType::InuseObjects];

/// The message, encoded. `service` is what the profile is called, and `from` and `to` are its time.
pub(crate) fn encode(named: &Named, service: &str, from: Instant, to: Instant) -> Vec<u8> {
    message(named, service, from, to).encode_to_vec()
}

fn message(named: &Named, service: &str, from: Instant, to: Instant) -> ProfilesData {
    let mut tables = Tables::new(named);
    let nanos = |Instant(ms): Instant| ms.unsigned_abs().saturating_mul(1_000_000);
    let profiles = TYPES.map(|sample_type| {
        let unit = |tables: &mut Tables<'_>, name: &str, unit: &str| ValueType {
            type_strindex: tables.string(name),
            unit_strindex: tables.string(unit),
        };
        let name = format!("{service} {} {}", sample_type.name(), to.0);
        Profile {
            sample_type: Some(unit(&mut tables, sample_type.name(), sample_type.unit())),
            samples: samples(named, sample_type, &mut tables),
            time_unix_nano: nanos(from),
            duration_nano: nanos(Instant(to.0 - from.0)),
            period_type: Some(unit(&mut tables, "space", "bytes")),
            period: interval(named),
            profile_id: Sha256::digest(name)[..16].to_vec(),
        }
    });
    let attribute = |key: &str, value: &str| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            string_value: Some(value.to_owned()),
        }),
    };
    ProfilesData {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource {
                attributes: vec![attribute("service.name", service)],
            }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(Scope {
                    name: "memprof".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                profiles: profiles.into(),
            }],
        }],
        dictionary: Some(tables.finish()),
    }
}

/// Mean bytes between samples; 0 where that is not known.
fn interval(named: &Named) -> i64 {
    let interval = named.profile.interval.unwrap_or(0);
    i64::try_from(interval).unwrap_or(i64::MAX)
}

fn samples(named: &Named, sample_type: SampleType, tables: &mut Tables<'_>) -> Vec<Sample> {
    let samples = named.profile.samples.iter();
    let samples = samples.filter(|sample| sample.values[sample_type] != 0);
    let samples = samples.map(|sample| Sample {
        stack_index: tables.stack(sample.stack),
        values: vec![sample.values[sample_type]],
    });
    samples.collect()
}

/// The dictionary while it grows. The first entry of each table is zero.
struct Tables<'n> {
    named: &'n Named,
    strings: Strings,
    dictionary: Dictionary,
    stacks: HashMap<StackId, i32>,
    locations: HashMap<AddressId, i32>,
    mappings: HashMap<usize, i32>,
    functions: HashMap<i32, i32>,
}

/// Adds an entry, and returns its index.
fn push<T>(table: &mut Vec<T>, entry: T) -> i32 {
    table.push(entry);
    table.len() as i32 - 1
}

impl<'n> Tables<'n> {
    fn new(named: &'n Named) -> Self {
        let mut strings = Strings::default();
        strings.intern("");
        Self {
            named,
            strings,
            dictionary: Dictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Empty {}],
                string_table: Vec::new(),
                attribute_table: vec![Empty {}],
                stack_table: vec![Stack::default()],
            },
            stacks: HashMap::new(),
            locations: HashMap::new(),
            mappings: HashMap::new(),
            functions: HashMap::new(),
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        self.strings.intern(text).0 as i32
    }

    fn stack(&mut self, id: StackId) -> i32 {
        if let Some(index) = self.stacks.get(&id) {
            return *index;
        }
        let frames = self.named.profile.stacks.frames(id);
        let location_indices = frames.iter().map(|frame| self.location(*frame)).collect();
        let index = push(&mut self.dictionary.stack_table, Stack { location_indices });
        self.stacks.insert(id, index);
        index
    }

    /// A function of a module. There are no addresses: many builds and machines are one sum.
    fn location(&mut self, id: AddressId) -> i32 {
        if let Some(index) = self.locations.get(&id) {
            return *index;
        }
        let named = self.named;
        let call = Address(named.profile.stacks.address(id).0.wrapping_sub(1));
        let mapping = named.profile.mapping_of(call);
        let frames = named.names.frames(id).iter();
        let lines = frames.map(|frame| Line {
            function_index: self.function(named.names.strings.get(frame.function)),
        });
        let location = Location {
            lines: lines.collect(),
            mapping_index: mapping.map_or(0, |mapping| self.mapping(mapping)),
        };
        let index = push(&mut self.dictionary.location_table, location);
        self.locations.insert(id, index);
        index
    }

    fn function(&mut self, name: &str) -> i32 {
        let name_strindex = self.string(name);
        if let Some(index) = self.functions.get(&name_strindex) {
            return *index;
        }
        let function = Function { name_strindex };
        let index = push(&mut self.dictionary.function_table, function);
        self.functions.insert(name_strindex, index);
        index
    }

    fn mapping(&mut self, at: usize) -> i32 {
        if let Some(index) = self.mappings.get(&at) {
            return *index;
        }
        let mapping = &self.named.profile.mappings[at];
        let mapping = Mapping {
            memory_start: mapping.start.0,
            memory_limit: mapping.end.0,
            filename_strindex: self.string(mapping.file_name()),
        };
        let index = push(&mut self.dictionary.mapping_table, mapping);
        self.mappings.insert(at, index);
        index
    }

    fn finish(mut self) -> Dictionary {
        let strings = 0..self.strings.len() as u32;
        let text = |id| self.strings.get(memprof_report::StringId(id)).to_owned();
        self.dictionary.string_table = strings.map(text).collect();
        self.dictionary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::take::tests::two_stacks;

    #[test]
    fn the_message_has_the_profile_s_totals_and_zero_entries() {
        let named = two_stacks();
        let bytes = encode(&named, "cart", Instant(1000), Instant(3000));
        let message = ProfilesData::decode(&*bytes).unwrap();
        let dictionary = message.dictionary.unwrap();
        let scope = &message.resource_profiles[0].scope_profiles[0];
        let totals: Vec<_> = scope
            .profiles
            .iter()
            .map(|profile| {
                let name = profile.sample_type.unwrap().type_strindex as usize;
                let values = profile.samples.iter().map(|sample| sample.values[0]);
                let total = values.sum::<i64>();
                (dictionary.string_table[name].as_str(), total)
            })
            .collect();
        assert_eq!(totals, [("inuse_space", 400), ("inuse_objects", 4)]);
        assert_eq!(scope.profiles[0].duration_nano, 2_000_000_000);
        assert_eq!(dictionary.string_table[0], "");
        assert_eq!(dictionary.stack_table[0], Stack::default());
        assert_eq!(dictionary.location_table[0], Location::default());
        assert_eq!(dictionary.function_table[0], Function::default());
        assert_eq!(dictionary.mapping_table[0], Mapping::default());
        // Leaf first, and no stack twice for two types.
        assert_eq!(dictionary.stack_table.len(), 3);
        let deep = dictionary.stack_table.iter();
        let deep = deep
            .max_by_key(|stack| stack.location_indices.len())
            .unwrap();
        let leaf = &dictionary.location_table[deep.location_indices[0] as usize];
        let file = dictionary.mapping_table[leaf.mapping_index as usize].filename_strindex;
        assert_eq!(dictionary.string_table[file as usize], "cart");
    }
}
