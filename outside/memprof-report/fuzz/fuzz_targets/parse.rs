//! Parses arbitrary bytes: yields a profile or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memprof_report::{Limits, parse_profile, unsample};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits {
        bytes: 1 << 24,
        ..Limits::default()
    };
    for force in [false, true] {
        if let Ok(mut profile) = parse_profile(&mut &bytes[..], &limits, force) {
            let before = profile.samples.len();
            if unsample(&mut profile).is_ok() {
                assert_eq!(profile.samples.len(), before);
                assert!(profile.totals().is_some());
            }
        }
    }
});
