//! Speed and memory against the peers, in one run: `cargo bench -p memprof-report`.
//!
//! Each line gives both figures, the ratio and the peer's command. Processes are measured from outside:
//! this program starts itself, or the peer, under itself, and reads the resource usage of its child.

mod names;
mod synthetic;

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memprof_report::{Format, Input, Limits, Options, Sources, parse, report, unsample};
use nix::sys::resource::{UsageWho, getrusage};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The program of cc1plus.heap, for jeprof. Any executable does where it is missing, with fewer names.
const PROGRAM: &str = "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus";

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["measure", ref command @ ..] => measure(command),
        ["memprof", format, symbols, file] => memprof(format, symbols == "named", file),
        ["parse", file] => parse_file(file),
        ["pprof_util", file] => pprof_util(file),
        ["generate", file] => generate(Path::new(file)),
        ["names", "memprof"] => names::ours(),
        ["names", "blazesym"] => names::blazesym(),
        ["memchr", file] => parse_against_memchr(Path::new(file)),
        _ => compare(),
    }
}

fn compare() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let real = directory.path().join("cc1plus.heap");
    let big = directory.path().join("big.heap");
    fs::write(&real, corpus()?)?;
    generate(&big)?;
    let size = fs::metadata(&big)?.len() as f64 / 1e6;
    println!(
        "big.heap: {size:.1} MB; cc1plus.heap: {:.1} MB",
        fs::metadata(&real)?.len() as f64 / 1e6
    );
    for (file, wanted) in [(&real, 50.0), (&big, 100.0)] {
        let file = text(file);
        let ours = usage_of_self(&["memprof", "collapsed", "named", file], 5)?;
        let peer = usage(&["jeprof", "--collapsed", PROGRAM, file], 1)?;
        show(
            "collapsed, symbolized",
            ours,
            peer,
            wanted,
            &format!("jeprof --collapsed {PROGRAM} {file}"),
        );
    }
    let file = text(&big);
    let ours = usage_of_self(&["memprof", "pprof", "numbers", file], 5)?;
    let peer = usage_of_self(&["pprof_util", file], 5)?;
    show(
        "pprof, no symbols",
        ours,
        peer,
        3.0,
        "pprof_util::parse_jeheap + to_pprof",
    );
    for reader in ["memprof", "blazesym"] {
        let usage = usage_of_self(&["names", reader], 3)?;
        let output = Command::new(env::current_exe()?)
            .args(["names", reader])
            .output()?;
        let printed = String::from_utf8(output.stdout)?;
        println!(
            "10,000 addresses of this program by {reader}: {:.3} s, {:.1} MB; seconds of naming and names: {}",
            usage.seconds,
            usage.peak as f64 / 1e6,
            printed.trim()
        );
    }
    run_in_kept_memory(&["memchr", file])?;
    let ours = usage_of_self(&["parse", file], 3)?;
    println!(
        "parse + unsample + intern of {size:.1} MB: peak {:.1} MB, {:.2} of the file (wanted: at most 1.1)",
        ours.peak as f64 / 1e6,
        ours.peak as f64 / 1e6 / size
    );
    Ok(())
}

/// Runs this program where freed memory stays mapped (`mallopt(3)`): of twenty runs the fastest pays for its
/// own work, not for page faults, as memchr does not.
fn run_in_kept_memory(arguments: &[&str]) -> Result<()> {
    let tunables = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483648";
    let status = Command::new(env::current_exe()?)
        .args(arguments)
        .env("GLIBC_TUNABLES", tunables)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{arguments:?}: {status}").into()),
    }
}

/// Parse, unsample and intern against one pass of memchr over the same buffer: for its line ends, as any
/// parser must, and for a byte that never comes.
fn parse_against_memchr(file: &Path) -> Result<()> {
    let bytes = fs::read(file)?;
    let ours = fastest(|| {
        let mut profile = parse(&mut &bytes[..], &Limits::default(), false)?;
        unsample(&mut profile)
    })?;
    let lines = fastest(|| {
        for end in memchr::memchr_iter(b'\n', &bytes) {
            black_box(end);
        }
        Ok(())
    })?;
    let nothing = fastest(|| {
        black_box(memchr::memchr(0, black_box(&bytes)));
        Ok(())
    })?;
    println!(
        "parse + unsample + intern: {:.1} ms, {:.1} passes of memchr_iter(b'\\n', bytes) in {:.2} ms (wanted: at \
         most 10, goal 5), {:.1} passes of memchr(0, bytes) in {:.2} ms",
        ours * 1e3,
        ours / lines,
        lines * 1e3,
        ours / nothing,
        nothing * 1e3
    );
    Ok(())
}

/// Seconds of the fastest of 20 runs.
fn fastest(mut run: impl FnMut() -> memprof_report::Result<()>) -> Result<f64> {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64())
}

/// What a process took.
#[derive(Clone, Copy)]
struct Usage {
    seconds: f64,
    /// Bytes.
    peak: u64,
}

fn show(what: &str, ours: Usage, peer: Usage, wanted: f64, command: &str) {
    println!(
        "{what}: {:.3} s, {:.1} MB; peer {:.3} s, {:.1} MB; {:.1} times faster (wanted: {wanted}), {:.2} of its peak; {command}",
        ours.seconds,
        ours.peak as f64 / 1e6,
        peer.seconds,
        peer.peak as f64 / 1e6,
        peer.seconds / ours.seconds,
        ours.peak as f64 / peer.peak as f64
    );
}

fn usage_of_self(arguments: &[&str], times: u32) -> Result<Usage> {
    let program = env::current_exe()?;
    let mut command = vec![text(&program)];
    command.extend(arguments);
    usage(&command, times)
}

/// The fastest of several runs of a command.
fn usage(command: &[&str], times: u32) -> Result<Usage> {
    let mut best = Usage {
        seconds: f64::MAX,
        peak: 0,
    };
    for _ in 0..times {
        let output = Command::new(env::current_exe()?)
            .arg("measure")
            .args(command)
            .output()?;
        let printed = String::from_utf8(output.stdout)?;
        let (seconds, peak) = printed
            .trim()
            .split_once(' ')
            .ok_or("jeprof: apt-get install libjemalloc-dev")?;
        let run = Usage {
            seconds: seconds.parse()?,
            peak: peak.parse()?,
        };
        if run.seconds < best.seconds {
            best = run;
        }
    }
    Ok(best)
}

/// Runs a command without its output; prints its seconds and its peak.
fn measure(command: &[&str]) -> Result<()> {
    let (program, arguments) = command.split_first().ok_or("measure COMMAND…")?;
    let start = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{program}: {status}").into());
    }
    println!(
        "{seconds} {}",
        getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss() * 1024
    );
    Ok(())
}

fn memprof(format: &str, named: bool, file: &str) -> Result<()> {
    let format = if format == "pprof" {
        Format::Pprof
    } else {
        Format::Collapsed
    };
    let sources = Sources {
        roots: vec!["/".into()],
        ..Sources::default()
    };
    let mut bytes = BufReader::with_capacity(256 << 10, File::open(file)?);
    let input = Input {
        name: file,
        bytes: &mut bytes,
    };
    let options = Options {
        format,
        ..Options::default()
    };
    let mut out = BufWriter::with_capacity(256 << 10, io::stdout().lock());
    report(
        input,
        None,
        named.then_some(&sources),
        &options,
        &|_, _| {},
        &mut out,
    )?;
    Ok(())
}

fn parse_file(file: &str) -> Result<()> {
    let mut bytes = BufReader::with_capacity(256 << 10, File::open(file)?);
    let mut profile = parse(&mut bytes, &Limits::default(), false)?;
    unsample(&mut profile)?;
    Ok(())
}

fn pprof_util(file: &str) -> Result<()> {
    let profile = pprof_util::parse_jeheap(BufReader::new(File::open(file)?), None)?;
    let pprof = profile.to_pprof(("inuse_space", "bytes"), ("space", "bytes"), None);
    io::stdout().write_all(&pprof)?;
    Ok(())
}

fn generate(file: &Path) -> Result<()> {
    let real = String::from_utf8(corpus()?)?;
    let mut out = BufWriter::new(File::create(file)?);
    synthetic::write(&real, &mut out)?;
    out.flush()?;
    Ok(())
}

/// cc1plus.heap.
fn corpus() -> Result<Vec<u8>> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/cc1plus.heap.gz");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(File::open(file)?).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
