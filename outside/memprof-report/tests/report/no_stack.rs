//! Samples for which the allocator found no stack are shown and counted like others.

use memprof_report::{Format, Options};

use crate::support::report_on;

const DUMP: &str = "heap_v2/1048576\n  t*: 2: 4194304 [0: 0]\n@\n  t*: 1: 1048576 [0: 0]\n@ 0x401010 0x402020\n  \
                    t*: 1: 3145728 [0: 0]\n\nMAPPED_LIBRARIES:\n00400000-00500000 r-xp 00000000 08:01 12 /srv/app\n";

fn rendered(dump: &str, format: Format) -> (String, Vec<String>) {
    let options = Options {
        format,
        ..Options::default()
    };
    let (out, notes) = report_on(dump.as_bytes(), None, None, &options).expect("it is whole");
    (String::from_utf8_lossy(&out).into_owned(), notes)
}

#[test]
fn samples_without_stack_are_in_every_format() {
    for (format, expected) in [
        (Format::Text, "[no stack]"),
        (Format::Tree, "[no stack]"),
        (Format::Collapsed, "[no stack] 1658823\n"),
        (Format::Flamegraph, "[no stack] ("),
        (Format::Dot, "[no stack]"),
        (Format::Json, "[no stack]"),
        (Format::Html, "[no stack]"),
        (Format::Jeprof, "0x7ffffffffffffffe [no stack]\n"),
    ] {
        let (out, notes) = rendered(DUMP, format);
        assert!(out.contains(expected), "{format:?}: {out}");
        let share = "1.58MiB (33.4 %) have no stack, row [no stack]";
        assert!(
            notes.iter().any(|note| note.starts_with(share)),
            "{notes:?}"
        );
    }
}

#[test]
fn profile_of_only_samples_without_stack_is_drawn() {
    let dump = "heap profile: 1: 64 [1: 64] @ heapprofile\n1: 64 [1: 64] @\n\nMAPPED_LIBRARIES:\n";
    let (out, _) = rendered(dump, Format::Flamegraph);
    assert!(out.contains("[no stack] (64 bytes"), "{out}");
    let (out, _) = rendered(dump, Format::Collapsed);
    assert_eq!(out, "[no stack] 64\n");
}
