//! What is left out of a report: memprof's own.

use memprof_report::{Blame, Format, Options};

use crate::support::report_on;

const DUMP: &str = "--- symbol\nbinary=/usr/bin/server\n0x0000000000001fff serve\n\
    0x0000000000002fff memprof_host::control::listen\n0x0000000000011fff dump\n---\n--- heap\n\
    heap_v2/1\n  t*: 4: 4096 [0: 0]\n  t0: 4: 4096 [0: 0]\n\
    @ 0x2000\n  t*: 1: 1024 [0: 0]\n  t0: 1: 1024 [0: 0]\n\
    @ 0x3000\n  t*: 1: 1024 [0: 0]\n  t0: 1: 1024 [0: 0]\n\
    @ 0x12000 0x2000\n  t*: 2: 2048 [0: 0]\n  t0: 2: 2048 [0: 0]\n\nMAPPED_LIBRARIES:\n\
    00001000-00008000 r-xp 00000000 fe:00 1 /usr/bin/server\n\
    00010000-00018000 r-xp 00000000 fe:00 1 /opt/plugin.so\n";

const NOTE: &str = "3.00KiB of memprof's own left out; --flat shows it";

fn check(image: &str, options: &Options, total: &str, notes: &[&str]) {
    let dump = format!("{DUMP}{image}");
    let (out, found) = report_on(dump.as_bytes(), None, None, options).expect("it is a good dump");
    let out = String::from_utf8(out).expect("it is text");
    assert!(out.starts_with(total), "{out}");
    assert_eq!(found, notes);
}

#[test]
fn what_memprof_holds_is_no_row() {
    let image = "# memprof-image: /opt/plugin.so\n";
    let default = Options::default();
    check(image, &default, "inuse_space: 1024 bytes", &[NOTE]);
    let without = "1.00KiB of memprof's own left out; --flat shows it";
    check("", &default, "inuse_space: 3072 bytes", &[without]);
    let flat = Options {
        blame: Blame {
            flat: true,
            ..Blame::default()
        },
        ..Options::default()
    };
    check(image, &flat, "inuse_space: 4096 bytes", &[]);
    let collapsed = Options {
        format: Format::Collapsed,
        ..Options::default()
    };
    check(image, &collapsed, "memprof_host::control::listen 1024", &[]);
}
