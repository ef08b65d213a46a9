//! Damaged and malicious input yields a correct report or an error.

use std::collections::HashSet;
use std::fs;
use std::io::Write;

use memprof_report::{ErrorKind, Format, Limits, Options, SampleType, write_tcmalloc};

use crate::support::{CORPUS, corpus, path, report_on};

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
fn error_quotes_line() {
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
        "",
        "the heap dump is truncated: no MAPPED_LIBRARIES after line 3 (--force reads what is there)",
    );
    check(
        "@ 0x1\n  t*: 1: 64 [0: 0",
        "the heap dump is truncated: line 5 has no end (--force reads what is there)",
    );
}

/// jemalloc writes no memory map on Windows.
#[test]
fn dump_without_map_is_read_if_its_stacks_add_up() {
    let check = |stacks: &str, expected: &str| {
        let (_, notes) = report_on(format!("{HEAD}{stacks}").as_bytes(), None, None, &text())
            .expect("it is whole");
        assert!(
            notes.iter().any(|note| note.contains(expected)),
            "{notes:?}"
        );
    };
    let note = "no memory map, so functions are addresses; it is complete if its system writes none, as jemalloc on \
                Windows, else it is damaged: its stacks add up to";
    check("@ 0x1\n  t*: 1: 64 [0: 0]\n  t0: 1: 64 [0: 0]\n", note);
    check("@ 0x1\n  t*: 1: 64 [0: 0]\n\n", note);
    for cut in [
        "",
        "@ 0x1\n",
        "@ 0x1\n  t*: 1: 16 [0: 0]\n  t0: 1: 16 [0: 0]\n@ 0x2\n",
    ] {
        assert!(
            error_of(format!("{HEAD}{cut}").as_bytes()).contains("truncated"),
            "{cut}"
        );
    }
}

#[test]
fn interval_of_zero_is_refused() {
    for interval in ["0", "", "-5", "99999999999999999999", "abc"] {
        let dump = format!("heap_v2/{interval}\n");
        assert!(
            error_of(dump.as_bytes()).contains("expected a sample interval"),
            "{interval}"
        );
    }
}

#[test]
fn overflowing_sum_is_refused() {
    let stack = |address: u32| format!("@ {address:#x}\n  t*: 1: 9223372036854775807 [0: 0]\n");
    let dump = format!("{HEAD}{}{}\nMAPPED_LIBRARIES:\n", stack(1), stack(2));
    assert_eq!(
        error_of(dump.as_bytes()),
        "the values overflow: the sum over all stacks passes 63 bits"
    );
}

/// The sum over each process fits.
#[test]
fn overflowing_sum_of_processes_is_refused() {
    let dump = "heap profile: 1: 9223372036854775807 [1: 9223372036854775807] @ heap_v2/1\n\
                1: 9223372036854775807 [1: 9223372036854775807] @ 0x1\n\nMAPPED_LIBRARIES:\n";
    report_on(dump.as_bytes(), None, None, &text()).expect("it fits");
    assert_eq!(
        error_of(dump.repeat(2).as_bytes()),
        "the values overflow: the sum over all stacks passes 63 bits"
    );
}

/// Each function of the stack has its bytes, of which the table of changes shows the sum.
#[test]
fn cumulative_sum_of_largest_values_is_limited() {
    let dump = |bytes: i64| {
        format!(
            "heap_v2/1\n  t*: 1: {bytes} [0: 0]\n@ 0x1 0x2 0x3\n  t*: 1: {bytes} [0: 0]\n\nMAPPED_LIBRARIES:\n"
        )
    };
    let (new, base) = (dump(i64::MAX - 100), dump(100));
    let options = Options {
        by_cum: true,
        ..text()
    };
    let (out, _) = report_on(new.as_bytes(), Some(base.as_bytes()), None, &options)
        .expect("the difference fits");
    let out = String::from_utf8(out).expect("it is text");
    assert!(
        out.contains("grew (cumulative): 3 functions, +8.00EiB"),
        "{out}"
    );
}

#[test]
fn deep_stack_exceeds_limit() {
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
fn gzip_bomb_exceeds_limit() {
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
fn unknown_format_is_refused() {
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
fn empty_profile_has_reason() {
    let dump = b"heap_v2/512\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n";
    let error = report_on(dump, None, None, &text()).expect_err("it is empty");
    assert_eq!(error.kind(), ErrorKind::Empty);
    assert_eq!(
        error.to_string(),
        "new.heap: the profile is empty: nothing was sampled, at 1 sample per 512 bytes; profiling may never have been active"
    );
    // A program that maps its memory itself, as Node does for JavaScript.
    let active = [
        &dump[..],
        b"# memprof 1\n# active-since: 2026-11-22T02:39:42Z\n",
    ]
    .concat();
    let error = report_on(&active, None, None, &text()).expect_err("it is empty");
    let remedy = "`memprof ledger` shows where the process's memory is";
    assert!(error.to_string().contains(remedy), "{error}");
}

/// Truncation before the mappings is an error. After them, whole lines may be missing: names, but no values.
#[test]
fn truncation_is_detected_or_harmless() {
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
            Ok((out, notes)) => {
                let has_note = notes.iter().any(|note| note.contains("no memory map"));
                assert!(
                    total(&out) == whole && end > maps || has_note,
                    "cut at byte {end}: {notes:?}"
                );
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Failed | ErrorKind::Empty)),
        }
    }
    let gzip = fs::read(path("corpus/sqlite.heap.gz")).expect("it is there");
    for end in 1..gzip.len() {
        report_on(&gzip[..end], None, None, &options).expect_err("it is cut");
    }
}

/// 10,000 damaged dumps: each yields an error, a warning, or totals within the header's tolerance.
#[test]
fn bit_flips_are_detected_or_harmless() {
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

/// A dump of the corpus with memprof's comments and checksum.
fn with_checksum(name: &str) -> String {
    let dump = String::from_utf8(corpus(name)).expect("it is text");
    let maps = "\nMAPPED_LIBRARIES:\n";
    let announced = dump.replace(maps, &format!("{maps}# memprof 2\n"));
    let dump = announced
        + "# host: server pid 7 on here\n# taken: 2026-11-22T02:39:42Z\n# trigger: message\n\
           # build-id: 00112233445566778899aabbccddeeff00112233 /usr/bin/server\n";
    let (stacks, inuse) = declared_contents(dump.as_bytes());
    let behind = format!("# stacks: {stacks}\n# estimated-inuse-bytes: {inuse}\n");
    let mut sum = flate2::Crc::new();
    sum.update(dump.as_bytes());
    sum.update(behind.as_bytes());
    format!("{dump}# checksum: crc32 {:08x}\n{behind}", sum.sum())
}

/// Number of stacks, and bytes in use.
fn declared_contents(dump: &[u8]) -> (usize, i64) {
    let mut profile =
        memprof_report::parse_profile(&mut &*dump, &Limits::default(), false).expect("it is whole");
    memprof_report::unsample(&mut profile).expect("it is small");
    let totals = profile.totals().expect("they are small");
    (profile.samples.len(), totals[SampleType::InuseSpace])
}

/// Error or warning about a dump's damage. `None` if it is not detected.
fn detected_damage(dump: &[u8]) -> Option<String> {
    match report_on(dump, None, None, &text()) {
        Err(error) => Some(error.to_string()),
        Ok((_, notes)) => notes.into_iter().find(|note| note.contains("damaged")),
    }
}

/// 8 kinds of damage to each of 5 dumps, at 5 positions: all 200 are detected.
#[test]
fn damage_is_detected_anywhere() {
    type Damage = fn(&mut Vec<Vec<u8>>, &mut dyn FnMut(usize) -> usize);
    fn bytes(lines: &mut Vec<Vec<u8>>, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut dump = lines.concat();
        damage(&mut dump);
        *lines = vec![dump];
    }
    let kinds: [(&str, Damage); 8] = [
        ("a bit is another", |lines, below| {
            bytes(lines, |dump| {
                let at = below(dump.len());
                dump[at] ^= 1 << below(8);
            });
        }),
        ("a byte is missing", |lines, below| {
            bytes(lines, |dump| {
                dump.remove(below(dump.len()));
            });
        }),
        ("512 bytes are zero, as in a hole", |lines, below| {
            bytes(lines, |dump| {
                let at = below(dump.len() - 512);
                dump[at..at + 512].fill(0);
            });
        }),
        ("the end is missing", |lines, below| {
            bytes(lines, |dump| dump.truncate(below(dump.len())));
        }),
        ("whole lines at the end are missing", |lines, below| {
            lines.truncate(below(lines.len()));
        }),
        ("a line is missing", |lines, below| {
            lines.remove(below(lines.len()));
        }),
        ("a line is there twice", |lines, below| {
            let at = below(lines.len());
            lines.insert(at, lines[at].clone());
        }),
        ("a digit is another", |lines, below| {
            bytes(lines, |dump| {
                let digits: Vec<_> = (0..dump.len())
                    .filter(|&at| dump[at].is_ascii_digit())
                    .collect();
                let digit = &mut dump[digits[below(digits.len())]];
                *digit = b'0' + (*digit - b'0' + 1 + below(9) as u8) % 10;
            });
        }),
    ];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % end
    };
    for name in CORPUS {
        let whole = with_checksum(name).into_bytes();
        for (kind, damage) in kinds {
            for _ in 0..5 {
                let mut lines = whole
                    .split_inclusive(|&b| b == b'\n')
                    .map(<[u8]>::to_vec)
                    .collect();
                damage(&mut lines, &mut below);
                let damaged = lines.concat();
                assert!(damaged != whole, "{name}: {kind}");
                assert!(detected_damage(&damaged).is_some(), "{name}: {kind}");
            }
        }
    }
}

/// Includes the checksum's own lines, and those after them.
#[test]
fn damage_to_comments_is_detected() {
    let whole = with_checksum("sqlite").into_bytes();
    let maps = memchr_of(&whole, b"MAPPED_LIBRARIES:");
    let announcement = maps..memchr_of(&whole, b"# memprof 2\n") + 12;
    let comments = memchr_of(&whole, b"# host:")..whole.len();
    for at in announcement.chain(comments) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x20;
        assert!(detected_damage(&damaged).is_some(), "byte {at}");
        // A dump that ends after this line may be one of another allocator.
        if at != maps + b"MAPPED_LIBRARIES:\n".len() {
            assert!(detected_damage(&whole[..at]).is_some(), "cut at byte {at}");
        }
    }
}

#[test]
fn transferred_dump_is_not_damaged() {
    let check = |how: &str, transferred: &dyn Fn(&str) -> Vec<u8>| {
        for name in CORPUS {
            assert_eq!(
                detected_damage(&transferred(&with_checksum(name))),
                None,
                "{name} {how}"
            );
        }
    };
    check("as it was", &|dump| dump.into());
    check("with carriage returns", &|dump| {
        dump.replace('\n', "\r\n").into()
    });
    check("in gzip", &|dump| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(dump.as_bytes()).expect("memory takes it");
        gzip.finish().expect("memory takes it")
    });
    check("behind jeprof's names", &|dump| {
        format!(
            "--- symbol\nbinary=/usr/bin/server\n0x0000000000000001 main\n---\n--- heap\n{dump}"
        )
        .into()
    });
    check("without memprof's comments", &|dump| {
        let theirs = dump.lines().filter(|line| !line.starts_with('#'));
        theirs
            .flat_map(|line| [line, "\n"])
            .collect::<String>()
            .into()
    });
    check("in tcmalloc's text", &|dump| {
        let mut out = Vec::new();
        write_tcmalloc(
            &mut dump.as_bytes(),
            &Limits::default(),
            &HashSet::new(),
            &mut out,
        )
        .expect("it is whole");
        out
    });
}

#[test]
fn malformed_pprof_is_refused() {
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
        // Any result but a crash: protobuf has no checksum, only the gzip around it.
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

/// `--force` reads what can be decompressed of a truncated or damaged file.
#[test]
fn damaged_gzip_is_read_by_force() {
    let gzip = fs::read(path("corpus/sqlite.heap.gz")).expect("it is there");
    let forced = Options {
        force: true,
        ..text()
    };
    let mut damaged = gzip.clone();
    damaged[gzip.len() * 9 / 10] ^= 0x55;
    let without_checksum = &gzip[..gzip.len() - 4];
    for damaged in [&gzip[..gzip.len() * 9 / 10], &damaged, without_checksum] {
        let error = error_of(damaged);
        assert!(
            error.contains("truncated: its gzip data is cut off or damaged"),
            "{error}"
        );
        let (_, notes) = report_on(damaged, None, None, &forced).expect("a part can be read");
        assert!(notes[0].contains("gzip data"), "{notes:?}");
    }
    let lost = report_on(&gzip[..12], None, None, &forced).expect_err("nothing is left");
    assert_eq!(lost.kind(), ErrorKind::Empty);
}
