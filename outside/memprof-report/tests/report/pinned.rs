//! Reports on pinned slabs.

use memprof_report::{Format, Options, SampleType};

use crate::support::report_on;

const DUMP: &str = "--- symbol\nbinary=/usr/bin/server\n0x0000000000001fff open_session\n\
    0x0000000000002fff serve\n---\n--- heap\n\
    heap profile:     40:     9000 [    40:     9000] @ growth\n\
    \x20   40:     8000 [    40:     8000] @ 0x2000 0x3000\n\
    \x20    1:     1000 [     1:     1000] @ 0x100\n\n\
    MAPPED_LIBRARIES:\n00001000-00008000 r-xp 00000000 fe:00 1 /usr/bin/server\n\
    # kind: pinned\n# sampling since: 2026-11-21T11:13:00Z\n# samples: 90\n# lost samples: 0\n";

fn check(format: Format, expected: &[&str]) {
    let options = Options {
        format,
        ..Options::default()
    };
    let (out, notes) = report_on(DUMP.as_bytes(), None, None, &options).expect("it is a good dump");
    let out = String::from_utf8_lossy(&out);
    for text in expected {
        assert!(out.contains(text), "{format:?}: {out}");
    }
    let unknown = "1000B are not attributable: their size classes have too few samples to show who holds what; sample \
                   more finely, before the program allocates it: activate sampler=memprof with a smaller sample_interval";
    assert_eq!(notes, [unknown]);
}

#[test]
fn pinned_profile_has_bytes_only() {
    for sample_type in [
        SampleType::InuseObjects,
        SampleType::AllocSpace,
        SampleType::AllocObjects,
    ] {
        let options = Options {
            sample_type,
            ..Options::default()
        };
        let error = report_on(DUMP.as_bytes(), None, None, &options).unwrap_err();
        let name = sample_type.name();
        let expected = format!("it has no {name}: a profile of pinned slabs has bytes only");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn shares_sum_to_allocators_count() {
    let heading = "pinned: 9000 bytes (8.79KiB), free beside live objects as the allocator counts it, shared out by \
                   samples, 40 samples in 2 stacks, only memory allocated since 2026-11-21T11:13:00Z\n";
    check(
        Format::Text,
        &[heading, "  open_session\n", "  [not attributable]\n"],
    );
    check(
        Format::Collapsed,
        &["serve;open_session 8000\n", "[not attributable] 1000\n"],
    );
    let open = "\"name\": \"open_session\",\n      \"own\": true,\n      \"flat\": 8000,\n      \"cum\": 8000,\n      \
                \"samples\": 40,\n      \"error\": 1265,";
    let unknown = "\"name\": \"[not attributable]\",\n      \"own\": true,\n      \"flat\": 1000,";
    check(Format::Json, &["\"pinned\": true,", open, unknown]);
    check(
        Format::View,
        &["\"by_cum\":false,\"pinned\":true,\"functions\":["],
    );
    check(
        Format::Jeprof,
        &[
            "0x00000000000000ff [not attributable]\n",
            "0: 1000 [0: 0] @ 0x00000000000000ff\n",
        ],
    );
}
