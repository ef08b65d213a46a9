//! Inputs that expand in memory: the memory for reading them, measured in a process of its own.

use std::fs;
use std::io::Write;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use memprof_report::{Format, Options};

use crate::support::report_on;

/// Environment variable with the file that the measuring process reads.
const BOMB: &str = "MEMPROF_TEST_BOMB";

/// Bytes of each bomb, before compression.
const SIZE: usize = 6 << 20;

/// Memory of the process without a bomb, and the memory that a small input may use.
const FLOOR: u64 = 64 << 20;

const FORMATS: [Format; 6] = [
    Format::Text,
    Format::Json,
    Format::Collapsed,
    Format::View,
    Format::Flamegraph,
    Format::Pprof,
];

/// Runs in the process that the other tests start; does nothing otherwise.
#[test]
fn read_bomb_from_environment() {
    let Some(bomb) = std::env::var_os(BOMB) else {
        return;
    };
    let (format, file) = bomb
        .to_str()
        .and_then(|b| b.split_once(' '))
        .expect("two words");
    let options = Options {
        format: FORMATS[format.parse::<usize>().expect("an index")],
        ..Options::default()
    };
    let input = fs::File::open(file).expect("it is there");
    let input = memprof_report::Input {
        name: "bomb",
        bytes: &mut std::io::BufReader::new(input),
    };
    let sink = &mut std::io::sink();
    let outcome = match memprof_report::write_report(input, None, &[], &options, &|_, _| {}, sink) {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    };
    // The maximum of getrusage(2) is not below that of the process which started this one.
    let status = fs::read_to_string("/proc/self/status").expect("it can be read");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|line| line.trim().strip_suffix(" kB"));
    println!("peak {} {outcome}", peak.expect("a size"));
}

/// Reads the bomb, plain and in gzip, and compares the memory with its size. `expected` is "ok" or a part of the
/// error.
fn check(bomb: &[u8], expected: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("bomb");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bomb).expect("memory takes it");
    let gzip = gzip.finish().expect("memory takes it");
    for (bytes, is_plain) in [(bomb, true), (&gzip, false)] {
        fs::write(&file, bytes).expect("it can be written");
        let formats = if is_plain { FORMATS.len() } else { 1 };
        for (index, format) in FORMATS.iter().enumerate().take(formats) {
            let output = Command::new(std::env::current_exe().expect("it has a name"))
                .args([
                    "--exact",
                    "bombs::read_bomb_from_environment",
                    "--nocapture",
                    "--test-threads=1",
                ])
                .env(BOMB, format!("{index} {}", file.display()))
                .output()
                .expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().find_map(|line| line.split_once("peak "));
            let (peak, outcome) = line
                .and_then(|(_, line)| line.split_once(' '))
                .unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
            let peak = peak.parse::<u64>().expect("a number") << 10;
            let most = 8 * bomb.len() as u64 + FLOOR;
            eprintln!(
                "{format:?} gzip {}: {} MiB of {}: {outcome}",
                !is_plain,
                peak >> 20,
                most >> 20
            );
            assert!(peak <= most, "{format:?}: {peak} > {most}: {outcome}");
            if is_plain && *format == Format::Text {
                assert!(outcome.contains(expected), "{outcome}");
            }
        }
    }
}

const MEMORY: &str = "bytes of memory that an input of its size may take";

/// A profile of bytes in use, followed by `tail` as often as fits.
fn pprof(tail: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = vec![0x0a, 4, 0x08, 1, 0x10, 2, 0x32, 0, 0x32, 11];
    bytes.extend(b"inuse_space");
    bytes.extend([0x32, 5]);
    bytes.extend(b"bytes");
    let mut index = 0;
    while bytes.len() < SIZE {
        bytes.extend(tail(index));
        index += 1;
    }
    bytes
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    [&[tag << 3 | 2][..], &varint(content.len()), content].concat()
}

fn number(tag: u8, number: usize) -> Vec<u8> {
    [&[tag << 3][..], &varint(number)].concat()
}

#[test]
fn empty_samples_are_bounded() {
    check(&pprof(|_| field(2, &[0x10, 0])), "the profile is empty");
}

/// A limit of the system counts memory that is requested, the peak only what is used of it.
#[test]
fn memory_that_samples_request_is_bounded() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("bomb");
    let bomb = pprof(|_| field(2, &[0x10, 0]));
    fs::write(&file, &bomb).expect("it can be written");
    let limit = (8 * bomb.len() as u64 + FLOOR) >> 10;
    let output = Command::new("sh")
        .args(["-c", "ulimit -d \"$0\" && exec \"$@\""])
        .arg(limit.to_string())
        .arg(std::env::current_exe().expect("it has a name"))
        .args(["--exact", "bombs::read_bomb_from_environment"])
        .args(["--nocapture", "--test-threads=1"])
        .env(BOMB, format!("0 {}", file.display()))
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("the profile is empty"), "{text}{errors}");
}

#[test]
fn empty_locations_are_bounded() {
    check(&pprof(|index| field(4, &number(1, index + 1))), MEMORY);
}

#[test]
fn empty_strings_and_functions_are_bounded() {
    check(&pprof(|_| field(6, &[])), MEMORY);
    check(&pprof(|_| field(5, &[])), MEMORY);
}

#[test]
fn lines_of_one_location_are_bounded() {
    let location = |_: usize| {
        let lines: Vec<u8> = (0..1000).flat_map(|_| field(4, &[])).collect();
        field(4, &lines)
    };
    let functions = [pprof(location), field(5, &[])].concat();
    check(&functions, MEMORY);
}

#[test]
fn frames_of_one_sample_are_bounded() {
    let sample = |_: usize| field(2, &[field(1, &[1; 5000]), number(2, 1)].concat());
    let located = [pprof(sample), field(4, &number(1, 1))].concat();
    check(&located, "4096 frames in a stack");
}

#[test]
fn deep_stacks_of_few_locations_are_bounded() {
    let stack = |index: usize| {
        let ids: Vec<u8> = (0..1000)
            .map(|at| 1 + ((index >> (at % 20)) & 1) as u8)
            .collect();
        field(2, &[field(1, &ids), number(2, 1)].concat())
    };
    let locations = [field(4, &number(1, 1)), field(4, &number(1, 2))].concat();
    check(&[pprof(stack), locations].concat(), "ok");
}

/// A Rust name of some 70 bytes that expands to 10,000: each tuple has the inner one twice, the second time by a
/// back reference.
fn expanding_name(index: usize) -> String {
    let head = format!("INvC8a{index:07}1b");
    let digit = |number: usize| b"0123456789abcdefghijklmnopqrstuvwxyz"[number] as char;
    let levels = 11;
    let mut kind = String::from("u");
    for level in (0..levels).rev() {
        let at = head.len() + level + 1;
        kind = format!("T{kind}B{}_E", digit(at - 1));
    }
    format!("_R{head}{kind}E")
}

#[test]
fn names_that_expand_are_bounded() {
    assert!(memprof_report::demangle(&expanding_name(7)).len() > 8000);
    let mangled = |index: usize| {
        let name = field(6, expanding_name(index).as_bytes());
        // Only the names of symbols are demangled.
        let function = [number(1, index + 1), number(3, index + 3)].concat();
        let line = field(4, &number(1, index + 1));
        let location = [number(1, index + 1), line].concat();
        [name, field(5, &function), field(4, &location)].concat()
    };
    check(&pprof(mangled), MEMORY);
}

/// A dump of jemalloc with `part` as often as fits.
fn dump(part: impl Fn(usize) -> String, rest: impl Fn(usize) -> String) -> Vec<u8> {
    let mut text = String::from("heap_v2/1\n  t*: 1: 1 [0: 0]\n");
    let filled = |text: &mut String, part: &dyn Fn(usize) -> String| {
        let mut index = 0;
        while text.len() < SIZE {
            let more = part(index);
            if more.is_empty() {
                return;
            }
            text.push_str(&more);
            index += 1;
        }
    };
    filled(&mut text, &part);
    text.push_str("\nMAPPED_LIBRARIES:\n");
    filled(&mut text, &rest);
    text.into()
}

fn nothing(_: usize) -> String {
    String::new()
}

#[test]
fn distinct_addresses_are_bounded() {
    let stack = |index: usize| {
        let addresses: String = (0..1000)
            .map(|at| format!(" {:#x}", 1 + index * 1000 + at))
            .collect();
        format!("@{addresses}\n  t*: 1: 1 [0: 0]\n")
    };
    check(&dump(stack, nothing), MEMORY);
}

#[test]
fn distinct_stacks_are_bounded() {
    let stack = |index: usize| {
        let addresses: String = (0..20)
            .map(|bit| format!(" {}", 0x1 + (index >> bit & 1)))
            .collect();
        format!("@{}\n  t*: 1: 1 [0: 0]\n", addresses.replace(' ', " 0x"))
    };
    check(&dump(stack, nothing), "ok");
}

#[test]
fn mappings_and_build_ids_are_bounded() {
    let mapping = |index: usize| format!("{:x}-{:x} r--p 0 0:0 0 /a\n", index * 2, index * 2 + 1);
    check(
        &dump(|_| "@ 0x1\n  t*: 1: 1 [0: 0]\n".into(), nothing),
        "ok",
    );
    check(&dump(nothing, mapping), "the profile is empty");
    check(
        &dump(nothing, |index| format!("# build-id: 0 {index}\n")),
        "the profile is empty",
    );
}

#[test]
fn symbols_are_bounded() {
    let mut text = String::from("--- symbol\n");
    for index in 0..SIZE / 10 {
        text.push_str(&format!("{index:#x} a\n"));
    }
    text.push_str(
        "---\nheap_v2/1\n  t*: 1: 1 [0: 0]\n@ 0x1\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n",
    );
    check(text.as_bytes(), MEMORY);
}

/// The limit applies to the memory of an input, not to its size.
#[test]
fn name_in_every_frame_is_stored_once() {
    let long = "a".repeat(100_000);
    let mut text = format!("--- symbol\n0x1 {long}\n---\nheap_v2/1\n  t*: 1: 1 [0: 0]\n");
    for index in 0..2000 {
        let deep = " 0x1".repeat(1 + index % 1000);
        text.push_str(&format!("@{deep}\n  t*: 1: 1 [0: 0]\n"));
    }
    text.push_str("\nMAPPED_LIBRARIES:\n");
    let (out, _) = report_on(text.as_bytes(), None, None, &Options::default()).expect("it is read");
    assert!(out.len() < 300_000);
    check(text.as_bytes(), "ok");
}
