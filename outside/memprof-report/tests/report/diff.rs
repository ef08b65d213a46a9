//! Comparison of two profiles.

use std::fs;

use memprof_report::{ErrorKind, Format, Options};
use serde_json::Value;

use crate::support::{CORPUS, corpus, report_on, run};

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
fn profile_compared_with_itself_has_no_change() {
    for name in CORPUS {
        let dump = corpus(name);
        assert_eq!(changes(&dump, &dump), Vec::<i64>::new());
        assert_eq!(json(&dump, Some(&dump))["totals"]["inuse_space"], 0);
    }
}

#[test]
fn changes_sum_to_difference_of_totals() {
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
fn base_of_other_program_is_warned_of() {
    let notes = |new: &str, base: &str| {
        let (_, notes) = report_on(&corpus(new), Some(&corpus(base)), None, &Options::default())
            .expect("they are good dumps");
        notes
    };
    let expected =
        "the base is of another program: sqlite3, not redis-check-rdb; what differs is not growth";
    assert_eq!(notes("redis", "sqlite"), [expected]);
    assert_eq!(notes("redis", "redis"), [""; 0]);
}

#[test]
fn error_names_broken_file() {
    let dump = corpus("redis");
    let error = |new: &[u8], base: &[u8]| {
        let error = report_on(new, Some(base), None, &Options::default()).expect_err("it is junk");
        error.to_string()
    };
    assert!(error(b"junk", &dump).starts_with("new.heap: failed to recognise"));
    assert!(error(&dump, b"junk").starts_with("base.heap: failed to recognise"));
}

#[test]
fn functions_are_matched_by_name() {
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
fn pprof_profile_can_be_base() {
    let dump = corpus("sqlite");
    let options = Options {
        format: Format::Pprof,
        ..Options::default()
    };
    let (pprof, _) = report_on(&dump, None, None, &options).expect("it is a good dump");
    assert_eq!(json(&dump, Some(&pprof))["totals"]["inuse_space"], 0);
}

/// Runs the commands that the error suggests: stock jeprof computes the same changes.
#[test]
fn jeprof_compares_two_output_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = corpus("sqlite");
    let new = String::from_utf8(base.clone()).expect("it is text");
    let new = new.replacen("t*: 1: 5120 [", "t*: 9: 46080 [", 4);
    let new = new.replace("t*: 2: 10240 [", "t*: 1: 5120 [");
    let jeprof = Options {
        format: Format::Jeprof,
        ..Options::default()
    };
    let error = report_on(new.as_bytes(), Some(&base), None, &jeprof).expect_err("it has no place");
    assert_eq!(error.kind(), ErrorKind::Usage);
    let remedy = error.to_string();
    for file in ["base", "new"] {
        let line = format!("memprof report {file}.heap --format jeprof -o {file}.jeprof");
        assert!(remedy.contains(&line), "{remedy}");
    }
    let line = "jeprof --text --base=base.jeprof new.jeprof";
    assert!(remedy.contains(line), "{remedy}");
    for (file, dump) in [("new.jeprof", new.as_bytes()), ("base.jeprof", &base)] {
        let (out, _) = report_on(dump, None, None, &jeprof).expect("it is a good dump");
        fs::write(directory.path().join(file), out).expect("it can be written");
    }
    let text = run("jeprof", "libjemalloc-dev", |jeprof| {
        jeprof
            .current_dir(&directory)
            .args(line.split(' ').skip(1))
            .arg("--show_bytes")
    });
    let text = String::from_utf8(text).expect("it is text");
    let changes = changes(new.as_bytes(), &base);
    assert!(changes.iter().any(|&change| change > 0) && changes.iter().any(|&change| change < 0));
    let total: i64 = changes.iter().sum();
    assert!(text.contains(&format!("Total: {total} B")), "{text}");
}
