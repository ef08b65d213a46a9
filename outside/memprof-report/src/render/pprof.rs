//! Writes a gzip-compressed `profile.proto`. The samples of a base are added with negative values, as by `pprof
//! -diff_base`.
//!
//! Messages are written as they are encoded, so that the profile is not in memory a second time.

mod encoder;

use std::io::Write;

use flate2::{Compression, GzBuilder};

use self::encoder::Encoder;
use super::RenderInput;
use crate::error::Result;
use crate::options::Options;
use crate::pprof::proto;
use crate::profile::SampleType;

/// Prefers speed to size: most such files are read once and deleted.
const COMPRESSION: Compression = Compression::fast();

/// Writes the profile, gzip-compressed, with the samples of the base as negative values.
pub(super) fn write(input: &RenderInput<'_>, options: &Options, out: &mut dyn Write) -> Result<()> {
    let mut encoder = Encoder::new(GzBuilder::new().write(out, COMPRESSION));
    let profile = &input.profile.profile;
    let has_alloc = profile.has_alloc || input.base.is_some_and(|base| base.profile.has_alloc);
    let types: Vec<SampleType> = SampleType::ALL
        .into_iter()
        .filter(|t| has_alloc || !t.is_alloc())
        .collect();
    for sample_type in &types {
        let value_type = encoder.value_type(sample_type.name(), sample_type.unit());
        encoder.write_field(1, &value_type)?;
    }
    encoder.write_samples(input.profile, &types, 1)?;
    if let Some(base) = input.base {
        encoder.write_samples(base, &types, -1)?;
    }
    let tail = proto::Profile {
        time_nanos: options.time_nanos,
        period_type: Some(encoder.value_type("space", "bytes")),
        period: profile
            .interval
            .map_or(0, |interval| i64::try_from(interval).unwrap_or(i64::MAX)),
        comment: comments(input)
            .iter()
            .map(|comment| encoder.string(comment))
            .collect(),
        default_sample_type: encoder.string(options.sample_type.name()),
        ..proto::Profile::default()
    };
    encoder.finish(&tail)
}

/// Comments of the profile: memprof's version, and `KEY: VALUE` for each part of the origin that is known.
fn comments(input: &RenderInput<'_>) -> Vec<String> {
    let profile = &input.profile.profile;
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
    add("base", input.base_name.clone());
    comments
}
