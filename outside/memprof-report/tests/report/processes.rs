//! Dumps of several processes in one file, which give one report.

use memprof_report::{Format, Limits, Options, StackFrames, export_dump};
use serde_json::Value;

use crate::support::report_on;

/// A dump of a Python process in which `handle` holds these bytes, in one sample: the word of its name, the number of its
/// label and the addresses are those of this process only.
struct Dump {
    pid: u32,
    word: &'static str,
    bytes: u64,
    address: &'static str,
    file: &'static str,
    comments: &'static str,
}

const FIRST: Dump = Dump {
    pid: 7,
    word: "0x4d50040000000003",
    bytes: 40960,
    address: "1200",
    file: "/usr/bin/python3.11",
    comments: "",
};
const SECOND: Dump = Dump {
    pid: 8,
    word: "0x4d50040000000005",
    bytes: 8192,
    address: "1300",
    file: "/usr/bin/python3.11",
    comments: "",
};

impl Dump {
    fn text(&self) -> String {
        let Self {
            pid,
            word,
            bytes,
            address,
            file,
            comments,
        } = self;
        format!(
            "heap profile: 1: {bytes} [1: {bytes}] @ heap_v2/1\n1: {bytes} [1: {bytes}] @ 0x{address} {word}\n\n\
             MAPPED_LIBRARIES:\n00001000-00002000 r-xp 00000000 fe:00 1 {file}\n# host: gunicorn pid {pid} on box\n\
             # frame: {word} python handle /srv/app.py 12\n{comments}"
        )
    }
}

fn report(text: &str, options: &Options) -> (String, Vec<String>) {
    let (text, notes) = report_on(text.as_bytes(), None, None, options).expect("it is whole");
    (String::from_utf8_lossy(&text).into_owned(), notes)
}

fn options(format: Format) -> Options {
    Options {
        format,
        ..Options::default()
    }
}

#[test]
fn functions_are_one_row_and_processes_are_listed() {
    let both = FIRST.text() + &SECOND.text();
    let (text, notes) = report(&both, &options(Format::Text));
    let row = text
        .lines()
        .find(|line| line.ends_with("handle /srv/app.py:12"));
    assert!(
        row.is_some_and(|row| row.contains("48.00KiB 100.0%")),
        "{text}"
    );
    assert!(
        text.contains("48.00KiB) of 2 processes, estimated"),
        "{text}"
    );
    let list = "2 processes: 7 (gunicorn) 40.00KiB, 8 (gunicorn) 8.00KiB";
    assert_eq!(notes[0], list, "{notes:?}");
    let json = report(&both, &options(Format::Json)).0;
    let json: Value = serde_json::from_str(&json).expect("it is JSON");
    let processes = serde_json::json!([
        { "host": "gunicorn", "pid": 7, "inuse_space": 40960 },
        { "host": "gunicorn", "pid": 8, "inuse_space": 8192 },
    ]);
    assert_eq!(json["origin"]["processes"], processes);
    assert_eq!(json["totals"]["inuse_space"], 49152);
    assert_eq!(json["functions"][0]["samples"], 2);
    // One process has no list.
    let json = report(&FIRST.text(), &options(Format::Json)).0;
    assert!(!json.contains("processes"), "{json}");
}

#[test]
fn equal_addresses_of_different_files_are_different_places() {
    let other = Dump {
        file: "/usr/bin/other",
        address: FIRST.address,
        ..SECOND
    };
    let native = Options {
        stack_frames: StackFrames::Native,
        ..options(Format::Collapsed)
    };
    let check = |second: &Dump, expected: &[&str]| {
        let (text, _) = report(&(FIRST.text() + &second.text()), &native);
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, expected);
    };
    check(
        &SECOND,
        &["python3.11+0x1ff 40960", "python3.11+0x2ff 8192"],
    );
    check(&other, &["other+0x1ff 8192", "python3.11+0x1ff 40960"]);
    for format in [Format::Jeprof, Format::Pprof, Format::Html, Format::Dot] {
        report(&(FIRST.text() + &other.text()), &options(format));
    }
}

#[test]
fn labels_and_ages_are_those_of_each_process() {
    let labelled = |dump: Dump, comments| {
        let text = Dump { comments, ..dump }.text();
        text.replacen(dump.word, &format!("{} 0x4d50010000000003", dump.word), 1)
    };
    let both = labelled(FIRST, "# labels: route\n# label: 1 route=/a\n")
        + &labelled(SECOND, "# labels: route\n# label: 1 route=/b\n")
        + &SECOND.text();
    let by_route = Options {
        by: Some("route".to_owned()),
        ..options(Format::Json)
    };
    let json: Value = serde_json::from_str(&report(&both, &by_route).0).expect("it is JSON");
    let values = json["by"]["values"].as_array().expect("values");
    let shares = values
        .iter()
        .map(|row| (row["value"].as_str(), row["flat"].as_i64()));
    let expected = [("/a", 40960), ("/b", 8192), ("[none]", 8192)];
    let expected = expected.map(|(value, bytes)| (Some(value), Some(bytes)));
    let mut shares: Vec<_> = shares.collect();
    shares.sort_unstable();
    assert_eq!(shares, expected);
}

#[test]
fn notes_name_their_processes_unless_all_have_them() {
    let language = "# language: python 3.14.0 /usr/bin/python3.14 off: why\n";
    let with = |dump, comments| Dump { comments, ..dump }.text();
    let note = "functions of python 3.14.0 (/usr/bin/python3.14) are in no stack: why";
    let check = |text: String, expected: &str| {
        let notes = report(&text, &options(Format::Text)).1;
        assert!(notes.iter().any(|found| found == expected), "{notes:?}");
    };
    check(with(FIRST, language) + &with(SECOND, language), note);
    check(
        FIRST.text() + &with(SECOND, language),
        &format!("8 (gunicorn): {note}"),
    );
}

#[test]
fn exported_dumps_read_like_the_dumps() {
    let both = FIRST.text() + &SECOND.text();
    let mut exported = Vec::new();
    export_dump(&mut both.as_bytes(), &Limits::default(), &mut exported).expect("they are whole");
    let exported = String::from_utf8(exported).expect("it is text");
    assert!(exported.contains("# managed: 1:1 of 1\n"), "{exported}");
    assert!(exported.contains("# managed: 1:2 of 1\n"), "{exported}");
    let text = |dumps: &str| report(dumps, &options(Format::Text));
    assert_eq!(text(&exported), text(&both));
}

#[test]
fn dump_that_is_cut_off_is_refused() {
    let both = FIRST.text() + &SECOND.text();
    let check = |text: &str, expected: &str| {
        let result = report_on(text.as_bytes(), None, None, &options(Format::Text));
        let error = result.expect_err("it is cut").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(both.trim_end(), "has no end");
    let without_mappings = both.rsplit_once("\nMAPPED").expect("mappings").0;
    check(&format!("{without_mappings}\nx\n"), "expected");
    let many = Options {
        limits: Limits {
            dumps: 1,
            ..Limits::default()
        },
        ..options(Format::Text)
    };
    let error = report_on(both.as_bytes(), None, None, &many).expect_err("they are too many");
    assert!(error.to_string().contains("dumps"), "{error}");
    let parsed = memprof_report::parse_profile(&mut both.as_bytes(), &Limits::default(), false);
    let error = parsed.expect_err("they are two").to_string();
    assert!(error.contains("2 processes"), "{error}");
}
