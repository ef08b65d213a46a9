//! Totals of the real dumps, in every format that has them.

use crate::support::{CORPUS, corpus, path, report_on};
use memprof_report::{Format, Options, OriginRules, SampleType};
use serde_json::Value;

fn json(name: &str, options: Options) -> Value {
    let options = Options {
        format: Format::Json,
        origin_rules: flat(),
        ..options
    };
    let (out, notes) = report_on(&corpus(name), None, None, &options).expect("it is a good dump");
    assert_eq!(notes, Vec::<String>::new());
    serde_json::from_slice(&out).expect("it is JSON")
}

fn flat() -> OriginRules {
    OriginRules {
        flat: true,
        ..OriginRules::default()
    }
}

#[test]
fn interpreter_is_noted_with_its_tool() {
    let (_, notes) =
        report_on(&corpus("node"), None, None, &Options::default()).expect("it is a good dump");
    let [note] = notes.as_slice() else {
        panic!("{notes:?}")
    };
    assert!(note.starts_with("100 % ends in node: "), "{note}");
    assert!(note.contains("--heapsnapshot-signal"), "{note}");
}

#[test]
fn totals_equal_reference_within_a_thousandth() {
    let text = std::fs::read_to_string(path("corpus/reference.json")).expect("it is there");
    let reference: Value = serde_json::from_str(&text).expect("it is JSON");
    for name in CORPUS {
        let report = json(name, Options::default());
        let expected = &reference[format!("{name}.heap")];
        assert_eq!(report["sample_interval"], expected["sample_interval"]);
        assert_eq!(report["stacks"], expected["stacks"]);
        assert_eq!(
            report["mappings"].as_array().map(Vec::len),
            expected["mappings"].as_u64().map(|n| n as usize)
        );
        for total in ["inuse_space", "inuse_objects"] {
            let (found, expected) = (&report["totals"][total], &expected[total]);
            let ratio = found.as_f64().expect("a number") / expected.as_f64().expect("a number");
            assert!(
                (ratio - 1.0).abs() < 0.001,
                "{name} {total}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn collapsed_stacks_add_up_to_the_total() {
    for name in CORPUS {
        for sample_type in [SampleType::InuseSpace, SampleType::InuseObjects] {
            let expected = &json(name, Options::default())["totals"][sample_type.name()];
            let options = Options {
                format: Format::Collapsed,
                sample_type,
                ..Options::default()
            };
            let (out, _) =
                report_on(&corpus(name), None, None, &options).expect("it is a good dump");
            let sum: i64 = str::from_utf8(&out)
                .expect("it is text")
                .lines()
                .map(|line| {
                    line.rsplit_once(' ')
                        .expect("stack and value")
                        .1
                        .parse::<i64>()
                        .expect("a number")
                })
                .sum();
            assert_eq!(
                Some(sum),
                expected.as_i64(),
                "{name} {}",
                sample_type.name()
            );
        }
    }
}

#[test]
fn pprof_and_jeprof_output_can_be_read_back() {
    for name in CORPUS {
        for format in [Format::Pprof, Format::Jeprof] {
            let expected = &json(name, Options::default())["totals"];
            let options = Options {
                format,
                ..Options::default()
            };
            let (file, _) =
                report_on(&corpus(name), None, None, &options).expect("it is a good dump");
            let options = Options {
                format: Format::Json,
                ..Options::default()
            };
            let (again, _) = report_on(&file, None, None, &options).expect("it is a good file");
            let again: Value = serde_json::from_slice(&again).expect("it is JSON");
            assert_eq!(&again["totals"], expected, "{name} {format:?}");
        }
    }
}

#[test]
fn allocator_is_not_first_row() {
    for name in CORPUS {
        let report = json(name, Options::default());
        let function = report["functions"][0]["name"].as_str().expect("a name");
        assert!(!function.contains("jemalloc"), "{name}: {function}");
    }
}

#[test]
fn alloc_values_need_prof_accum() {
    let options = Options {
        sample_type: SampleType::AllocSpace,
        ..Options::default()
    };
    let error = report_on(&corpus("redis"), None, None, &options).expect_err("it has none");
    assert_eq!(
        error.to_string(),
        "new.heap: it has no alloc_space: it counts only what is in use (jemalloc counts allocations with prof_accum:true)"
    );
}
