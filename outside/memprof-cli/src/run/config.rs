//! Keys of the plugin's config file that `memprof run` needs before the plugin reads it: a program is sampled from its
//! first allocation only if the environment says so.

use std::fs;
use std::path::Path;

use memprof_messages::parse_size;
use toml::{Table, Value};

/// Sampling from the start, as a config file sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StartConfig {
    pub(super) is_active: bool,
    /// log2 of the sample interval. `None` if the file sets none that is valid.
    pub(super) lg_sample: Option<u8>,
}

impl StartConfig {
    /// Reads a config file. A file that cannot be read or parsed sets nothing here; the plugin reports it. A FIFO can
    /// be read once, and is left to the plugin.
    pub(super) fn read(path: &Path) -> Self {
        let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
        let text = is_file.then(|| fs::read_to_string(path).ok()).flatten();
        Self::parse(&text.unwrap_or_default())
    }

    /// Parses the text of a config file. Settings that are invalid count as missing.
    fn parse(text: &str) -> Self {
        let table: Table = text.parse().unwrap_or_default();
        let lg_sample = match (table.get("lg_sample"), table.get("sample_interval")) {
            (Some(Value::Integer(lg)), None) => u8::try_from(*lg).ok(),
            (None, Some(Value::Integer(bytes))) => u64::try_from(*bytes).ok().and_then(exact_log2),
            (None, Some(Value::String(size))) => parse_size(size).and_then(exact_log2),
            _ => None,
        };
        Self {
            is_active: table.get("activate_at_start") == Some(&Value::Boolean(true)),
            // The plugin refuses other intervals.
            lg_sample: lg_sample.filter(|lg| (10..=24).contains(lg)),
        }
    }
}

/// Parses the value of `--sample-interval`, a power of two from 1 KiB to 16 MiB, to its log2. The error is a text with
/// an example.
pub(crate) fn parse_interval(text: &str) -> Result<u8, String> {
    let lg = parse_size(text)
        .and_then(exact_log2)
        .filter(|lg| (10..=24).contains(lg));
    lg.ok_or_else(|| "expected a power of two from 1KiB to 16MiB, e.g. 64KiB".to_owned())
}

/// Parses a sample interval for memprof's own sampler, a power of two from 1 byte to 16 MiB, to its log2. The error is
/// a text with an example.
pub(crate) fn parse_fine_interval(text: &str) -> Result<u8, String> {
    let bytes = text.parse().ok().or_else(|| parse_size(text));
    let lg = bytes.and_then(exact_log2).filter(|lg| *lg <= 24);
    lg.ok_or_else(|| "expected a power of two from 1 (bytes) to 16MiB, e.g. 64KiB".to_owned())
}

/// Returns log2 of a power of two. `None` for other numbers.
fn exact_log2(bytes: u64) -> Option<u8> {
    let is_power = bytes.is_power_of_two();
    is_power
        .then(|| bytes.trailing_zeros())
        .and_then(|lg| u8::try_from(lg).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_a_power_of_two() {
        let check = |text, expected| assert_eq!(parse_interval(text).ok(), expected, "{text}");
        check("64KiB", Some(16));
        check("1024", Some(10));
        check("16MiB", Some(24));
        check("100KiB", None);
        check("512", None);
        check("1GiB", None);
    }

    #[test]
    fn interval_of_own_sampler_may_be_one_byte() {
        let check = |text, expected| assert_eq!(parse_fine_interval(text).ok(), expected, "{text}");
        check("1", Some(0));
        check("512", Some(9));
        check("16MiB", Some(24));
        check("0", None);
        check("3", None);
        check("32MiB", None);
    }

    #[test]
    fn start_is_read_from_config() {
        let check = |text: &str, is_active: bool, lg_sample: Option<u8>| {
            let expected = StartConfig {
                is_active,
                lg_sample,
            };
            assert_eq!(StartConfig::parse(text), expected, "{text}");
        };
        check("", false, None);
        check("activate_at_start = true", true, None);
        check(
            "activate_at_start = true\nlg_sample = 13\n[keep]\ncount = 3",
            true,
            Some(13),
        );
        check(
            "sample_interval = \"8KiB\"\nactivate_at_start = true",
            true,
            Some(13),
        );
        check("sample_interval = 524288", false, Some(19));
        check("activate_at_start = false", false, None);
        // The plugin refuses these.
        check("activate_at_start = 1\nlg_sample = 99", false, None);
        check("sample_interval = \"500KiB\"", false, None);
        check("activate_at_start = true\nlg_sample =", false, None);
    }
}
