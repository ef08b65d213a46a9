//! Output files read by other tools: the same totals, the same names.

use std::fs;
use std::path::PathBuf;

use memprof_report::{Format, Options};
use tempfile::TempDir;

use crate::support::{CORPUS, corpus, path, report_on, run};

const XML: &str = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";

/// A report in a file.
struct Report {
    _directory: TempDir,
    file: PathBuf,
}

fn write_report(dump: &[u8], base: Option<&[u8]>, format: Format) -> Report {
    let (out, _) = report_on(
        dump,
        base,
        None,
        &Options {
            format,
            ..Options::default()
        },
    )
    .expect("a good dump");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("report");
    fs::write(&file, out).expect("it can be written");
    Report {
        _directory: directory,
        file,
    }
}

fn total(dump: &[u8]) -> i64 {
    let options = Options {
        format: Format::Collapsed,
        ..Options::default()
    };
    let (out, _) = report_on(dump, None, None, &options).expect("a good dump");
    let lines = str::from_utf8(&out).expect("it is text").lines();
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

fn go_pprof(report: &Report) -> String {
    let home = report.file.parent().expect("a directory").to_owned();
    let out = run("go", "golang-go", |go| {
        go.env("HOME", home)
            .args(["tool", "pprof", "-top", "-unit=B", "-nodecount=20"])
            .arg(&report.file)
    });
    String::from_utf8(out).expect("it is text")
}

fn perl_pprof(program: &str, package: &str, report: &Report) -> String {
    let out = run(program, package, |pprof| {
        pprof.args(["--text", "--show_bytes"]).arg(&report.file)
    });
    String::from_utf8(out).expect("it is text")
}

#[test]
fn go_tool_pprof_computes_same_totals() {
    for name in CORPUS {
        let dump = corpus(name);
        let top = go_pprof(&write_report(&dump, None, Format::Pprof));
        assert!(
            top.contains(&format!("of {}B total", total(&dump))),
            "{name}: {top}"
        );
        assert!(top.contains("Type: inuse_space"), "{top}");
    }
}

#[test]
fn go_tool_pprof_reads_names_and_differences() {
    let named = fs::read(path("named.heap")).expect("it is there");
    let top = go_pprof(&write_report(&named, None, Format::Pprof));
    for name in [
        "read_body (inline)",
        "parse_header",
        "std::vector::push_back",
    ] {
        assert!(top.contains(name), "{name} is missing: {top}");
    }
    let later = String::from_utf8(named.clone())
        .expect("it is text")
        .replace("1: 10240 [1", "1: 5120 [1");
    let top = go_pprof(&write_report(later.as_bytes(), Some(&named), Format::Pprof));
    assert!(top.contains("-5085B") && top.contains("read_body"), "{top}");
}

#[test]
fn jeprof_and_google_pprof_compute_same_totals() {
    for name in CORPUS {
        let dump = corpus(name);
        let report = write_report(&dump, None, Format::Jeprof);
        for (program, package) in [
            ("jeprof", "libjemalloc-dev"),
            ("google-pprof", "google-perftools"),
        ] {
            let text = perl_pprof(program, package, &report);
            assert!(
                text.contains(&format!("Total: {} B", total(&dump))),
                "{name}: {text}"
            );
        }
    }
}

#[test]
fn jeprof_reads_names_without_the_binary() {
    let named = fs::read(path("named.heap")).expect("it is there");
    let text = perl_pprof(
        "jeprof",
        "libjemalloc-dev",
        &write_report(&named, None, Format::Jeprof),
    );
    for line in [
        "10240  43.9%  43.9%    10240  43.9% read_body",
        "4737  20.3%",
        "serve",
        "main",
    ] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }
}

#[test]
fn svg_files_are_xml() {
    let named = fs::read(path("named.heap")).expect("it is there");
    for format in [Format::Flamegraph, Format::Svg] {
        for dump in [named.clone(), corpus("redis")] {
            let report = write_report(&dump, None, format);
            run("python3", "python3", |python| {
                python.arg("-c").arg(XML).arg(&report.file)
            });
            let text = fs::read_to_string(&report.file).expect("it is text");
            assert!(!text.contains("<img"), "markup of a symbol came through");
        }
    }
}

/// Symbols with hostile characters, in every format that a browser or a terminal may show.
#[test]
fn hostile_names_are_escaped() {
    let names = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "\"onload=\"alert(1)",
        "]]><svg onload=alert(1)>",
        "\u{1b}]0;title\u{7}",
        "\u{202e}reversed",
        "\u{9b}31m",
        "a;b;c",
        "&lt;&amp;",
        "'--",
        "{{template}}",
        "\\\" ]; node [",
        "new\u{b}line",
    ];
    for name in names {
        let named = fs::read_to_string(path("named.heap")).expect("it is there");
        let path = format!("/usr/{name}");
        let dump = named
            .replace("parse_header", name)
            .replace("/usr/bin/server", &path);
        for format in [
            Format::Text,
            Format::Tree,
            Format::Collapsed,
            Format::Flamegraph,
            Format::Html,
            Format::Dot,
            Format::Svg,
            Format::Json,
            Format::Jeprof,
        ] {
            let options = Options {
                format,
                ..Options::default()
            };
            let (out, _) = report_on(dump.as_bytes(), None, None, &options).expect("a good dump");
            let out = String::from_utf8(out).expect("it is text");
            let bad = |c: char| {
                (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}' || c == '\u{9b}'
            };
            assert!(!out.contains(bad), "{name:?} in {format:?}");
            if matches!(format, Format::Flamegraph | Format::Html | Format::Svg) {
                for markup in ["<script>alert", "<img src", "<svg onload"] {
                    assert!(!out.contains(markup), "{name:?} in {format:?}");
                }
            }
            if format == Format::Svg || format == Format::Flamegraph {
                let report = write_report(dump.as_bytes(), None, format);
                run("python3", "python3", |python| {
                    python.arg("-c").arg(XML).arg(&report.file)
                });
            }
        }
    }
}

/// tcmalloc's text with each of its sampling methods, read by google-pprof and by memprof.
#[test]
fn legacy_text_has_the_totals_of_google_pprof() {
    for kind in ["heap_v2/4096", "heap/8192", "heapprofile", "heap_v2/524288"] {
        let dump = format!(
            "heap profile:      4:    12300 [     9:    70000] @ {kind}\n\
             \x20    3:     4108 [     7:    61808] @ 0x401000 0x401100\n\
             \x20    1:     8192 [     2:     8192] @ 0x401000 0x401200 0x401300\n\n\
             MAPPED_LIBRARIES:\n00400000-00500000 r-xp 00000000 fe:00 1 /usr/bin/none\n"
        );
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("legacy.heap");
        fs::write(&file, &dump).expect("it can be written");
        let out = run("google-pprof", "google-perftools", |pprof| {
            pprof
                .args(["--text", "--show_bytes", "/bin/true"])
                .arg(&file)
        });
        let out = String::from_utf8(out).expect("it is text");
        let theirs = out
            .split("Total: ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let theirs: f64 = theirs.expect("a total").parse().expect("a number");
        let ours = total(dump.as_bytes()) as f64;
        assert!(
            (ours - theirs).abs() <= 1.0,
            "{kind}: {ours}, google-pprof says {theirs}"
        );
    }
}
