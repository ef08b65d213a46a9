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
use crate::pprof::{origin_comments, proto};
use crate::profile::sample_types::ValueType;

/// Prefers speed to size: most such files are read once and deleted.
const COMPRESSION: Compression = Compression::fast();

/// Writes the profile, gzip-compressed, with the samples of the base as negative values.
pub(super) fn write(input: &RenderInput<'_>, options: &Options, out: &mut dyn Write) -> Result<()> {
    let mut encoder = Encoder::new(GzBuilder::new().write(out, COMPRESSION));
    let profile = &input.profile.profile;
    let base_types = input.base.map(|base| base.profile.columns());
    // A type that only one of the two has is no difference.
    let is_in_base = |value_type: &ValueType| {
        let mut types = base_types.iter().flatten().map(|(_, base)| base);
        base_types.is_none() || types.any(|base| base.is_same(value_type))
    };
    let types: Vec<ValueType> = profile
        .columns()
        .into_iter()
        .map(|(_, value_type)| value_type)
        .filter(is_in_base)
        .collect();
    for value_type in &types {
        let value_type = encoder.value_type(&value_type.written, value_type.unit.name());
        encoder.write_field(1, &value_type)?;
    }
    encoder.write_samples(input.profile, &types, 1)?;
    if let Some(base) = input.base {
        encoder.write_samples(base, &types, -1)?;
    }
    let tail = proto::Profile {
        time_nanos: match profile.pprof.time_nanos {
            0 => options.time_nanos,
            known => known,
        },
        duration_nanos: profile.pprof.duration_nanos,
        period_type: Some(encoder.value_type("space", "bytes")),
        period: profile
            .interval
            .map_or(0, |interval| i64::try_from(interval).unwrap_or(i64::MAX)),
        comment: comments(input)
            .iter()
            .map(|comment| encoder.string(comment))
            .collect(),
        default_sample_type: encoder.string(&profile.value_type(options.sample_type).written),
        ..proto::Profile::default()
    };
    encoder.finish(&tail)
}

/// Comments of the profile: those of a pprof profile, else memprof's version, and `KEY: VALUE` for each part of the
/// origin that is known.
fn comments(input: &RenderInput<'_>) -> Vec<String> {
    let profile = &input.profile.profile;
    if profile.value_types.is_some() {
        let base = input.base_name.iter().map(|base| format!("base: {base}"));
        return profile.pprof.comments.iter().cloned().chain(base).collect();
    }
    let mut comments = origin_comments(&profile.origin);
    let mut add = |key: &str, value: Option<String>| {
        comments.extend(value.map(|value| format!("{key}: {value}")));
    };
    add(
        "estimated, bytes per sample",
        profile.interval.map(|interval| interval.to_string()),
    );
    add("base", input.base_name.clone());
    comments
}
