//! Functions of a Python program, from a dump with managed words in its stacks.

use memprof_report::{Format, Limits, Options, StackFrames, export_dump};

use crate::goldens;
use crate::support::report_on;

/// A server whose leak allocates by way of the standard library, and one stack without a function of Python.
fn dump() -> String {
    let frames = [
        "0x4d50040000000003 python Cache.add /srv/app.py 12",
        "0x4d50040000000005 python dumps /usr/lib/python3.11/json/__init__.py 231",
        "0x4d50040000000007 python gr%c3%b6%c3%9fe /srv/app.py 40",
        "0x4d50040000000009 python main /srv/app.py 50",
    ];
    let frames = frames.map(|frame| format!("# frame: {frame}\n")).concat();
    format!(
        "heap profile: 5: 52224 [5: 52224] @ heap_v2/1\n\
         1: 40960 [1: 40960] @ 0x1200 0x4d50040000000003 0x1300 0x4d50040000000009 0x1400\n\
         1: 8192 [1: 8192] @ 0x1200 0x4d50040000000005 0x4d50040000000007 0x4d50040000000009 0x1400\n\
         1: 1024 [1: 1024] @ 0x1200 0x4d50040000000001 0x1400\n\
         1: 1024 [1: 1024] @ 0x1200 0x4d5004000000000b 0x1400\n\
         1: 1024 [1: 1024] @ 0x1250 0x1400\n\n\
         MAPPED_LIBRARIES:\n00001000-00002000 r-xp 00000000 fe:00 1 /usr/bin/python3.11\n\
         # language: python 3.11.2 /usr/bin/python3.11\n{frames}"
    )
}

fn options(format: Format, stack_frames: StackFrames) -> Options {
    Options {
        format,
        stack_frames,
        ..Options::default()
    }
}

fn rendered(dump: &str, format: Format, frames: StackFrames) -> String {
    let (text, _) = report_on(dump.as_bytes(), None, None, &options(format, frames))
        .expect("the dump is whole");
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn rows_are_functions_with_file_and_line() {
    for (name, format) in [
        ("python.text", Format::Text),
        ("python.json", Format::Json),
        ("python.collapsed", Format::Collapsed),
    ] {
        let options = options(format, StackFrames::Program);
        goldens::check(name, dump().as_bytes(), None, &options);
    }
    let options = options(Format::Collapsed, StackFrames::All);
    goldens::check("python.native.collapsed", dump().as_bytes(), None, &options);
}

#[test]
fn native_frames_alone_hold_no_managed_word() {
    for format in [Format::Collapsed, Format::Jeprof] {
        let text = rendered(&dump(), format, StackFrames::Native);
        assert!(
            !text.contains("app.py") && !text.contains("4d5004"),
            "{text}"
        );
    }
}

#[test]
fn exported_dump_reads_like_the_dump() {
    let mut exported = Vec::new();
    export_dump(&mut dump().as_bytes(), &Limits::default(), &mut exported).expect("it is whole");
    let exported = String::from_utf8(exported).expect("it is text");
    let (stacks, comments) = exported.split_once("MAPPED_LIBRARIES").expect("mappings");
    assert!(!stacks.contains("4d5004"), "{stacks}");
    assert!(comments.contains("# managed: 1:1,2:4 of 1\n"), "{comments}");
    for frames in [StackFrames::Program, StackFrames::All, StackFrames::Native] {
        let texts =
            [dump(), exported.clone()].map(|dump| rendered(&dump, Format::Collapsed, frames));
        assert_eq!(texts[0], texts[1], "{frames:?}");
    }
}

#[test]
fn malformed_comments_change_nothing() {
    let whole = rendered(&dump(), Format::Collapsed, StackFrames::Program);
    for comment in [
        "# managed: ",
        "# managed: x of 1",
        "# managed: 1:1 of 0 9 x",
        "# frame: 1 2",
    ] {
        let dump = format!("{}{comment}\n", dump());
        let text = rendered(&dump, Format::Collapsed, StackFrames::Program);
        assert_eq!(text, whole, "{comment}");
    }
    let off = format!(
        "{}# language: python 3.14.0 /usr/bin/python3.14 off: why\n",
        dump()
    );
    let options = options(Format::Text, StackFrames::Program);
    let (_, notes) = report_on(off.as_bytes(), None, None, &options).expect("the dump is whole");
    let note = "functions of python 3.14.0 (/usr/bin/python3.14) are in no stack: why";
    assert!(notes.iter().any(|found| found == note), "{notes:?}");
}

#[test]
fn small_objects_count_for_their_lines_and_have_types() {
    let objects = dump().replace(
        "1: 40960 [1: 40960] @ 0x1200 0x4d50040000000003",
        "1: 40960 [1: 40960] @ 0x4d5004000000000d 0x1200 0x4d50040000000003",
    );
    let objects =
        format!("{objects}# frame: 0x4d5004000000000d python dict <object> 0\n# objects: python\n");
    let render = |dump: &str| {
        let options = options(Format::Text, StackFrames::Program);
        report_on(dump.as_bytes(), None, None, &options).expect("the dump is whole")
    };
    let (text, notes) = render(&objects);
    let text = String::from_utf8_lossy(&text);
    let row = text
        .lines()
        .find(|line| line.ends_with("Cache.add /srv/app.py:12"));
    assert!(row.is_some_and(|row| row.contains("40.00KiB")), "{text}");
    let note =
        "78 % are Python's objects of up to 512 bytes, by type: dict 78 %; `--flat` has their rows";
    assert!(notes.iter().any(|found| found == note), "{notes:?}");
    let off = objects.replace("# objects: python", "# objects: python off: why");
    let (_, notes) = render(&off);
    let note = "Python's objects of up to 512 bytes are not in this profile: why; `memprof holders PID` shows what \
                holds them";
    assert!(notes.iter().any(|found| found == note), "{notes:?}");
}
