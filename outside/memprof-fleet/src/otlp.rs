//! Converts a sum of profiles to OpenTelemetry's protocol, for collectors at `/v1development/profiles`: one
//! profile per sample type, and one dictionary for all.

mod messages;
mod tables;

use std::collections::HashMap;

use memprof_report::{SampleType, SymbolizedProfile};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::time::Instant;
use messages::{
    AnyValue, KeyValue, Profile, ProfilesData, Resource, ResourceProfiles, Sample, Scope,
    ScopeProfiles, ValueType,
};
use tables::Tables;

/// Sample types of the profiles.
const SAMPLE_TYPES: [SampleType; 2] = [SampleType::InuseSpace, SampleType::InuseObjects];

/// Encodes the OTLP message for the profile of `service` in the time from `from` to `to`.
pub(crate) fn encode_message(
    symbolized: &SymbolizedProfile,
    service: &str,
    from: Instant,
    to: Instant,
) -> Vec<u8> {
    build_message(symbolized, service, from, to).encode_to_vec()
}

/// Builds the OTLP message for the profile of `service` in the time from `from` to `to`. It has one profile for each
/// sample type, and one dictionary for all.
fn build_message(
    symbolized: &SymbolizedProfile,
    service: &str,
    from: Instant,
    to: Instant,
) -> ProfilesData {
    let mut tables = Tables::new(symbolized);
    let nanos = |Instant(ms): Instant| ms.unsigned_abs().saturating_mul(1_000_000);
    let mut profiles = SAMPLE_TYPES.map(|sample_type| {
        let unit = |tables: &mut Tables<'_>, name: &str, unit: &str| ValueType {
            type_strindex: tables.intern_string(name),
            unit_strindex: tables.intern_string(unit),
        };
        Profile {
            sample_type: Some(unit(&mut tables, sample_type.name(), sample_type.unit())),
            samples: build_samples(symbolized, sample_type, &mut tables),
            time_unix_nano: nanos(from),
            duration_nano: nanos(Instant(to.0.saturating_sub(from.0))),
            period_type: Some(unit(&mut tables, "space", "bytes")),
            period: sample_interval(symbolized),
            profile_id: Vec::new(),
        }
    });
    let dictionary = tables.into_dictionary();
    let names = dictionary.encode_to_vec();
    for profile in &mut profiles {
        profile.profile_id = profile_id(&[service.as_bytes(), &names, &profile.encode_to_vec()]);
    }
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
        dictionary: Some(dictionary),
    }
}

/// Returns the globally unique id of a profile (profiles.proto, `profile_id`): the first 16 bytes of a hash of the
/// parts. Each part is preceded by its length, so that no two lists of parts hash the same bytes.
fn profile_id(parts: &[&[u8]]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize()[..16].to_vec()
}

/// Returns the mean allocated bytes between samples; 0 if unknown.
fn sample_interval(symbolized: &SymbolizedProfile) -> i64 {
    let interval = symbolized.profile.interval.unwrap_or(0);
    i64::try_from(interval).unwrap_or(i64::MAX)
}

/// Returns the samples of a type, one for each stack with the sum of its values. Leaves out values of 0. Adds the
/// stacks to `tables`.
fn build_samples(
    symbolized: &SymbolizedProfile,
    sample_type: SampleType,
    tables: &mut Tables<'_>,
) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut indices = HashMap::new();
    for sample in &symbolized.profile.samples {
        let value = sample.values[sample_type];
        if value == 0 {
            continue;
        }
        let stack_index = tables.intern_stack(sample.stack);
        let index = *indices.entry(stack_index).or_insert(samples.len());
        match samples.get_mut(index) {
            Some(sample) => sample.values[0] = sample.values[0].saturating_add(value),
            None => samples.push(Sample {
                stack_index,
                values: vec![value],
            }),
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use memprof_report::{Address, Frame, Mapping, SampleValues};

    use super::messages::{Dictionary, Function, Location, ProtoStack};
    use super::*;
    use crate::heap::tests::two_stacks;

    const TIME: [Instant; 2] = [Instant(1000), Instant(3000)];

    fn decoded(
        symbolized: &SymbolizedProfile,
        service: &str,
        [from, to]: [Instant; 2],
    ) -> ProfilesData {
        ProfilesData::decode(&*encode_message(symbolized, service, from, to)).unwrap()
    }

    fn profiles(message: &ProfilesData) -> &[Profile] {
        &message.resource_profiles[0].scope_profiles[0].profiles
    }

    /// Checks that each table begins with its default entry, as OTLP requires.
    fn check_zero_entries(dictionary: &Dictionary) {
        assert_eq!(dictionary.string_table[0], "");
        assert_eq!(dictionary.stack_table[0], ProtoStack::default());
        assert_eq!(dictionary.location_table[0], Location::default());
        assert_eq!(dictionary.function_table[0], Function::default());
        assert_eq!(dictionary.mapping_table[0], messages::Mapping::default());
    }

    #[test]
    fn message_has_totals_of_profile_and_zero_entries() {
        let message = decoded(&two_stacks(), "cart", TIME);
        let dictionary = message.dictionary.as_ref().unwrap();
        let totals: Vec<_> = profiles(&message)
            .iter()
            .map(|profile| {
                let name = profile.sample_type.unwrap().type_strindex as usize;
                let values = profile.samples.iter().map(|sample| sample.values[0]);
                let total = values.sum::<i64>();
                (dictionary.string_table[name].as_str(), total)
            })
            .collect();
        assert_eq!(totals, [("inuse_space", 400), ("inuse_objects", 4)]);
        assert_eq!(profiles(&message)[0].duration_nano, 2_000_000_000);
        check_zero_entries(dictionary);
        // A stack is leaf first, and shared by both types.
        assert_eq!(dictionary.stack_table.len(), 3);
        let deep = dictionary.stack_table.iter();
        let deep = deep
            .max_by_key(|stack| stack.location_indices.len())
            .unwrap();
        let leaf = &dictionary.location_table[deep.location_indices[0] as usize];
        let file = dictionary.mapping_table[leaf.mapping_index as usize].filename_strindex;
        assert_eq!(dictionary.string_table[file as usize], "cart");
    }

    #[test]
    fn profile_ids_differ_unless_content_is_equal() {
        let ids = |symbolized: &SymbolizedProfile, service: &str, time| {
            let message = decoded(symbolized, service, time);
            let ids = profiles(&message).iter().map(|one| one.profile_id.clone());
            ids.collect::<Vec<_>>()
        };
        let symbolized = two_stacks();
        let first = ids(&symbolized, "cart", TIME);
        assert_eq!(first, ids(&two_stacks(), "cart", TIME));
        let mut more = two_stacks();
        more.profile.samples[0].values[SampleType::InuseSpace] += 1;
        let mut other_names = two_stacks();
        other_names.profile.mappings[0].path = "/bin/shop".to_owned();
        let all = [
            first,
            // The number of objects is equal, so only the profile of bytes differs.
            vec![ids(&more, "cart", TIME).remove(0)],
            ids(&other_names, "cart", TIME),
            ids(&symbolized, "shop", TIME),
            ids(&symbolized, "cart", [Instant(2000), TIME[1]]),
            ids(&symbolized, "cart", [TIME[0], Instant(4000)]),
        ];
        let mut all = all.concat();
        assert!(all.iter().all(|id| id.len() == 16));
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn unnamed_entries_are_zero_entries_of_their_tables() {
        let mut symbolized = SymbolizedProfile {
            profile: Default::default(),
            names: Default::default(),
            depths: vec![0; 3],
        };
        // The first frame has no names, the second no function, the third no module.
        for (index, (function, module)) in [("", ""), ("", "/lib/libshop.so"), ("serve", "")]
            .into_iter()
            .enumerate()
        {
            let start = 0x1000 * (index as u64 + 1);
            symbolized.profile.mappings.push(Mapping {
                start: Address(start),
                end: Address(start + 0x1000),
                path: module.to_owned(),
                ..Mapping::default()
            });
            let id = symbolized.profile.stacks.intern_address(Address(start + 1));
            let frame = Frame {
                function: symbolized.names.strings.intern(function),
                linkage: None,
                file: None,
                line: 0,
                named: true,
            };
            symbolized.names.set_frames(id, &[frame]);
            symbolized.profile.stacks.push_frame(id);
            let stack = symbolized.profile.stacks.finish_stack();
            let mut values = SampleValues::default();
            values[SampleType::InuseSpace] = 100;
            let sample = memprof_report::Sample::new(stack, values);
            symbolized.profile.samples.push(sample);
        }
        let dictionary = decoded(&symbolized, "cart", TIME).dictionary.unwrap();
        check_zero_entries(&dictionary);
        let [_, module, function] = &dictionary.location_table[..] else {
            panic!("{dictionary:#?}");
        };
        assert_eq!((module.mapping_index, module.lines.len()), (1, 0));
        assert_eq!(function.mapping_index, 0);
        assert_eq!(function.lines[0].function_index, 1);
        let stacks = dictionary.stack_table.iter();
        let stacks: Vec<_> = stacks.map(|stack| &stack.location_indices[..]).collect();
        assert_eq!(stacks, [&[][..], &[0], &[1], &[2]]);
        let lengths = (
            dictionary.function_table.len(),
            dictionary.mapping_table.len(),
        );
        assert_eq!(lengths, (2, 2));
    }
}
