//! Symbolizes addresses of this program with memprof-report and with blazesym, to compare the two.

use std::env;
use std::time::Instant;

use anyhow::Result;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use memprof_report::{AddressId, Limits, Sources, parse_profile, symbolize};

use crate::address_dump::dump_of_this_program;

/// Symbolizes addresses of this program with memprof-report. Prints the seconds, and the number of addresses for which
/// it found a name.
pub(super) fn symbolize_by_memprof() -> Result<()> {
    let (dump, addresses) = dump_of_this_program()?;
    let mut profile = parse_profile(&mut dump.as_bytes(), &Limits::default(), false)?;
    let sources = Sources {
        roots: vec!["/".into()],
        ..Sources::default()
    };
    let start = Instant::now();
    let names = symbolize(&mut profile, &sources, &|_, _| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let frames = (0..addresses.len() as u32).map(|id| names.frames(AddressId(id)));
    println!(
        "{seconds} {}",
        frames
            .filter(|frames| frames.iter().any(|frame| frame.named))
            .count()
    );
    Ok(())
}

/// Symbolizes addresses of this program with blazesym. Prints the seconds, and the number of addresses for which it
/// found a name.
pub(super) fn symbolize_by_blazesym() -> Result<()> {
    let (_, offsets) = dump_of_this_program()?;
    let source = Source::Elf(Elf::new(env::current_exe()?));
    let start = Instant::now();
    let symbolizer = Symbolizer::new();
    let names = symbolizer.symbolize(&source, Input::FileOffset(&offsets))?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{seconds} {}",
        names.iter().filter(|name| name.as_sym().is_some()).count()
    );
    Ok(())
}
