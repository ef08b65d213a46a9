//! The probable origin of leaked objects, in the JSON and in the text.

use memprof_leaks::SampledOrigin;
use serde::Serialize;

/// Who allocated the sampled objects of a class and size.
#[derive(Serialize)]
pub(super) struct OriginOutput<'a> {
    /// Whether the first function probably allocated most of the others too.
    is_probable: bool,
    sampled: u64,
    functions: Vec<ShareOutput<'a>>,
}

/// A function with its number of samples.
#[derive(Serialize)]
struct ShareOutput<'a> {
    function: &'a str,
    sampled: u64,
}

impl<'a> OriginOutput<'a> {
    pub(super) fn new(origin: &'a SampledOrigin) -> Self {
        let functions = origin.functions.iter().map(|share| ShareOutput {
            function: &share.function,
            sampled: share.sampled,
        });
        Self {
            is_probable: origin.is_probable,
            sampled: origin.sampled,
            functions: functions.collect(),
        }
    }

    /// Returns one line: `probably by lose_report (16 of 16 sampled)`, or each function's share of the samples if no
    /// function probably allocated most of the objects.
    pub(super) fn text(&self) -> String {
        match self.functions.as_slice() {
            [first, ..] if self.is_probable => format!(
                "probably by {} ({} of {} sampled)",
                first.function, first.sampled, self.sampled
            ),
            functions => {
                let shares = functions.iter().map(|share| {
                    format!(
                        "{} of {} by {}",
                        share.sampled, self.sampled, share.function
                    )
                });
                let shares: Vec<_> = shares.collect();
                format!(
                    "sampled ones of that size: {}; these may be older than the samples, or another's",
                    shares.join(", ")
                )
            }
        }
    }
}
