//! pprof profiles as input: what other tools and our own `--format pprof` write.

pub(crate) mod proto;

use std::collections::HashMap;

use prost::Message;

use crate::demangle::demangle;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::names::{Frame, Names, printable};
use crate::profile::{Address, Mapping, Profile, Sample, SampleType, Values};
use crate::stacks::AddressId;

/// Reads an uncompressed `profile.proto`; its values count as unsampled.
pub(crate) fn parse(bytes: &[u8], limits: &Limits) -> Result<Profile> {
    let proto = proto::Profile::decode(bytes).map_err(|error| Error::pprof(error.to_string()))?;
    if proto.sample.len() > limits.samples {
        return Err(Error::Limit {
            what: "samples",
            limit: limits.samples as u64,
        });
    }
    if proto.mapping.len() > limits.mappings {
        return Err(Error::Limit {
            what: "mappings",
            limit: limits.mappings as u64,
        });
    }
    let columns = columns(&proto)?;
    let mut profile = Profile {
        interval: u64::try_from(proto.period)
            .ok()
            .filter(|&period| period > 0),
        has_alloc: columns
            .iter()
            .any(|(sample_type, _)| sample_type.is_alloc()),
        mappings: mappings(&proto)?,
        ..Profile::default()
    };
    let mut names = Names::default();
    let locations = locations(&proto, &mut profile, &mut names)?;
    for sample in &proto.sample {
        if sample.location_id.len() > limits.frames {
            return Err(Error::Limit {
                what: "frames in a stack",
                limit: limits.frames as u64,
            });
        }
        for id in &sample.location_id {
            let location = locations.get(id);
            profile
                .stacks
                .push(*location.ok_or_else(|| Error::pprof(format!("there is no location {id}")))?);
        }
        if sample.value.len() != proto.sample_type.len() {
            return Err(Error::pprof(
                "a sample has more or fewer values than sample types",
            ));
        }
        let mut values = Values::default();
        for &(sample_type, column) in &columns {
            values[sample_type] = sample.value[column];
        }
        let stack = profile.stacks.finish();
        profile.samples.push(Sample {
            stack,
            count: 0,
            values,
        });
    }
    profile.names = Some(names);
    Ok(profile)
}

fn string(proto: &proto::Profile, index: i64) -> Result<&str> {
    let string = usize::try_from(index)
        .ok()
        .and_then(|index| proto.string_table.get(index));
    string
        .map(String::as_str)
        .ok_or_else(|| Error::pprof(format!("there is no string {index}")))
}

/// Which value of a sample is which type.
fn columns(proto: &proto::Profile) -> Result<Vec<(SampleType, usize)>> {
    let mut columns = Vec::new();
    for (column, value_type) in proto.sample_type.iter().enumerate() {
        let name = string(proto, value_type.r#type)?;
        columns.extend(match name {
            "space" => Some((SampleType::InuseSpace, column)),
            "objects" => Some((SampleType::InuseObjects, column)),
            _ => SampleType::ALL
                .into_iter()
                .find(|t| t.name() == name)
                .map(|t| (t, column)),
        });
    }
    if columns.is_empty() {
        return Err(Error::pprof(
            "it is no heap profile: no sample type inuse_* or alloc_*",
        ));
    }
    Ok(columns)
}

fn mappings(proto: &proto::Profile) -> Result<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for mapping in &proto.mapping {
        let build_id = string(proto, mapping.build_id)?;
        mappings.push(Mapping {
            start: Address(mapping.memory_start),
            end: Address(mapping.memory_limit),
            offset: mapping.file_offset,
            executable: true,
            path: printable(string(proto, mapping.filename)?).into_owned(),
            build_id: (!build_id.is_empty()).then(|| printable(build_id).into_owned()),
        });
    }
    mappings.sort_by_key(|mapping| mapping.start);
    let mut end = Address(0);
    mappings.retain(|mapping| {
        let keep = mapping.start >= end && mapping.end > mapping.start;
        if keep {
            end = mapping.end;
        }
        keep
    });
    Ok(mappings)
}

/// Interns every location. The addresses there are of calls, ours of returns: one more. Two locations may
/// share an address, or have none; those get addresses at the far end, outside of any mapping.
fn locations(
    proto: &proto::Profile,
    profile: &mut Profile,
    names: &mut Names,
) -> Result<HashMap<u64, AddressId>> {
    let functions: HashMap<u64, &proto::Function> = proto
        .function
        .iter()
        .map(|function| (function.id, function))
        .collect();
    let mut ids = HashMap::new();
    for (index, location) in proto.location.iter().enumerate() {
        let known = profile.stacks.addresses().len();
        let mut id = profile
            .stacks
            .intern_address(Address(location.address.wrapping_add(1)));
        if location.address == 0 || (id.0 as usize) < known {
            id = profile
                .stacks
                .intern_address(Address(u64::MAX - index as u64));
        }
        let mut frames = Vec::new();
        for line in &location.line {
            let function = functions.get(&line.function_id);
            let function = function.ok_or_else(|| {
                Error::pprof(format!("there is no function {}", line.function_id))
            })?;
            let name = match string(proto, function.name)? {
                "" => string(proto, function.system_name)?,
                name => name,
            };
            let file = string(proto, function.filename)?;
            frames.push(Frame {
                function: names.strings.intern(&demangle(name)),
                file: (!file.is_empty()).then(|| names.strings.intern(file)),
                line: u32::try_from(line.line).unwrap_or(0),
                named: true,
            });
        }
        if !frames.is_empty() {
            names.set(id, &frames);
        }
        if ids.insert(location.id, id).is_some() {
            return Err(Error::pprof(format!(
                "there are two locations {}",
                location.id
            )));
        }
    }
    Ok(ids)
}
