//! What a difference must satisfy.

use memprof_report::{ErrorKind, Format, Options};
use serde_json::Value;

use crate::support::{CORPUS, corpus, report_on};

fn json(new: &[u8], base: Option<&[u8]>) -> Value {
    let options = Options {
        format: Format::Json,
        ..Options::default()
    };
    let (out, _) = report_on(new, base, None, &options).expect("they are good dumps");
    serde_json::from_slice(&out).expect("it is JSON")
}

fn changes(new: &[u8], base: &[u8]) -> Vec<i64> {
    let options = Options {
        format: Format::Collapsed,
        ..Options::default()
    };
    let (out, _) = report_on(new, Some(base), None, &options).expect("they are good dumps");
    let lines = str::from_utf8(&out).expect("it is text").lines();
    lines
        .map(|line| {
            line.rsplit(' ')
                .next()
                .expect("a value")
                .parse()
                .expect("a number")
        })
        .collect()
}

#[test]
fn a_profile_and_itself_differ_in_nothing() {
    for name in CORPUS {
        let dump = corpus(name);
        assert_eq!(changes(&dump, &dump), Vec::<i64>::new());
        assert_eq!(json(&dump, Some(&dump))["totals"]["inuse_space"], 0);
    }
}

#[test]
fn the_changes_add_up_to_the_difference_of_the_totals() {
    for pair in CORPUS.windows(2) {
        let (new, base) = (corpus(pair[0]), corpus(pair[1]));
        let total = |report: Value| report["totals"]["inuse_space"].as_i64().expect("a number");
        let difference = total(json(&new, None)) - total(json(&base, None));
        assert_eq!(
            changes(&new, &base).iter().sum::<i64>(),
            difference,
            "{pair:?}"
        );
        assert_eq!(total(json(&new, Some(&base))), difference);
    }
}

#[test]
fn functions_are_matched_by_name_not_by_address() {
    let dump = String::from_utf8(corpus("redis")).expect("it is text");
    let moved = dump
        .replace("0x7f95", "0x7a95")
        .replace("\n7f95", "\n7a95")
        .replace("-7f95", "-7a95");
    assert_ne!(moved, dump);
    assert_eq!(
        changes(moved.as_bytes(), dump.as_bytes()),
        Vec::<i64>::new()
    );
}

#[test]
fn pprof_is_a_base_too() {
    let dump = corpus("sqlite");
    let options = Options {
        format: Format::Pprof,
        ..Options::default()
    };
    let (pprof, _) = report_on(&dump, None, None, &options).expect("it is a good dump");
    assert_eq!(json(&dump, Some(&pprof))["totals"]["inuse_space"], 0);
}

#[test]
fn jeprof_files_hold_no_difference() {
    let dump = corpus("sqlite");
    let options = Options {
        format: Format::Jeprof,
        ..Options::default()
    };
    let error = report_on(&dump, Some(&dump), None, &options).expect_err("it cannot be written");
    assert_eq!(error.kind(), ErrorKind::Usage);
}
