//! Writes a symbolized heap dump, which jeprof opens without the binary.
//!
//! The values are unsampled, which the header's `heapprofile` declares. jeprof looks up the leaf as it is and every
//! other address less 1, so the leaf is written less 1. The line `--- heap` that jeprof writes before the profile
//! is omitted: jeprof does not need it, and google-pprof does not know it.

use std::io::Write;

use super::RenderInput;
use crate::error::Result;
use crate::options::Options;
use crate::profile::{Profile, SampleType, SampleValues};
use crate::stacks::AddressId;

/// Writes symbols, stacks and mappings in the text that jeprof reads, without the allocator's frames. No option
/// applies.
pub(super) fn write(
    input: &RenderInput<'_>,
    _options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let symbolized = input.profile;
    let profile = &symbolized.profile;
    let main = profile.main_file();
    writeln!(
        out,
        "--- symbol\nbinary={}",
        main.map_or("unknown", |mapping| &mapping.path)
    )?;
    for (index, address) in profile.stacks.addresses().iter().enumerate() {
        let frames = symbolized.names.frames(AddressId(index as u32));
        let functions: Vec<String> = frames
            .iter()
            .rev()
            .map(|frame| {
                symbolized
                    .names
                    .strings
                    .get(frame.function)
                    .replace("--", "- -")
            })
            .collect();
        writeln!(
            out,
            "{:#018x} {}",
            address.0.wrapping_sub(1),
            functions.join("--")
        )?;
    }
    writeln!(
        out,
        "---\nheap profile: {} @ heapprofile",
        format_counts(input.totals())
    )?;
    for sample in &profile.samples {
        write!(out, "{} @", format_counts(sample.values))?;
        let depth = symbolized.depths[sample.stack.0 as usize] as usize;
        for (index, &id) in profile.stacks.frames(sample.stack)[depth..]
            .iter()
            .enumerate()
        {
            let address = profile.stacks.address(id).0;
            write!(
                out,
                " {:#018x}",
                if index == 0 {
                    address.wrapping_sub(1)
                } else {
                    address
                }
            )?;
        }
        writeln!(out)?;
    }
    write_mappings(profile, out)
}

/// Formats values as `objects: bytes [objects: bytes]`.
fn format_counts(values: SampleValues) -> String {
    format!(
        "{}: {} [{}: {}]",
        values[SampleType::InuseObjects],
        values[SampleType::InuseSpace],
        values[SampleType::AllocObjects],
        values[SampleType::AllocSpace]
    )
}

fn write_mappings(profile: &Profile, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\nMAPPED_LIBRARIES:")?;
    for mapping in &profile.mappings {
        let permissions = if mapping.executable { "r-xp" } else { "r--p" };
        writeln!(
            out,
            "{:x}-{:x} {permissions} {:08x} 00:00 0 {}",
            mapping.start.0, mapping.end.0, mapping.offset, mapping.path
        )?;
    }
    Ok(())
}
