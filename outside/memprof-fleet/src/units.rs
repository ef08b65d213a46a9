//! Deserializers of durations and sizes in the configuration.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// Deserializes a duration from a text such as `90s` or `14d`. The error says what is wrong with the text.
pub(crate) fn deserialize_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text)
        .map_err(|error| serde::de::Error::custom(format!("{text:?} is not a duration: {error}")))
}

/// Deserializes a size in bytes from a text with a unit, such as `64MiB`. `K`, `KB` and `KiB` are all 1024 bytes, as in
/// the plugin's configuration. Fails without a unit, or if the size does not fit into 64 bits.
pub(crate) fn deserialize_size<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let invalid =
        || serde::de::Error::custom(format!("{text:?} is not a size, as 64MiB or 4GiB are"));
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().map_err(|_| invalid())?;
    let shift = match text[digits.len()..].trim() {
        "B" => 0,
        "K" | "KB" | "KiB" => 10,
        "M" | "MB" | "MiB" => 20,
        "G" | "GB" | "GiB" => 30,
        "T" | "TB" | "TiB" => 40,
        _ => return Err(invalid()),
    };
    number.checked_mul(1 << shift).ok_or_else(invalid)
}
