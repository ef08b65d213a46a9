//! Whole outputs, named after their options. `BLESS=1 cargo test` rewrites them.

use std::env;
use std::fs;

use memprof_report::{
    Filter, Format, Granularity, Options, OriginRules, SampleType, compile_pattern,
};

use crate::support::{corpus, path, report_on};

pub(crate) fn check(golden: &str, dump: &[u8], base: Option<&[u8]>, options: &Options) {
    let (out, _) = report_on(dump, base, None, options).expect("it is a good dump");
    let file = path(&format!("goldens/{golden}"));
    if env::var_os("BLESS").is_some() {
        fs::write(&file, &out).expect("the golden can be written");
    }
    let expected = fs::read(&file).expect("the golden is there; BLESS=1 writes it");
    let (out, expected) = (
        String::from_utf8_lossy(&out),
        String::from_utf8_lossy(&expected),
    );
    assert!(
        out == expected,
        "{golden} differs; BLESS=1 rewrites it. It is now:\n{out}"
    );
}

fn named() -> Vec<u8> {
    fs::read(path("named.heap")).expect("it is there")
}

/// `named`, some time later: one function is gone, one new, one grown, one shrunk.
fn named_later() -> Vec<u8> {
    let text = String::from_utf8(named()).expect("it is text");
    text.replace(": 2: 4096 [", ": 3: 6144 [")
        .replace(": 1: 10240 [", ": 1: 5120 [")
        .replace("std::vector<int>::push_back", "std::deque<int>::push_back")
        .into()
}

/// Options that make every function a row.
fn options(format: Format) -> Options {
    Options {
        format,
        origin_rules: OriginRules {
            flat: true,
            ..OriginRules::default()
        },
        ..Options::default()
    }
}

fn origin_options(format: Format) -> Options {
    Options {
        format,
        ..Options::default()
    }
}

#[test]
fn own_functions_in_each_format() {
    for (name, format) in [
        ("text", Format::Text),
        ("tree", Format::Tree),
        ("collapsed", Format::Collapsed),
        ("flamegraph.svg", Format::Flamegraph),
        ("view.json", Format::View),
        ("dot", Format::Dot),
        ("json", Format::Json),
    ] {
        let golden = format!("named.own.{name}");
        check(&golden, &named(), None, &origin_options(format));
    }
    let (new, base) = (named_later(), named());
    let text = origin_options(Format::Text);
    check("named_later.base_named.own.text", &new, Some(&base), &text);
    let asked = OriginRules {
        own: Some(compile_pattern("^std::").expect("a pattern")),
        plumbing: Some(compile_pattern("read_body").expect("a pattern")),
        ..OriginRules::default()
    };
    let asked = Options {
        origin_rules: asked,
        ..text
    };
    check("named.own_std.plumbing_read.text", &named(), None, &asked);
}

#[test]
fn redis_without_symbols() {
    let redis = corpus("redis");
    for (golden, format) in [
        ("redis.inuse_space.no_symbols.text", Format::Text),
        ("redis.inuse_space.no_symbols.tree", Format::Tree),
        ("redis.inuse_space.no_symbols.collapsed", Format::Collapsed),
        ("redis.inuse_space.no_symbols.json", Format::Json),
        ("redis.inuse_space.no_symbols.dot", Format::Dot),
    ] {
        check(golden, &redis, None, &options(format));
    }
    let objects = Options {
        sample_type: SampleType::InuseObjects,
        ..options(Format::Collapsed)
    };
    check(
        "redis.inuse_objects.no_symbols.collapsed",
        &redis,
        None,
        &objects,
    );
}

#[test]
fn symbolized_dump_in_each_format() {
    for (name, format) in [
        ("text", Format::Text),
        ("tree", Format::Tree),
        ("collapsed", Format::Collapsed),
        ("flamegraph.svg", Format::Flamegraph),
        ("view.json", Format::View),
        ("dot", Format::Dot),
        ("jeprof", Format::Jeprof),
        ("json", Format::Json),
    ] {
        check(
            &format!("named.inuse_space.{name}"),
            &named(),
            None,
            &options(format),
        );
    }
}

#[test]
fn each_option() {
    let text = options(Format::Text);
    check(
        "named.cum.text",
        &named(),
        None,
        &Options {
            by_cum: true,
            ..text.clone()
        },
    );
    check(
        "named.top_2.text",
        &named(),
        None,
        &Options {
            top: Some(2),
            ..text.clone()
        },
    );
    check(
        "named.top_3.tree",
        &named(),
        None,
        &Options {
            top: Some(3),
            ..options(Format::Tree)
        },
    );
    check(
        "named.lines.text",
        &named(),
        None,
        &Options {
            granularity: Granularity::Lines,
            ..text.clone()
        },
    );
    let alloc_objects = Options {
        sample_type: SampleType::AllocObjects,
        ..text.clone()
    };
    check("named.alloc_objects.text", &named(), None, &alloc_objects);
    let focus = |focus: &str, ignore: Option<&str>| Filter {
        focus: Some(compile_pattern(focus).expect("a pattern")),
        ignore: ignore.map(|ignore| compile_pattern(ignore).expect("a pattern")),
    };
    let filtered = Options {
        filter: focus("^serve$", Some("parse_")),
        ..text
    };
    check(
        "named.focus_serve.ignore_parse.text",
        &named(),
        None,
        &filtered,
    );
    let peek = Options {
        filter: focus("serve|read_body", None),
        ..options(Format::Peek)
    };
    check("named.focus_serve_read_body.peek", &named(), None, &peek);
}

#[test]
fn comparison_in_each_format() {
    let (new, base) = (named_later(), named());
    for (name, format) in [
        ("text", Format::Text),
        ("tree", Format::Tree),
        ("collapsed", Format::Collapsed),
        ("flamegraph.svg", Format::Flamegraph),
        ("view.json", Format::View),
        ("dot", Format::Dot),
        ("json", Format::Json),
    ] {
        check(
            &format!("named_later.base_named.{name}"),
            &new,
            Some(&base),
            &options(format),
        );
    }
    let normalize = Options {
        normalize: true,
        ..options(Format::Text)
    };
    check(
        "named_later.base_named.normalize.text",
        &new,
        Some(&base),
        &normalize,
    );
}
