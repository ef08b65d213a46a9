//! A symbolized heap dump: jeprof opens it without the binary.
//!
//! The values are unsampled, which the header's `heapprofile` tells jeprof. It looks the leaf up as it is
//! and every other address less 1, so the leaf is written less 1. The line `--- heap` that jeprof writes in
//! front of the profile is left out: jeprof does not need it, and google-pprof does not know it.

use std::io::Write;

use super::RenderInput;
use crate::error::Result;
use crate::options::Options;
use crate::profile::{Profile, SampleType, SampleValues};
use crate::stacks::AddressId;

pub(super) fn write(
    subject: &RenderInput<'_>,
    _options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let named = subject.profile;
    let profile = &named.profile;
    let main = profile.main_file();
    writeln!(
        out,
        "--- symbol\nbinary={}",
        main.map_or("unknown", |mapping| &mapping.path)
    )?;
    for (index, address) in profile.stacks.addresses().iter().enumerate() {
        let frames = named.names.frames(AddressId(index as u32));
        let functions: Vec<String> = frames
            .iter()
            .rev()
            .map(|frame| named.names.strings.get(frame.function).replace("--", "- -"))
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
        counts(subject.totals())
    )?;
    for sample in &profile.samples {
        write!(out, "{} @", counts(sample.values))?;
        let depth = named.depths[sample.stack.0 as usize] as usize;
        for (at, &id) in profile.stacks.frames(sample.stack)[depth..]
            .iter()
            .enumerate()
        {
            let address = profile.stacks.address(id).0;
            write!(
                out,
                " {:#018x}",
                if at == 0 {
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

fn counts(values: SampleValues) -> String {
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
