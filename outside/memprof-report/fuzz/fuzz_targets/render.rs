//! Renders arbitrary bytes in every format: yields a report without control characters, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memprof_report::{Format, Input, Limits, Options, write_report};

const TEXT: [Format; 9] = [
    Format::Text,
    Format::Tree,
    Format::Collapsed,
    Format::Flamegraph,
    Format::Html,
    Format::View,
    Format::Dot,
    Format::Jeprof,
    Format::Json,
];

fuzz_target!(|bytes: &[u8]| {
    for format in TEXT.into_iter().chain([Format::Pprof]) {
        let limits = Limits {
            bytes: 1 << 20,
            ..Limits::default()
        };
        let options = Options {
            format,
            limits,
            ..Options::default()
        };
        let mut bytes = bytes;
        let input = Input {
            name: "fuzz",
            bytes: &mut bytes,
        };
        let mut out = Vec::new();
        let written = write_report(input, None, &[], &options, &|_, _| {}, &mut out);
        if written.is_ok() && format != Format::Pprof {
            let text = str::from_utf8(&out).expect("text is UTF-8");
            assert!(
                !text.contains(|c: char| c.is_control() && c != '\n' && c != '\t'),
                "{format:?}"
            );
        }
    }
});
