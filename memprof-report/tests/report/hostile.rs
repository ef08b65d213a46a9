//! Damaged and malicious input: a right answer or a named error.

use std::fs;
use std::io::Write;

use memprof_report::{ErrorKind, Format, Limits, Options};

use crate::support::{corpus, path, report_on};

fn text() -> Options {
    Options::default()
}

fn error_of(bytes: &[u8]) -> String {
    let error = report_on(bytes, None, None, &text()).expect_err("it is damaged");
    assert_eq!(error.kind(), ErrorKind::Failed);
    let text = error.to_string();
    let problem = text.strip_prefix("new.heap: ");
    problem.expect("it names the file").to_owned()
}

const HEAD: &str = "heap_v2/512\n  t*: 1: 64 [0: 0]\n  t0: 1: 64 [0: 0]\n";

#[test]
fn errors_quote_the_line() {
    let check = |tail: &str, expected: &str| {
        assert_eq!(error_of(format!("{HEAD}{tail}").as_bytes()), expected)
    };
    check(
        "@ 0x1 0x2\n@ 0x3\n",
        "failed to parse heap dump line 5: expected 't*:', found \"@ 0x3\"",
    );
    check(
        "junk\n",
        "failed to parse heap dump line 4: expected '@', found \"junk\"",
    );
    check(
        "@ 0x1 zz\n",
        "failed to parse heap dump line 4: expected an address '0x…', found \"zz\"",
    );
    check(
        "@ 0x1\n  t*: -1: 64 [0: 0]\n",
        "failed to parse heap dump line 5: expected 'objects: bytes [objects: bytes]', found \"  t*: -1: 64 [0: 0]\"",
    );
    check(
        "@ 0x1\n  t*: 1: 99999999999999999999 [0: 0]\n",
        "failed to parse heap dump line 5: expected 'objects: bytes [objects: bytes]', found \"  t*: 1: 99999999999999999999 [0: 0]\"",
    );
    check(
        "@ 0x1\n  t*: 1: 64 [0: 0]\n\nMAPPED_LIBRARIES:\nzzz\n",
        "failed to parse heap dump line 8: expected 'start-end perms offset dev inode path', found \"zzz\"",
    );
    check(
        "@ 0x1\n  t*: 1: 64 [0: 0]\n",
        "the heap dump is truncated: no MAPPED_LIBRARIES after line 5 (--force reads what is there)",
    );
    check(
        "@ 0x1\n  t*: 1: 64 [0: 0",
        "the heap dump is truncated: line 5 has no end (--force reads what is there)",
    );
}

#[test]
fn intervals_of_nothing_are_refused() {
    for interval in ["0", "", "-5", "99999999999999999999", "abc"] {
        let dump = format!("heap_v2/{interval}\n");
        assert!(
            error_of(dump.as_bytes()).contains("expected a sample interval"),
            "{interval}"
        );
    }
}

#[test]
fn sums_that_overflow_are_refused() {
    let stack = |address: u32| format!("@ {address:#x}\n  t*: 1: 9223372036854775807 [0: 0]\n");
    let dump = format!("{HEAD}{}{}\nMAPPED_LIBRARIES:\n", stack(1), stack(2));
    assert_eq!(
        error_of(dump.as_bytes()),
        "the values overflow: the sum over all stacks passes 63 bits"
    );
}

#[test]
fn deep_stacks_pass_a_limit() {
    let frames = " 0x7f0000000001".repeat(200_000);
    let dump = format!("{HEAD}@{frames}\n  t*: 1: 64 [0: 0]\n\nMAPPED_LIBRARIES:\n");
    assert_eq!(
        error_of(dump.as_bytes()),
        "the input passes the limit of 131072 bytes in a line"
    );
    let frames = " 0x1".repeat(5000);
    let dump = format!("{HEAD}@{frames}\n  t*: 1: 64 [0: 0]\n\nMAPPED_LIBRARIES:\n");
    assert_eq!(
        error_of(dump.as_bytes()),
        "the input passes the limit of 4096 frames in a stack"
    );
}

#[test]
fn gzip_bombs_pass_a_limit() {
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    bomb.write_all(HEAD.as_bytes()).expect("memory takes it");
    for _ in 0..1024 {
        bomb.write_all(&[b'\n'; 1 << 18]).expect("memory takes it");
    }
    let bomb = bomb.finish().expect("memory takes it");
    assert_eq!(
        error_of(&bomb),
        "the input passes the limit of 200 decompressed bytes per compressed byte"
    );
    let small = Options {
        limits: Limits {
            bytes: 1000,
            ..Limits::default()
        },
        ..text()
    };
    let error = report_on(&corpus("redis"), None, None, &small).expect_err("it is larger");
    assert_eq!(
        error.to_string(),
        "new.heap: the input passes the limit of 1000 bytes"
    );
}

#[test]
fn junk_is_not_recognised() {
    for junk in [
        &b"\x7fELF\x02\x01\x01"[..],
        b"hello",
        b"PK\x03\x04",
        &[0; 64],
        b"\xff\xfe",
    ] {
        let error = error_of(junk);
        assert!(
            error.starts_with("failed to recognise the input"),
            "{error}"
        );
    }
    let nothing = report_on(b"", None, None, &text()).expect_err("there is nothing");
    assert_eq!(nothing.kind(), ErrorKind::Empty);
}

#[test]
fn an_empty_profile_says_why() {
    let dump = b"heap_v2/512\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n";
    let error = report_on(dump, None, None, &text()).expect_err("it is empty");
    assert_eq!(error.kind(), ErrorKind::Empty);
    assert_eq!(
        error.to_string(),
        "new.heap: the profile is empty: nothing was sampled, at 1 sample per 512 bytes; profiling may never have been active"
    );
    // A program that maps its memory itself, as Node does for JavaScript's.
    let active = [
        &dump[..],
        b"# memprof 1\n# active-since: 2026-11-22T02:39:42Z\n",
    ]
    .concat();
    let error = report_on(&active, None, None, &text()).expect_err("it is empty");
    let remedy = "`memprof ledger` shows where the process's memory is";
    assert!(error.to_string().contains(remedy), "{error}");
}

/// A cut anywhere before the mappings is an error. Behind them whole lines may be missing: names, no values.
#[test]
fn truncation_never_makes_the_answer_smaller() {
    let dump = corpus("sqlite");
    let options = Options {
        format: Format::Collapsed,
        ..text()
    };
    let whole = total(
        &report_on(&dump, None, None, &options)
            .expect("it is whole")
            .0,
    );
    let maps = memchr_of(&dump, b"MAPPED_LIBRARIES:");
    for end in 0..dump.len() {
        match report_on(&dump[..end], None, None, &options) {
            Ok((out, _)) => assert!(end > maps && total(&out) == whole, "cut at byte {end}"),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Failed | ErrorKind::Empty)),
        }
    }
    let gzip = fs::read(path("corpus/sqlite.heap.gz")).expect("it is there");
    for end in 1..gzip.len() {
        report_on(&gzip[..end], None, None, &options).expect_err("it is cut");
    }
}

/// 10,000 damaged dumps: each gives an error, a warning, or totals within the header's tolerance.
#[test]
fn bit_flips_are_noticed_or_harmless() {
    let dump = corpus("sqlite");
    let options = Options {
        format: Format::Collapsed,
        ..text()
    };
    let whole = total(
        &report_on(&dump, None, None, &options)
            .expect("it is whole")
            .0,
    );
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    for _ in 0..10_000 {
        let mut damaged = dump.clone();
        let (at, bit) = (next() % damaged.len(), next() % 8);
        damaged[at] ^= 1 << bit;
        if let Ok((out, notes)) = report_on(&damaged, None, None, &options) {
            let off = (total(&out) - whole).abs() as f64 / whole as f64;
            assert!(
                off < 0.004 || !notes.is_empty(),
                "byte {at} bit {bit}: off by {off}"
            );
        }
    }
}

#[test]
fn binary_junk_in_pprof_is_an_error() {
    let options = Options {
        format: Format::Pprof,
        ..text()
    };
    let (pprof, _) = report_on(&corpus("sqlite"), None, None, &options).expect("it is a good dump");
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&pprof[..]), &mut plain)
        .expect("it is gzip");
    for at in (0..plain.len()).step_by(7) {
        let mut damaged = plain.clone();
        damaged[at] ^= 0x55;
        // Any answer but a crash: protobuf has no checksum, the gzip around it has.
        drop(report_on(&damaged, None, None, &text()));
        drop(report_on(&plain[..at], None, None, &text()));
    }
    let mut damaged = pprof.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    assert_eq!(
        report_on(&damaged, None, None, &text())
            .expect_err("it is damaged")
            .kind(),
        ErrorKind::Failed
    );
}

fn total(collapsed: &[u8]) -> i64 {
    let lines = str::from_utf8(collapsed).expect("it is text").lines();
    lines
        .map(|line| {
            line.rsplit(' ')
                .next()
                .expect("a value")
                .parse::<i64>()
                .expect("a number")
        })
        .sum()
}

fn memchr_of(haystack: &[u8], needle: &[u8]) -> usize {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
        .expect("it is there")
}
