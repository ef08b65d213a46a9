//! `profile.proto` in gzip. A base's samples are added with negative values, as `pprof -diff_base` does.
//!
//! Messages are written as they are made: the profile is never in memory a second time.

mod encoder;

use std::io::Write;

use flate2::{Compression, GzBuilder};

use self::encoder::Encoder;
use super::RenderInput;
use crate::error::Result;
use crate::options::Options;
use crate::pprof::proto;
use crate::profile::SampleType;

/// Speed before size: most such files are read once and thrown away.
const LEVEL: Compression = Compression::fast();

pub(super) fn write(
    subject: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let mut encoder = Encoder::new(GzBuilder::new().write(out, LEVEL));
    let profile = &subject.profile.profile;
    let has_alloc = profile.has_alloc || subject.base.is_some_and(|base| base.profile.has_alloc);
    let types: Vec<SampleType> = SampleType::ALL
        .into_iter()
        .filter(|t| has_alloc || !t.is_alloc())
        .collect();
    for sample_type in &types {
        let value_type = encoder.value_type(sample_type.name(), sample_type.unit());
        encoder.put(1, &value_type)?;
    }
    encoder.side(subject.profile, &types, 1)?;
    if let Some(base) = subject.base {
        encoder.side(base, &types, -1)?;
    }
    let tail = proto::Profile {
        time_nanos: options.time_nanos,
        period_type: Some(encoder.value_type("space", "bytes")),
        period: profile
            .interval
            .map_or(0, |interval| i64::try_from(interval).unwrap_or(i64::MAX)),
        comment: comments(subject)
            .iter()
            .map(|comment| encoder.string(comment))
            .collect(),
        default_sample_type: encoder.string(options.sample_type.name()),
        ..proto::Profile::default()
    };
    encoder.finish(&tail)
}

fn comments(subject: &RenderInput<'_>) -> Vec<String> {
    let profile = &subject.profile.profile;
    let origin = &profile.origin;
    let mut comments = vec![concat!("memprof ", env!("CARGO_PKG_VERSION")).to_owned()];
    let mut add = |key: &str, value: Option<String>| {
        comments.extend(value.map(|value| format!("{key}: {value}")));
    };
    add("host", origin.host.clone());
    add("pid", origin.pid.map(|pid| pid.to_string()));
    add("machine", origin.machine.clone());
    add("allocator", origin.allocator.clone());
    add("active-since", origin.active_since.clone());
    add("only memory allocated since", origin.sampling_since.clone());
    add("taken", origin.taken.clone());
    add(
        "estimated, bytes per sample",
        profile.interval.map(|interval| interval.to_string()),
    );
    add("base", subject.base_name.clone());
    comments
}
