//! Labels of memory, from a dump with labels in its stacks.

use std::collections::HashSet;

use memprof_report::{Format, Label, Limits, Options, usage_by_label, write_tcmalloc};

use crate::goldens;
use crate::support::report_on;

const LABEL: u64 = 0x4d_5001 << 40;
const ALLOC_TIME: u64 = 0x4d_5002 << 40;

/// Three routes, one of them with unprintable text, samples without a label, and some without a cell in the label
/// table.
fn dump() -> String {
    let stacks = [
        (0x1200, Some(7), 40),
        (0x1300, Some(7), 2),
        (0x1200, Some(9), 4),
        (0x1200, Some(12), 3),
        (0x1200, Some(0), 2),
        (0x1300, None, 1),
    ];
    let lines = stacks.map(|(address, label, kib)| {
        let label = label.map(|id: u64| format!(" {:#x}", LABEL | (id << 1) | 1));
        let label = label.unwrap_or_default();
        // Pseudo frames are accepted in either order.
        let alloc_time = ALLOC_TIME | (1000 << 1) | 1;
        format!(
            "@ {address:#x} 0x1f00{label} {alloc_time:#x}\n  t*: 1: {} [0: 0]\n",
            kib << 10
        )
    });
    format!(
        "heap_v2/1\n  t*: 6: {} [0: 0]\n{}\nMAPPED_LIBRARIES:\n00001000-00002000 r-xp 00000000 fe:00 1 \
         /usr/bin/server\n# ages: 60 1600\n# labels: route,thread\n# label: 7 route=/search thread=web%201\n# label: 9 \
         route=/buy\n# label: 12 route=%1b[31m%0a@%200x1\n",
        52 << 10,
        lines.concat()
    )
}

fn by_route(format: Format) -> Options {
    Options {
        format,
        by: Some("route".into()),
        ..Options::default()
    }
}

#[test]
fn table_by_label_has_a_row_per_value() {
    goldens::check(
        "labels.text",
        dump().as_bytes(),
        None,
        &by_route(Format::Text),
    );
    goldens::check(
        "labels.json",
        dump().as_bytes(),
        None,
        &by_route(Format::Json),
    );
}

#[test]
fn usage_lists_most_used_values_only() {
    let held = |most| -> Vec<(String, String, i64)> {
        let held = usage_by_label(&mut dump().as_bytes(), &Limits::default(), most);
        let held = held.expect("it is read").into_iter();
        held.map(|holding| (holding.key, holding.value, holding.bytes >> 10))
            .collect()
    };
    let row = |key: &str, value: &str, kib| (key.to_owned(), value.to_owned(), kib);
    let hostile = "\u{fffd}[31m\u{fffd}@ 0x1";
    assert_eq!(
        held(20),
        [
            row("route", "/search", 42),
            row("route", "/buy", 4),
            row("route", hostile, 3),
            row("route", "[none]", 1),
            row("route", "[other]", 2),
            row("thread", "web 1", 42),
            row("thread", "[none]", 8),
            row("thread", "[other]", 2),
        ]
    );
    let few = [
        row("route", "/search", 42),
        row("route", "[other]", 10),
        row("thread", "web 1", 42),
        row("thread", "[other]", 10),
    ];
    assert_eq!(held(1), few);
}

#[test]
fn view_contains_label_values() {
    let view = |dump: &str| -> serde_json::Value {
        let options = Options {
            format: Format::View,
            ..Options::default()
        };
        let (view, _) = report_on(dump.as_bytes(), None, None, &options).expect("it is read");
        serde_json::from_slice(&view).expect("it is JSON")
    };
    let hostile = "\u{fffd}[31m\u{fffd}@ 0x1";
    let offered = serde_json::json!([
        ["route", [hostile, "/buy", "/search"]],
        ["thread", ["web 1"]]
    ]);
    let mut offered = offered;
    offered[0][1]
        .as_array_mut()
        .expect("values")
        .sort_by_key(ToString::to_string);
    let mut labels = view(&dump())["labels"].clone();
    labels[0][1]
        .as_array_mut()
        .expect("values")
        .sort_by_key(ToString::to_string);
    assert_eq!(labels, offered);
    let plain = dump().replace("# label", "# other");
    assert!(view(&plain).get("labels").is_none());
}

/// Bytes in use in tcmalloc's text: `OBJECTS: BYTES [OBJECTS: BYTES] @ STACK`.
fn bytes_in_use(text: &str) -> i64 {
    let stacks = text.lines().filter(|line| line.contains("] @ 0x"));
    let bytes = stacks.map(|line| line.split([':', '[']).nth(1).expect("bytes"));
    bytes
        .map(|bytes| bytes.trim().parse::<i64>().expect("a number"))
        .sum()
}

#[test]
fn totals_of_export_are_unchanged() {
    let written = |format| {
        let options = Options {
            format,
            ..Options::default()
        };
        let (out, _) = report_on(dump().as_bytes(), None, None, &options).expect("it is read");
        String::from_utf8(out).expect("it is text")
    };
    let collapsed = written(Format::Collapsed);
    let values = collapsed
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<i64>().ok());
    assert_eq!(values.sum::<i64>(), 52 << 10);
    assert_eq!(bytes_in_use(&written(Format::Jeprof)), 52 << 10);
    let mut text = Vec::new();
    write_tcmalloc(
        &mut dump().as_bytes(),
        &Limits::default(),
        &HashSet::new(),
        &mut text,
    )
    .expect("it is whole");
    let text = String::from_utf8(text).expect("it is text");
    assert_eq!(bytes_in_use(&text), 52 << 10);
}

#[test]
fn label_filter_keeps_one_value() {
    let total = |label: &str| -> i64 {
        let options = Options {
            format: Format::Json,
            label: Some(label.parse().expect("KEY=VALUE")),
            ..Options::default()
        };
        let report = report_on(dump().as_bytes(), None, None, &options);
        let (json, _) = report.expect("it is read");
        let json: serde_json::Value = serde_json::from_slice(&json).expect("it is JSON");
        json["totals"]["inuse_space"].as_i64().expect("bytes")
    };
    assert_eq!(total("route=/search"), 42 << 10);
    assert_eq!(total("thread=web 1"), 42 << 10);
    assert_eq!(total("route=[other]"), 2 << 10);
    assert_eq!(total("route=[none]"), 1 << 10);
    assert_eq!(total("thread=[none]"), 8 << 10);
}

#[test]
fn unavailable_label_report_is_refused() {
    let check = |dump: &str, options: &Options, expected: &str| {
        let error = report_on(dump.as_bytes(), None, None, options).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    };
    let plain = dump().replace("# labels:", "# other:");
    check(
        &plain,
        &by_route(Format::Text),
        "memprof activate labels=route",
    );
    check(
        &dump(),
        &by_route(Format::Tree),
        "--by is for --format text and json",
    );
    let label = |key: &str, value: &str| Options {
        label: Some(Label {
            key: key.into(),
            value: value.into(),
        }),
        ..Options::default()
    };
    check(
        &dump(),
        &label("tenant", "x"),
        "no label \"tenant\", but: route, thread",
    );
    check(
        &dump(),
        &label("route", "/none"),
        "nothing is left by --label",
    );
}

#[test]
fn labels_are_removed_for_other_tools() {
    let mut text = Vec::new();
    write_tcmalloc(
        &mut dump().as_bytes(),
        &Limits::default(),
        &HashSet::new(),
        &mut text,
    )
    .expect("it is whole");
    let text = String::from_utf8(text).expect("it is text");
    assert!(!text.contains("0x4d50"), "{text}");
    for format in [Format::Jeprof, Format::Collapsed] {
        let options = Options {
            format,
            ..Options::default()
        };
        let (out, _) = report_on(dump().as_bytes(), None, None, &options).expect("it is read");
        assert!(!String::from_utf8_lossy(&out).contains("4d50"));
    }
}
