//! Symbols that hand-written assembly and old compilers make: without a size or a type, and with any bytes.

use std::fs;

use memprof_report::{Format, Options, Sources};

use crate::support::{report_on, run};

/// Functions of four bytes each.
const ASSEMBLY: &[u8] = b"
.text
.globl first
.type first, @function
first: nop; nop; nop; nop
.globl label
label: nop; nop; nop; nop
.globl sized
.type sized, @function
sized: nop; nop; nop; nop
.size sized, 4
nop; nop; nop; nop
.globl \"caf\xe9\"
.type \"caf\xe9\", @function
\"caf\xe9\": nop; nop; nop; nop
.size \"caf\xe9\", 4
.globl last
.type last, @function
last: nop; nop; nop; nop
.cfi_startproc
nop; nop; nop; nop
.cfi_endproc
.section .other, \"ax\"
nop; nop; nop; nop
";

#[test]
fn symbol_without_size_ends_at_the_next_function() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |file: &str| directory.path().join(file).display().to_string();
    fs::write(path("odd.s"), ASSEMBLY).expect("it can be written");
    run("gcc", "gcc", |gcc| {
        gcc.args(["-shared", "-nostdlib", "-Wl,--no-gc-sections", "-o"])
            .args([path("libodd.so"), path("odd.s")])
    });
    let symbols = run("nm", "binutils", |nm| nm.arg(path("libodd.so")));
    let symbols = String::from_utf8_lossy(&symbols).into_owned();
    let first = symbols.lines().find(|line| line.ends_with(" first"));
    let first = first.and_then(|line| line.split(' ').next());
    let first = u64::from_str_radix(first.expect("it is there"), 16).expect("an address");
    let name_at = |offset: u64| {
        const BASE: u64 = 0x7f00_0000_0000;
        let dump = format!(
            "heap_v2/1\n  t*: 1: 1024 [0: 0]\n@ {:#x}\n  t*: 1: 1024 [0: 0]\n\nMAPPED_LIBRARIES:\n\
             {:x}-{:x} r-xp 00001000 08:01 1 {}\n",
            BASE + first + offset + 1,
            BASE + 0x1000,
            BASE + 0x2000,
            path("libodd.so")
        );
        let mut options = Options {
            format: Format::Collapsed,
            ..Options::default()
        };
        options.origin_rules.flat = true;
        let sources = Sources::for_process(None);
        let report = report_on(dump.as_bytes(), None, Some(&sources), &options);
        let text = String::from_utf8(report.expect("it is a good dump").0).expect("it is text");
        text.rsplit_once(' ').expect("a line").0.to_owned()
    };
    assert_eq!(name_at(2), "first");
    assert_eq!(name_at(6), "first", "a label in a function is a part of it");
    assert_eq!(name_at(10), "sized");
    assert!(name_at(14).starts_with("libodd.so+0x"), "{}", name_at(14));
    assert_eq!(name_at(18), "caf\u{fffd}");
    assert_eq!(name_at(22), "last");
    for offset in [26, 30] {
        let name = name_at(offset);
        assert!(name.starts_with("libodd.so+0x"), "{offset}: {name}");
    }
}
