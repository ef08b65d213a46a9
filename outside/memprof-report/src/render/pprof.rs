//! Writes a gzip-compressed `profile.proto`. With a base, its values are the differences, as those of a delta profile
//! of Go's `net/http/pprof`.
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
use crate::profile::Profile;
use crate::profile::sample_types::ValueType;

/// Prefers speed to size: most such files are read once and deleted.
const COMPRESSION: Compression = Compression::fast();

/// Writes the profile as a gzip-compressed `profile.proto`. If there is a base, writes the differences, and leaves out
/// sample types that only one of the two profiles has.
pub(super) fn write_pprof(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let mut encoder = Encoder::new(GzBuilder::new().write(out, COMPRESSION));
    let profile = &input.profile.profile;
    let base_types = input.base.map(|base| base.profile.columns());
    // A type that only one of the two has is left out: it has no difference.
    let is_in_base = |value_type: &ValueType| {
        let mut types = base_types.iter().flatten().map(|(_, base)| base);
        base_types.is_none() || types.any(|base| base.is_same_quantity(value_type))
    };
    let types: Vec<ValueType> = profile
        .columns()
        .into_iter()
        .map(|(_, value_type)| value_type)
        .filter(is_in_base)
        .collect();
    for value_type in &types {
        let value_type = encoder.intern_value_type(&value_type.written, value_type.unit.name());
        // Field 1 of `Profile` in profile.proto: `sample_type`.
        encoder.write_field(1, &value_type)?;
    }
    match input.base {
        None => encoder.write_samples(input.profile, &types)?,
        Some(base) => encoder.write_differences(input.profile, base, &types)?,
    }
    let time_nanos = profile_time_nanos(profile, options.time_nanos);
    let tail = proto::Profile {
        time_nanos,
        duration_nanos: match input.base {
            None => profile.pprof.duration_nanos,
            Some(base) => match profile_time_nanos(&base.profile, options.base_time_nanos) {
                0 => 0,
                base => time_nanos.saturating_sub(base).max(0),
            },
        },
        period_type: Some(encoder.intern_value_type("space", "bytes")),
        period: profile
            .interval
            .map_or(0, |interval| i64::try_from(interval).unwrap_or(i64::MAX)),
        comment: profile_comments(input)
            .iter()
            .map(|comment| encoder.intern_string(comment))
            .collect(),
        default_sample_type: encoder
            .intern_string(&profile.value_type(options.sample_type).written),
        ..proto::Profile::default()
    };
    encoder.finish(&tail)
}

/// Returns the time at which a profile was taken, in nanoseconds since 1970: that of the pprof file from which it was
/// read or, if this has none, `known`; 0 if both are unknown.
fn profile_time_nanos(profile: &Profile, known: i64) -> i64 {
    match profile.pprof.time_nanos {
        0 => known,
        own => own,
    }
}

/// Returns the comments to write: those of the pprof file from which the profile was read, else memprof's version, and
/// `KEY: VALUE` for each known part of the origin and the sample interval. The name of the base comes last, if there is
/// one.
fn profile_comments(input: &RenderInput<'_>) -> Vec<String> {
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
