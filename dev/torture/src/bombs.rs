//! Profiles made to unfold in the reader, and dumps damaged at random: `memprof report` on each, which may
//! take a multiple of its input in memory and no more, and never gives another answer than the right one.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use serde_json::Value;

use super::SuiteLength;
use super::host::{HostSetup, dump, send};
use xtask::dist::dist;
use xtask::run::run as run_to_end;

/// What `memprof report` may take for each byte of a profile, and besides, in KiB.
const TIMES: usize = 8;
const FLOOR: usize = 64 << 10;

const PATIENCE: Duration = Duration::from_secs(30);

/// What is repeated behind a beginning.
struct Bomb {
    name: &'static str,
    begin: &'static [u8],
    part: fn(usize) -> Vec<u8>,
}

const PPROF: &[u8] = b"\x0a\x04\x08\x01\x10\x02\x32\x00\x32\x0binuse_space\x32\x05bytes";
const DUMP: &[u8] = b"heap_v2/1\n  t*: 1: 1 [0: 0]\n";

const BOMBS: [Bomb; 6] = [
    Bomb {
        name: "samples",
        begin: PPROF,
        part: |_| vec![0x12, 2, 0x10, 0],
    },
    Bomb {
        name: "strings",
        begin: PPROF,
        part: |_| vec![0x32, 0],
    },
    Bomb {
        name: "functions",
        begin: PPROF,
        part: |_| vec![0x2a, 0],
    },
    Bomb {
        name: "locations",
        begin: PPROF,
        part: |_| vec![0x22, 0],
    },
    Bomb {
        name: "addresses",
        begin: DUMP,
        part: |index| format!("@ {index:#x}\n  t*: 1: 1 [0: 0]\n").into(),
    },
    Bomb {
        name: "lines",
        begin: DUMP,
        part: |_| vec![b'\n'],
    },
];

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let place = tempfile::tempdir()?;
    let size = form.pick(8 << 20, 64 << 20);
    for bomb in &BOMBS {
        unfold(bomb, size, place.path()).with_context(|| bomb.name)?;
    }
    let count = form.pick(200, 10_000);
    let named = damage(count, place.path())?;
    Ok(format!(
        "{} bombs of {} MiB, plain and in gzip, within {TIMES} times their size; of {count} damaged dumps {named} \
         were named, the others have the right total",
        BOMBS.len(),
        size >> 20
    ))
}

fn unfold(bomb: &Bomb, size: usize, place: &Path) -> Result<()> {
    let mut bytes = bomb.begin.to_vec();
    let mut index = 0;
    while bytes.len() < size {
        bytes.extend((bomb.part)(index));
        index += 1;
    }
    let file = place.join(bomb.name);
    fs::write(&file, &bytes)?;
    run_to_end(
        Command::new("gzip")
            .args(["-9", "--keep", "--force"])
            .arg(&file),
    )?;
    for file in [file.clone(), file.with_extension("gz")] {
        for format in ["text", "html", "flamegraph"] {
            let output = bounded(&file, format, TIMES * (bytes.len() >> 10) + FLOOR)?;
            let problem = String::from_utf8_lossy(&output.stderr);
            ensure!(
                matches!(output.status.code(), Some(0 | 1 | 5)),
                "{format}: {}: {problem}",
                output.status
            );
        }
    }
    Ok(())
}

/// `memprof report` with so many KiB of memory to write to.
fn bounded(file: &Path, format: &str, limit: usize) -> Result<Output> {
    let mut report = Command::new("bash");
    report
        .args([
            "-c",
            "ulimit -d \"$1\" && exec \"$2\" report --no-symbols --format \"$3\" \"$4\"",
        ])
        .args(["bash", &limit.to_string()])
        .arg(dist().join("bin/memprof"))
        .arg(format)
        .arg(file);
    report.output().context("failed to run memprof report")
}

/// Damages a real dump that often; returns how many were refused or called damaged.
fn damage(count: usize, place: &Path) -> Result<usize> {
    let host = HostSetup::default().start()?;
    let mut client = host.client()?;
    send(&mut client, "activate", "")?;
    let path = dump_of_samples(&mut client)?;
    let whole = fs::read(&path).with_context(|| path.clone())?;
    let file = place.join("damaged.heap");
    let report = |bytes: &[u8]| -> Result<(Output, Option<Value>)> {
        fs::write(&file, bytes)?;
        let output = bounded(&file, "json", FLOOR)?;
        let code = output.status.code();
        ensure!(
            matches!(code, Some(0 | 1 | 5)) && output.status.signal().is_none(),
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let json = serde_json::from_slice::<Value>(&output.stdout).ok();
        Ok((
            output,
            json.map(|json| json["totals"]["inuse_space"].clone()),
        ))
    };
    let (output, total) = report(&whole)?;
    ensure!(
        total.is_some() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut named = 0;
    for round in 0..count {
        let mut bytes = whole.clone();
        let (at, length) = (random.below(bytes.len()), 1 + random.below(200));
        let end = (at + length).min(bytes.len());
        match round % 5 {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..end)),
            3 => bytes[at..end].fill(0),
            _ => {
                let twice = bytes[at..end].to_vec();
                bytes.splice(at..at, twice);
            }
        }
        let (output, found) = report(&bytes)?;
        let is_named = !output.status.success() || !output.stderr.is_empty();
        ensure!(
            is_named || found == total,
            "round {round}: {found:?} instead of {total:?}, and not a word of damage"
        );
        named += usize::from(is_named);
    }
    Ok(named)
}

/// The path of a dump that is not empty: a report of an empty one says so.
fn dump_of_samples(client: &mut Client) -> Result<String> {
    let begun = Instant::now();
    loop {
        let dump = dump(client)?;
        if dump["estimated_inuse_bytes"].as_u64() > Some(0) {
            return Ok(dump["path"].as_str().unwrap_or_default().to_owned());
        }
        ensure!(begun.elapsed() < PATIENCE, "nothing is sampled: {dump}");
    }
}

/// Numbers that are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}
