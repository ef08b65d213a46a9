//! The plugin's TOML table, `[plugin.config]`.

mod amount;
mod value_types;
mod watch;

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use memprof_core::{
    RetentionPolicy, SampleInterval, Store, UnwinderSettings, WatchRule, default_dump_dir,
    is_secure_execution,
};
use memprof_messages::{SamplerChoice, UnwinderChoice};
use memprof_plugin_abi::{ErrorKind, Failure};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use amount::SizeOrShare;
use value_types::{IntervalText, LgSample, Period, WholeNumber};
use watch::WatchRules;

/// The settings of `[plugin.config]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Directory of the kept dumps; an absolute path.
    dump_dir: Option<PathBuf>,
    /// Whether to start sampling when the host starts.
    pub activate_at_start: bool,
    /// log2 of the sample interval, for memprof's sampler and for an activation at the start.
    lg_sample: Option<LgSample>,
    /// Sample interval as a size in the format of messages, such as `512KiB`. Excludes `lg_sample`.
    sample_interval: Option<IntervalText>,
    /// Sampler to use: `auto`, `memprof` or `allocator`.
    pub sampler: SamplerChoice,
    /// Walker for the stacks of samples: `auto`, `memprof` or `allocator`.
    unwinder: UnwinderChoice,
    /// Number of stacks per activation that both walkers walk for comparison.
    unwinder_checks: Option<NonZero<u64>>,
    /// Retention policy of the kept dumps.
    #[serde(deserialize_with = "parse_retention_policy")]
    keep: RetentionPolicy,
    /// Rules for automatic dumps.
    watch: WatchRules,
}

/// The table `[keep]`, as written in the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct KeepConfig {
    count: Option<WholeNumber>,
    /// Number of bytes, or a size such as `1GiB`.
    bytes: Option<SizeOrShare>,
    age: Option<Period>,
    keep_first: KeepFirst,
}

/// Number of first dumps to keep. `true` means 1, `false` means 0.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "keep_first is true, false or a number of dumps")]
enum KeepFirst {
    Switch(bool),
    Count(usize),
}

impl Default for KeepFirst {
    fn default() -> Self {
        Self::Switch(false)
    }
}

impl KeepConfig {
    /// Checks the values and converts them to a policy. An absent value gets its default.
    ///
    /// # Errors
    /// `InvalidArgument`: `count` is 0, `keep_first` is not below `count`, or `bytes` or `age` is malformed.
    fn to_policy(&self) -> Result<RetentionPolicy, Failure> {
        let default = RetentionPolicy::default();
        let count = self
            .count
            .as_ref()
            .map_or(default.count, WholeNumber::number);
        if count == 0 {
            return Err(config_failure("keep.count must be at least 1".to_owned()));
        }
        let first = match self.keep_first {
            KeepFirst::Switch(switch) => usize::from(switch),
            KeepFirst::Count(count) => count,
        };
        if first >= count {
            return Err(config_failure(format!(
                "keep.keep_first = {first} leaves no place for a new dump: it must be below \
                 keep.count, which is {count}"
            )));
        }
        Ok(RetentionPolicy {
            count,
            bytes: match &self.bytes {
                Some(amount) => amount
                    .size_or_bare_number("keep.bytes")
                    .map_err(config_failure)?,
                None => default.bytes,
            },
            age: self
                .age
                .as_ref()
                .map(Period::text)
                .map(parse_keep_age)
                .transpose()?,
            first,
        })
    }
}

/// Deserializes the table `[keep]`, and converts it to a retention policy. Fails if a key is unknown or a value is
/// invalid.
fn parse_retention_policy<'de, D: Deserializer<'de>>(
    table: D,
) -> Result<RetentionPolicy, D::Error> {
    KeepConfig::deserialize(table)?
        .to_policy()
        .map_err(D::Error::custom)
}

/// Parses `keep.age`, a duration above 0.
///
/// # Errors
/// `InvalidArgument`: the text is not a duration, or is 0.
fn parse_keep_age(text: &str) -> Result<Duration, Failure> {
    match humantime::parse_duration(text) {
        Ok(age) if !age.is_zero() => Ok(age),
        _ => Err(config_failure(format!(
            "invalid keep.age = {text:?}: expected a duration, e.g. \"12h\" or \"7d\""
        ))),
    }
}

impl Config {
    /// Parses and checks the TOML text of the table.
    ///
    /// # Errors
    /// `InvalidArgument`: the text is not TOML, a key is unknown, or a value is invalid; the message has its line and
    /// column. Also if `dump_dir` is not an absolute path, or if both `lg_sample` and `sample_interval` are given.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let config: Self =
            toml::from_str(text).map_err(|error| config_failure(error.to_string()))?;
        if let Some(relative) = config.dump_dir.as_ref().filter(|path| !path.is_absolute()) {
            return Err(config_failure(format!(
                "dump_dir {relative:?} is not an absolute path"
            )));
        }
        if config.lg_sample.is_some() && config.sample_interval.is_some() {
            return Err(config_failure(
                "lg_sample and sample_interval are the same setting: leave one out".to_owned(),
            ));
        }
        Ok(config)
    }

    /// Returns the sample interval: the value of `sample_interval`, or else the power of two of `lg_sample`. `None` if
    /// neither is configured.
    ///
    /// # Errors
    /// `InvalidArgument`: the configured value is out of range, or not a size.
    pub(crate) fn sample_interval(&self) -> memprof_core::Result<Option<SampleInterval>> {
        let number = self.lg_sample.as_ref().map(LgSample::number);
        match &self.sample_interval {
            Some(interval) => SampleInterval::parse(&interval.text()).map(Some),
            None => number.map(SampleInterval::from_lg).transpose(),
        }
    }

    /// Returns the watch rules, in the order of the configuration.
    pub(crate) fn watch_rules(&self) -> &[WatchRule] {
        &self.watch.0
    }

    /// Returns the settings of the stack walks. If `unwinder_checks` is absent, it gets its default.
    pub(crate) fn unwinder_settings(&self) -> UnwinderSettings {
        let default = UnwinderSettings::default();
        UnwinderSettings {
            choice: self.unwinder,
            compare: self.unwinder_checks.map_or(default.compare, NonZero::get),
        }
    }

    /// Returns the store of dumps in the configured directory, or in this program's default directory if none is
    /// configured. If the default directory is not writable but `/tmp/memprof-UID-PROGRAM` is, the store is there.
    pub(crate) fn dump_store(&self, program: &str) -> Store {
        let store_in = |directory| Store::new(directory, self.keep);
        if let Some(directory) = &self.dump_dir {
            return store_in(directory.clone());
        }
        let uid = rustix::process::geteuid();
        let store = store_in(default_dump_dir(program, uid.is_root(), |name| {
            // After a change of uid, the environment belongs to another user.
            std::env::var_os(name).filter(|_| !is_secure_execution())
        }));
        // The default directory may not be writable: a daemon that dropped root privileges still has root's
        // environment.
        let fallback = store_in(format!("/tmp/memprof-{}-{program}", uid.as_raw()).into());
        match (store.require_writable(), fallback.require_writable()) {
            (Err(_), Ok(())) => fallback,
            _ => store,
        }
    }
}

/// Creates the failure, of kind `InvalidArgument` and without a remedy, for an invalid configuration.
fn config_failure(message: String) -> Failure {
    Failure::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_key_and_position() {
        let check = |text: &str, expected: &str| {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("dump_dirr = \"/x\"", "unknown field `dump_dirr`");
        check("\n\nactivate_at_start = 1", "line 3, column 21");
        check("dump_dir = \"x\"", "dump_dir \"x\" is not an absolute path");
        check("unwinder = \"fast\"", "unknown variant `fast`");
        check("sampler = \"none\"", "unknown variant `none`");
        check("unwinder_checks = 0", "nonzero");
        check("[keep]\ncount = 0", "keep.count must be at least 1");
        check("[keep]\ndays = 1", "unknown field `days`");
        check(
            "[keep]\nage = \"7\"",
            "invalid keep.age = \"7\": expected a duration",
        );
        check(
            "[keep]\nage = \"0s\"",
            "invalid keep.age = \"0s\": expected a duration",
        );
        check("[keep]\nage = 7", "a duration in quotes and with its unit");
        check("[keep]\ncount = -3", "line 2, column 9");
        check("[keep]\ncount = -3", "expected a whole number, not below 0");
        check(
            "[keep]\ncount = \"3\"",
            "expected a whole number, not below 0",
        );
        check("lg_sample = \"512KiB\"", "line 1, column 13");
        check("lg_sample = \"512KiB\"", "from 10 (1KiB) to 24 (16MiB)");
        check("lg_sample = -1", "19 stands for 512KiB");
        check("sample_interval = true", "sample_interval = \"512KiB\"");
        let both = "lg_sample = 19\nsample_interval = \"512KiB\"";
        check(both, "lg_sample and sample_interval are the same setting");
        check(
            "[keep]\nbytes = \"much\"",
            "keep.bytes = \"much\" is not a size",
        );
        check("[keep]\nbytes = -1", "keep.bytes = -1 is below 0");
        check("[keep]\nkeep_first = \"x\"", "true, false or a number");
        check(
            "[keep]\ncount = 3\nkeep_first = 3",
            "must be below keep.count, which is 3",
        );
    }

    #[test]
    fn retention_policy_is_configurable() {
        let check = |text: &str, expected: RetentionPolicy| {
            assert_eq!(Config::parse(text).unwrap().keep, expected, "{text}");
        };
        let first = |first| RetentionPolicy {
            first,
            ..RetentionPolicy::default()
        };
        check("", first(0));
        check("[keep]\nkeep_first = false", first(0));
        check("[keep]\nkeep_first = true", first(1));
        check("[keep]\nkeep_first = 3", first(3));
        for bytes in ["1048576", "\"1048576\"", "\"1MiB\"", "\"1 MB\""] {
            let kept = RetentionPolicy {
                bytes: 1 << 20,
                ..first(0)
            };
            check(&format!("[keep]\nbytes = {bytes}"), kept);
        }
        let week = Some(Duration::from_secs(7 * 24 * 60 * 60));
        check(
            "[keep]\nage = \"7d\"",
            RetentionPolicy {
                age: week,
                ..first(0)
            },
        );
    }

    /// Valid keys of a table, as the parser lists them in the error about an unknown one.
    fn keys(table: &str) -> Vec<String> {
        let error = Config::parse(&format!("{table}no_such_key = 1")).unwrap_err();
        let (_, listed) = error.message.split_once("expected one of ").unwrap();
        let keys = listed.split('`').skip(1).step_by(2);
        keys.map(str::to_owned).collect()
    }

    #[test]
    fn reference_contains_every_key_and_is_valid() {
        let reference = include_str!("../../../CONFIGURATION.md");
        let (_, plugins) = reference.split_once("## The plugin's keys").unwrap();
        let block = plugins
            .split("```")
            .find_map(|block| block.strip_prefix("toml\n"));
        let block = block.unwrap();
        assert_eq!(Config::parse(block).unwrap().watch_rules().len(), 5);
        for table in ["", "[keep]\n", "[[watch]]\n"] {
            let keys = keys(table);
            assert!(keys.len() > 3, "{keys:?}");
            for key in keys
                .iter()
                .filter(|key| !["keep", "watch"].contains(&key.as_str()))
            {
                // Of two keys for one setting, the second is in a comment.
                let lines = ["", "# "].map(|start| format!("\n{start}{key} = "));
                let has = |line: &String| format!("\n{block}").contains(line);
                assert!(lines.iter().any(has), "{table} {key}");
            }
        }
    }

    #[test]
    fn configured_directory_is_used() {
        let config = Config::parse("dump_dir = \"/var/dumps\"\n[keep]\ncount = 3").unwrap();
        assert_eq!(
            config.dump_store("web").directory(),
            std::path::Path::new("/var/dumps")
        );
    }

    #[test]
    fn sample_interval_is_that_of_messages() {
        let check = |text: &str, expected: Option<u64>| {
            let interval = Config::parse(text).unwrap().sample_interval();
            let interval = interval.ok().flatten().map(SampleInterval::bytes);
            assert_eq!(interval, expected, "{text}");
        };
        check("", None);
        check("lg_sample = 13", Some(8192));
        check("sample_interval = \"512KiB\"", Some(512 << 10));
        check("sample_interval = \"8 KiB\"", Some(8192));
        check("sample_interval = 8192", Some(8192));
        // Refused when it is used, like an `lg_sample` out of range.
        check("sample_interval = \"500KiB\"", None);
        check("sample_interval = 100", None);
    }
}
