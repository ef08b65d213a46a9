//! Filtering of memprof's own stacks, and origins of special code.

use memprof_report::{Format, Options, OriginRules, Sources};

use crate::support::report_on;

const DUMP: &str = "--- symbol\nbinary=/usr/bin/server\n0x0000000000001fff serve\n\
    0x0000000000002fff memprof_host::control::listen\n0x0000000000011fff dump\n---\n--- heap\n\
    heap_v2/1\n  t*: 4: 4096 [0: 0]\n  t0: 4: 4096 [0: 0]\n\
    @ 0x2000\n  t*: 1: 1024 [0: 0]\n  t0: 1: 1024 [0: 0]\n\
    @ 0x3000\n  t*: 1: 1024 [0: 0]\n  t0: 1: 1024 [0: 0]\n\
    @ 0x12000 0x2000\n  t*: 2: 2048 [0: 0]\n  t0: 2: 2048 [0: 0]\n\nMAPPED_LIBRARIES:\n\
    00001000-00008000 r-xp 00000000 fe:00 1 /usr/bin/server\n\
    00010000-00018000 r-xp 00000000 fe:00 1 /opt/plugin.so\n";

const NOTE: &str = "3.00KiB of memprof's own left out; --flat shows it";

fn check(image: &str, options: &Options, total: &str, notes: &[&str]) {
    let dump = format!("{DUMP}{image}");
    let (out, found) = report_on(dump.as_bytes(), None, None, options).expect("it is a good dump");
    let out = String::from_utf8(out).expect("it is text");
    assert!(out.starts_with(total), "{out}");
    assert_eq!(found, notes);
}

#[test]
fn memprofs_own_stacks_are_dropped() {
    let image = "# memprof-image: /opt/plugin.so\n";
    let default = Options::default();
    check(image, &default, "inuse_space: 1024 bytes", &[NOTE]);
    let without = "1.00KiB of memprof's own left out; --flat shows it";
    check("", &default, "inuse_space: 3072 bytes", &[without]);
    let flat = Options {
        origin_rules: OriginRules {
            flat: true,
            ..OriginRules::default()
        },
        ..Options::default()
    };
    check(image, &flat, "inuse_space: 4096 bytes", &[]);
    let collapsed = Options {
        format: Format::Collapsed,
        ..Options::default()
    };
    check(image, &collapsed, "memprof_host::control::listen 1024", &[]);
}

/// A map of this process, in the format of a JIT compiler.
#[test]
fn jit_code_is_named_by_perf_map() {
    let pid = std::process::id();
    let map = format!("/tmp/perf-{pid}.map");
    std::fs::write(&map, "7f0000000010 20 JS:~leak /srv/app.js:3:1\n").expect("it can be written");
    let dump = "heap_v2/1\n  t*: 1: 1024 [0: 0]\n@ 0x7f0000000021 0x7f0000000401\n  t*: 1: 1024 [0: 0]\n\n\
        MAPPED_LIBRARIES:\n7f0000000000-7f0000001000 rwxp 00000000 00:00 0\n";
    let sources = Sources {
        pid: Some(pid),
        ..Sources::default()
    };
    let rows = || {
        let report = report_on(dump.as_bytes(), None, Some(&sources), &Options::default());
        String::from_utf8(report.expect("it is a good dump").0).expect("it is text")
    };
    let named = rows();
    // Only root may change a file's owner.
    let foreign = std::os::unix::fs::chown(&map, Some(65534), None).map(|()| rows());
    std::fs::remove_file(&map).expect("it is there");
    let row = named.lines().nth(2).expect("a row");
    assert!(row.ends_with("  JS:~leak /srv/app.js:3:1"), "{named}");
    if let Ok(foreign) = foreign {
        assert!(!foreign.contains("leak"), "{foreign}");
    }
}

#[test]
fn sampling_start_is_in_every_format() {
    let comments = "# sampler: ours\n# sampling since: 2026-11-21T11:13:00Z\n# samples: 9\n\
                    # lost samples: 2\n# memprof-image: /opt/plugin.so\n";
    let lost = "2 of 9 samples were lost, because memprof's tables were full: sample more coarsely \
                (sample_interval=1KiB)";
    let dump = format!("{DUMP}{comments}");
    let check = |format: Format, expected: &str| {
        let options = Options {
            format,
            ..Options::default()
        };
        let (out, notes) = report_on(dump.as_bytes(), None, None, &options).expect("it is good");
        let out = String::from_utf8_lossy(&out);
        assert!(out.contains(expected), "{format:?}: {out}");
        assert!(notes.contains(&lost.to_owned()), "{notes:?}");
    };
    let since = "only memory allocated since 2026-11-21T11:13:00Z";
    for format in [Format::Text, Format::Tree, Format::Html, Format::View] {
        check(format, since);
    }
    let json = "\"sampling_since\": \"2026-11-21T11:13:00Z\",\n    \"samples\": 9,\n    \"lost_samples\": 2";
    check(Format::Json, json);
    // Two of nine were lost: for the seven that were kept, two more.
    check(Format::Text, "29%");
}
