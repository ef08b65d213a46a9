//! Writes a symbolized heap dump, which jeprof opens without the binary.
//!
//! The values are unsampled, which the header's `heapprofile` declares. jeprof looks up the leaf as it is and every
//! other address less 1, google-pprof each address as it is: so the leaf is written less 1, and each function is named
//! at both addresses. The line `--- heap` that jeprof writes before the profile is omitted: jeprof does not need it,
//! and google-pprof does not know it.

use std::collections::HashSet;
use std::io::Write;

use super::RenderInput;
use super::negative::net_samples;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::profile::{Address, Mapping, Profile, SampleType, SampleValues};
use crate::stacks::AddressId;

/// Writes symbols, stacks and mappings in the text that jeprof reads, without the allocator's frames. The format cannot
/// hold negative values: 0 is written in their place. Fails if the selected sample type is none of `inuse_*` and
/// `alloc_*`, the types of the format.
pub(super) fn write_jeprof(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let symbolized = input.profile;
    let profile = &symbolized.profile;
    let selected = input.value_type(options.sample_type).name;
    if selected != options.sample_type.name() {
        return Err(Error::Usage(format!(
            "jeprof's file holds inuse_* and alloc_*, not {selected}; --format pprof holds it"
        )));
    }
    let main = profile.main_file();
    writeln!(
        out,
        "--- symbol\nbinary={}",
        main.map_or("unknown", |mapping| &mapping.path)
    )?;
    let calls = distinct_call_addresses(profile);
    let is_call: HashSet<u64> = calls.iter().copied().collect();
    for (id, call) in (0..).map(AddressId).zip(&calls) {
        if symbolized.names.is_managed_word(id) {
            continue;
        }
        let frames = symbolized.names.frames(id);
        let functions: Vec<String> = frames
            .iter()
            .rev()
            .map(|frame| {
                // jeprof separates inlined functions by `--`, so no name may contain it.
                symbolized
                    .names
                    .strings
                    .get(frame.function)
                    .replace("--", "- -")
            })
            .collect();
        let name = functions.join("--");
        writeln!(out, "{call:#018x} {name}")?;
        let return_address = call.wrapping_add(1);
        if !is_call.contains(&return_address) {
            writeln!(out, "{return_address:#018x} {name}")?;
        }
    }
    let samples: Vec<_> = net_samples(profile)
        .into_iter()
        .map(|(stack, values)| (stack, values.without_negative_values()))
        .collect();
    let totals = samples
        .iter()
        .fold(SampleValues::default(), |sum, (_, values)| {
            sum.saturating_add(*values)
        });
    writeln!(
        out,
        "---\nheap profile: {} @ heapprofile",
        format_counts(totals)
    )?;
    for (stack, values) in samples {
        write!(out, "{} @", format_counts(values))?;
        for (index, id) in symbolized.program_frames(stack).iter().enumerate() {
            let call = calls[id.0 as usize];
            let address = call.wrapping_add(u64::from(index > 0));
            write!(out, " {address:#018x}")?;
        }
        writeln!(out)?;
    }
    write_mappings(profile, out)
}

/// Addresses below this one are given to places whose own address is taken: downwards, 16 bytes apart, because a reader
/// may look up a leaf at the byte before it.
const FREE_ADDRESSES: u64 = u64::MAX - 0xfff;

/// Returns a unique address for each call, because jeprof distinguishes calls by address only. A call keeps its own
/// address if the mapping that is written for this address is the call's, no other call has this or a neighbouring
/// address, and it is not too near to an end of the address space. Any other call gets a free address below
/// [`FREE_ADDRESSES`]. If the input file assigned no mappings to its addresses, all calls keep their own.
fn distinct_call_addresses(profile: &Profile) -> Vec<u64> {
    let ids = (0..profile.stacks.addresses().len() as u32).map(AddressId);
    if profile.address_mappings.is_none() {
        return ids.map(|id| profile.stacks.call_address(id).0).collect();
    }
    let mut used = HashSet::new();
    let mut free = FREE_ADDRESSES;
    let written: Vec<&Mapping> = mappings_to_write(profile).collect();
    ids.map(|id| {
        let call = profile.stacks.call_address(id);
        let is_free = |address| !used.contains(&address);
        let after = written.partition_point(|mapping| mapping.start <= call);
        let found = after.checked_sub(1).map(|index| written[index]);
        let found = found.filter(|mapping| mapping.contains(call));
        let own = profile.mapping_of_frame(id);
        let own = own.map(|index| &profile.mappings[index]);
        let is_own = match (found, own) {
            (Some(found), Some(own)) => std::ptr::eq(found, own),
            (found, own) => found.is_none() && own.is_none_or(|own| !own.contains(call)),
        };
        // A call is written with its own address and the next one, its return address.
        let neighbours = [call.0.wrapping_sub(1), call.0, call.0.wrapping_add(1)];
        // The addresses above the limit are left for the places that are given one.
        if call.0 > 1
            && call.0 < FREE_ADDRESSES - u64::from(u32::MAX) * 16
            && is_own
            && neighbours.into_iter().all(is_free)
        {
            used.insert(call.0);
            return call.0;
        }
        free -= 16;
        free
    })
    .collect()
}

/// Formats values in use and, in brackets, the allocated ones: `objects: bytes [objects: bytes]`.
fn format_counts(values: SampleValues) -> String {
    format!(
        "{}: {} [{}: {}]",
        values[SampleType::InuseObjects],
        values[SampleType::InuseSpace],
        values[SampleType::AllocObjects],
        values[SampleType::AllocSpace]
    )
}

/// Iterates over the mappings that are written. Leaves out empty ones, those whose addresses are of the file as it was
/// linked, not of memory, and those that overlap an earlier one.
fn mappings_to_write(profile: &Profile) -> impl Iterator<Item = &Mapping> {
    let mut end = Address(0);
    profile.mappings.iter().filter(move |mapping| {
        let is_range = mapping.start < mapping.end && !mapping.has_linked_addresses();
        let is_written = is_range && mapping.start >= end;
        if is_written {
            end = mapping.end;
        }
        is_written
    })
}

/// Writes the section of the mappings, whose lines have the form of /proc/PID/maps.
fn write_mappings(profile: &Profile, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\nMAPPED_LIBRARIES:")?;
    for mapping in mappings_to_write(profile) {
        let permissions = if mapping.executable { "r-xp" } else { "r--p" };
        writeln!(
            out,
            "{:x}-{:x} {permissions} {:08x} 00:00 0 {}",
            mapping.start.0, mapping.end.0, mapping.offset, mapping.path
        )?;
    }
    Ok(())
}
