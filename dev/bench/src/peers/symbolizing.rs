//! Symbolizes addresses of this program with memprof-report and with blazesym, to compare the two.

use std::env;
use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use memprof_report::{AddressId, Limits, Sources, parse, symbolize};

/// Distinct addresses to symbolize.
const ADDRESSES: u64 = 10_000;

/// Symbolizes with memprof-report; prints the seconds and the number of addresses with a name.
pub(super) fn symbolize_by_memprof() -> Result<()> {
    let (dump, addresses) = generate_dump()?;
    let mut profile = parse(&mut dump.as_bytes(), &Limits::default(), false)?;
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

/// Symbolizes with blazesym; prints the seconds and the number of addresses with a name.
pub(super) fn symbolize_by_blazesym() -> Result<()> {
    let (_, offsets) = generate_dump()?;
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

/// Dump with one stack per address, spread over this program's code, and the file offsets of the calls.
fn generate_dump() -> Result<(String, Vec<u64>)> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let program = env::current_exe()?.display().to_string();
    let code = maps
        .lines()
        .find(|line| line.ends_with(&program) && line.contains(" r-xp "));
    let fields: Vec<&str> = code
        .context("no code of this program is mapped")?
        .split([' ', '-'])
        .collect();
    let number = |index: usize| u64::from_str_radix(fields[index], 16);
    // The fields are start-end r-xp offset; the dash of r-xp splits too.
    let (start, end, offset) = (number(0)?, number(1)?, number(4)?);
    let step = (end - start) / (ADDRESSES + 1);
    let mut dump = "heap_v2/512\n  t*: 10000: 10000 [0: 0]\n".to_owned();
    let mut offsets = Vec::new();
    for index in 1..=ADDRESSES {
        let address = start + index * step;
        dump.push_str(&format!("@ {address:#x}\n  t*: 1: 1 [0: 0]\n"));
        offsets.push(address - 1 - start + offset);
    }
    dump.push_str(&format!("\nMAPPED_LIBRARIES:\n{maps}"));
    Ok((dump, offsets))
}
