//! Suite `bombs`: `memprof report` of profiles that expand in memory, and of dumps with random damage. Its memory is
//! limited to a multiple of its input, and its totals are right or it reports the damage.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use serde_json::Value;
use testkit::Random;

use super::SuiteLength;
use super::host::{HostSetup, send_successfully};
use xtask::dist::dist_dir;
use xtask::run::run as run_to_end;

/// Bytes of memory that `memprof report` may use for each byte of a profile.
const MEMORY_FACTOR: usize = 8;
/// KiB of memory that it may use besides.
const BASE_KIB: usize = 64 << 10;

/// Formats of the reports of a bomb.
const FORMATS: [&str; 3] = ["text", "html", "flamegraph"];

/// Time until a dump has samples.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A profile that repeats a part.
struct Bomb {
    name: &'static str,
    begin: &'static [u8],
    /// Returns the part with this number.
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

/// Runs the suite `bombs`, and returns its figures in one line. Fails if a report of a bomb or of a damaged dump takes
/// too much memory, dies, or has a wrong total without a note.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let size = length.pick(8 << 20, 64 << 20);
    // Once it is unpacked, a report does not depend on how the file was packed.
    let packed_formats = length.pick(&FORMATS[..1], &FORMATS[..]);
    for bomb in &BOMBS {
        report_bomb(bomb, size, packed_formats, dir.path()).with_context(|| bomb.name)?;
    }
    // The short form has twenty dumps with each of the five kinds of damage.
    let count = length.pick(100, 10_000);
    let damage_reported = report_damaged_dumps(count, dir.path())?;
    Ok(format!(
        "{} bombs of {} MiB, plain and in gzip, within {MEMORY_FACTOR} times their size; of {count} damaged dumps {damage_reported} \
         were reported, the others have the right total",
        BOMBS.len(),
        size >> 20
    ))
}

/// Writes a bomb of `size` bytes to `dir`, and reports it in all [`FORMATS`], and its gzip form in `packed_formats`. A
/// report may fail with an error; one that panics or is killed, as it is beyond its memory limit, fails the suite.
fn report_bomb(bomb: &Bomb, size: usize, packed_formats: &[&str], dir: &Path) -> Result<()> {
    let mut bytes = bomb.begin.to_vec();
    let mut index = 0;
    while bytes.len() < size {
        bytes.extend((bomb.part)(index));
        index += 1;
    }
    let file = dir.join(bomb.name);
    fs::write(&file, &bytes)?;
    run_to_end(
        Command::new("gzip")
            .args(["-9", "--keep", "--force"])
            .arg(&file),
    )?;
    let packed = file.with_extension("gz");
    for (file, formats) in [(&file, &FORMATS[..]), (&packed, packed_formats)] {
        for format in formats {
            let output =
                report_with_limit(file, format, MEMORY_FACTOR * (bytes.len() >> 10) + BASE_KIB)?;
            let stderr = String::from_utf8_lossy(&output.stderr);
            // 0 is success, 1 an error, 5 a profile without data; a panic or a signal gives another code or none.
            ensure!(
                matches!(output.status.code(), Some(0 | 1 | 5)),
                "{format}: {}: {stderr}",
                output.status
            );
        }
    }
    Ok(())
}

/// Runs `memprof report` with `limit` KiB of memory at most (`ulimit -d`), and returns its output, also if it failed.
/// It ends with the code 124 of timeout(1) after ten minutes. Fails only if the shell cannot be started.
fn report_with_limit(file: &Path, format: &str, limit: usize) -> Result<Output> {
    let mut report = Command::new("bash");
    report
        .args([
            "-c",
            "ulimit -d \"$1\" && exec timeout --kill-after=5 600 \"$2\" report --no-symbols --format \"$3\" \"$4\"",
        ])
        .args(["bash", &limit.to_string()])
        .arg(dist_dir().join("bin/memprof"))
        .arg(format)
        .arg(file);
    report.output().context("failed to run memprof report")
}

/// Reports `count` copies of a dump, each with random damage. Returns for how many the report failed or had a note.
/// Fails if a report without a note has another total than that of the intact dump, or if a report panics or is killed.
fn report_damaged_dumps(count: usize, dir: &Path) -> Result<usize> {
    let host = HostSetup::default().start()?;
    let mut client = host.client()?;
    send_successfully(&mut client, "activate", "")?;
    let path = dump_with_samples(&mut client)?;
    let whole = fs::read(&path).with_context(|| path.clone())?;
    let file = dir.join("damaged.heap");
    let report = |bytes: &[u8]| -> Result<(Output, Option<Value>)> {
        fs::write(&file, bytes)?;
        let output = report_with_limit(&file, "json", BASE_KIB)?;
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
    let mut damage_reported = 0;
    for round in 0..count {
        let mut bytes = whole.clone();
        let (offset, len) = (random.next_below(bytes.len()), 1 + random.next_below(200));
        let end = (offset + len).min(bytes.len());
        match round % 5 {
            0 => bytes[offset] ^= 1 << random.next_below(8),
            1 => bytes.truncate(offset),
            2 => drop(bytes.drain(offset..end)),
            3 => bytes[offset..end].fill(0),
            _ => {
                let copy = bytes[offset..end].to_vec();
                bytes.splice(offset..offset, copy);
            }
        }
        let (output, found) = report(&bytes)?;
        let is_reported = !output.status.success() || !output.stderr.is_empty();
        ensure!(
            is_reported || found == total,
            "round {round}: {found:?} instead of {total:?}, and no report of the damage"
        );
        damage_reported += usize::from(is_reported);
    }
    Ok(damage_reported)
}

/// Dumps until a dump has samples, for [`SAMPLE_TIMEOUT`] at most, and returns its path. Fails if a dump fails. The
/// report of an empty dump has a note, which would count as reported damage.
fn dump_with_samples(client: &mut Client) -> Result<String> {
    let start = Instant::now();
    loop {
        let dump = send_successfully(client, "dump", "")?;
        if dump["estimated_inuse_bytes"].as_u64() > Some(0) {
            return Ok(dump["path"].as_str().context("path")?.to_owned());
        }
        ensure!(
            start.elapsed() < SAMPLE_TIMEOUT,
            "nothing is sampled: {dump}"
        );
    }
}
