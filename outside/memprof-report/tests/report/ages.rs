//! Ages of memory, from one dump.

use std::collections::HashSet;
use std::time::Duration;

use memprof_report::{
    Folded, Format, Granularity, Input, Limits, Options, OriginRules, SampleType, SteadyStacks,
    find_steady_growth, write_tcmalloc,
};

use crate::goldens;
use crate::support::report_on;

const TAKEN: u64 = 1_795_300_000;
const WIDTH: u64 = 60;

/// A dump of a program with live memory of its start, of a cache that loses a tenth of its memory each minute, and
/// of a leak, allocated minute by minute.
fn dump() -> String {
    let minutes = 24;
    let mut stacks = String::new();
    let mut total = 0;
    let mut add = |address: &str, minute: u64, kib: u64| {
        let alloc_time = (0x4d_5002 << 40) | ((TAKEN - WIDTH - WIDTH * minute) << 1) | 1_u64;
        let bytes = kib << 10;
        stacks += &format!("@ {address} 0x1f00 {alloc_time:#x}\n  t*: 1: {bytes} [0: 0]\n");
        total += bytes;
    };
    add("0x1200", minutes - 1, 900);
    for minute in 0..minutes {
        add(
            "0x1300",
            minute,
            (400.0 * 0.9_f64.powi(minute as i32)) as u64,
        );
        add("0x1400", minute, 80);
    }
    stacks += "@ 0x1500 0x1f00\n  t*: 1: 4096 [0: 0]\n";
    total += 4096;
    let objects = 2 * minutes + 2;
    format!(
        "heap_v2/1\n  t*: {objects}: {total} [0: 0]\n{stacks}\nMAPPED_LIBRARIES:\n\
         00001000-00002000 r-xp 00000000 fe:00 1 /usr/bin/server\n# ages: {WIDTH} {TAKEN}\n"
    )
}

fn report_ages(options: &Options) -> Result<(String, Vec<String>), String> {
    let (out, notes) =
        report_on(dump().as_bytes(), None, None, options).map_err(|error| error.to_string())?;
    Ok((String::from_utf8(out).expect("it is text"), notes))
}

#[test]
fn ages_of_start_cache_and_leak_differ() {
    for (format, golden) in [(Format::Text, "ages.text"), (Format::Json, "ages.json")] {
        let options = Options {
            format,
            ages: true,
            ..Options::default()
        };
        goldens::check(golden, dump().as_bytes(), None, &options);
    }
    // The page shows ages without an option.
    let page = Options {
        format: Format::View,
        ..Options::default()
    };
    goldens::check("ages.view.json", dump().as_bytes(), None, &page);
}

#[test]
fn older_filter_keeps_old_memory_and_reports_unknown_ages() {
    let older = |minutes: u64| Options {
        older: Some(Duration::from_secs(60 * minutes)),
        ..Options::default()
    };
    let (out, notes) = report_ages(&older(20)).expect("it is a good dump");
    // Four minutes of the leak, the start, and the rest of the cache.
    assert!(out.starts_with("inuse_space: 1418240 bytes"), "{out}");
    assert_eq!(notes, ["4.00KiB of unknown age left out"]);
    let error = report_ages(&older(24)).expect_err("the oldest is 23 minutes old");
    assert_eq!(
        error,
        "new.heap: the profile is empty: nothing is left by --older"
    );
}

/// The values fit into 63 bits, but their products do not.
#[test]
fn growth_and_ages_of_largest_values_are_found() {
    let bytes = 1_u64 << 60;
    let sample = |minute: u64| {
        let alloc_time = (0x4d_5002 << 40) | ((TAKEN - WIDTH - WIDTH * minute) << 1) | 1_u64;
        format!("@ 0x1400 0x1f00 {alloc_time:#x}\n  t*: 1: {bytes} [0: 0]\n")
    };
    let dump = format!(
        "heap_v2/1\n  t*: 7: {} [0: 0]\n{}\nMAPPED_LIBRARIES:\n\
         00001000-00002000 r-xp 00000000 fe:00 1 /usr/bin/server\n# ages: {WIDTH} {TAKEN}\n",
        7 * bytes,
        (0..7).map(sample).collect::<String>()
    );
    let growth = growth_in(&dump).expect("it has ages");
    let bytes_of = growth.stacks.iter().map(|stack| stack.bytes);
    assert_eq!(bytes_of.collect::<Vec<_>>(), [6 << 60]);
    let options = Options {
        ages: true,
        ..Options::default()
    };
    let (out, _) = report_on(dump.as_bytes(), None, None, &options).expect("it is a good dump");
    let out = String::from_utf8(out).expect("it is text");
    let row = out.lines().find(|line| line.ends_with("server+0x3ff"));
    assert!(row.is_some_and(|row| row.contains(" 4m ")), "{out}");
}

/// Finds steady growth in a dump.
fn growth_in(dump: &str) -> memprof_report::Result<SteadyStacks> {
    let input = Input {
        name: "new.heap",
        bytes: &mut dump.as_bytes(),
    };
    let options = Options::default();
    let named =
        memprof_report::read_profile(input, None, &options, &|_, _| {}).expect("it is read");
    let (space, functions) = (SampleType::InuseSpace, Granularity::Functions);
    let folded = Folded::new(&named, None, space, functions, &OriginRules::default());
    find_steady_growth(&named, &folded)
}

#[test]
fn steady_growth_finds_only_the_leak() {
    let mut levels = growth_in(&dump()).expect("it has ages");
    assert_eq!(levels.span, Duration::from_secs(23 * WIDTH));
    levels.stacks.sort_by_key(|level| -level.bytes);
    let (leak, cache) = (&levels.stacks[0], &levels.stacks[1]);
    assert_eq!(leak.stack, ["server+0xeff", "server+0x3ff"]);
    assert_eq!([leak.bytes, leak.inuse], [(23 * 80) << 10, (24 * 80) << 10]);
    // A fifth of the cache's memory of a quarter of an hour ago is left.
    assert_eq!(cache.stack[1], "server+0x2ff");
    assert!(cache.bytes < cache.inuse / 2, "{cache:?}");
    assert_eq!(levels.stacks.len(), 2);
    let short = dump().replace(&format!("# ages: {WIDTH}"), "# ages: 360");
    let refused = growth_in(&short).expect_err("it has four ages").to_string();
    assert!(
        refused.contains("dump again 2160 s after `activate`"),
        "{refused}"
    );
}

#[test]
fn ages_without_allocation_times_are_refused_with_remedy() {
    let plain = dump().replace("# ages", "# other");
    for options in [
        Options {
            ages: true,
            ..Options::default()
        },
        Options {
            older: Some(Duration::ZERO),
            ..Options::default()
        },
    ] {
        let error = report_on(plain.as_bytes(), None, None, &options).expect_err("it has no ages");
        assert!(
            error.to_string().contains("memprof activate ages=1m"),
            "{error}"
        );
    }
    let options = Options {
        ages: true,
        format: Format::Collapsed,
        ..Options::default()
    };
    assert_eq!(
        report_ages(&options).unwrap_err(),
        "--ages is for --format text and json"
    );
}

/// Other tools take an allocation time for an address.
#[test]
fn allocation_times_are_removed_for_other_tools() {
    let cut = |dump: &str| {
        let mut cut = Vec::new();
        write_tcmalloc(
            &mut dump.as_bytes(),
            &Limits::default(),
            &HashSet::new(),
            &mut cut,
        )
        .expect("it is whole");
        assert!(!String::from_utf8_lossy(&cut).contains("0x4d50"));
        cut
    };
    let report = |text: &[u8]| {
        let options = Options {
            format: Format::Collapsed,
            ..Options::default()
        };
        let (out, _) = report_on(text, None, None, &options).expect("it is a good dump");
        String::from_utf8(out).expect("it is text")
    };
    let plain = cut(&dump());
    // The leaf is written less 1.
    let expected = report(dump().as_bytes()).replace("ff ", "fe ");
    assert_eq!(report(&plain), expected);
    let ours = "heap profile: 1: 8 [1: 8] @ heap_v2/1\n1: 8 [1: 8] @ 0x10 0x4d50020000000003\n\n\
        MAPPED_LIBRARIES:\n";
    let plain = String::from_utf8(cut(ours)).expect("it is text");
    assert!(plain.contains("1: 8 [1: 8] @ 0xf\n"), "{plain}");
}
