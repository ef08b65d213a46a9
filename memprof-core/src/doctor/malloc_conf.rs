//! Parses jemalloc's options as jemalloc does (jemalloc 5.3, `malloc_conf_next` and `malloc_conf_init_helper`), and
//! finds those that it ignores. jemalloc itself at most writes a line to standard error, which often goes unseen.

use std::ops::RangeInclusive;

/// One source of options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfSource {
    /// Name, such as `MALLOC_CONF`, `/etc/malloc.conf` or `the program's malloc_conf`.
    pub name: String,
    /// Options, such as `prof:true,lg_prof_sample:12`.
    pub text: String,
    /// Keys in the text that this jemalloc has although [`OPTIONS`] lacks them.
    pub newer: Vec<String>,
}

/// Type and accepted values of an option.
#[derive(Debug)]
enum OptionType {
    Bool,
    Number(RangeInclusive<i128>),
    OneOf(&'static [&'static str]),
    /// Texts and lists. Their values are not checked.
    Text,
}

use OptionType::{Bool, Number, OneOf, Text};

/// Any number. jemalloc clips most values to its range instead of ignoring them.
const ANY_NUMBER: OptionType = Number(0..=u64::MAX as i128);
/// Any number, or -1 for never.
const NUMBER_OR_NEVER: OptionType = Number(-1..=i64::MAX as i128);

/// All options of jemalloc 5.2 to 5.3.1.
const OPTIONS: &[(&str, OptionType)] = &[
    ("abort", Bool),
    ("abort_conf", Bool),
    ("background_thread", Bool),
    ("bin_shards", Text),
    ("cache_oblivious", Bool),
    ("calloc_madvise_threshold", ANY_NUMBER),
    ("confirm_conf", Bool),
    ("debug_double_free_max_scan", ANY_NUMBER),
    ("dirty_decay_ms", NUMBER_OR_NEVER),
    ("disable_large_size_classes", Bool),
    ("dss", OneOf(&["disabled", "primary", "secondary"])),
    ("experimental_hpa_enforce_hugify", Bool),
    ("experimental_hpa_max_purge_nhp", NUMBER_OR_NEVER),
    ("experimental_hpa_start_huge_if_thp_always", Bool),
    ("experimental_infallible_new", Bool),
    ("experimental_tcache_gc", Bool),
    ("hpa", Bool),
    ("hpa_dirty_mult", Text),
    ("hpa_hugification_threshold", ANY_NUMBER),
    ("hpa_hugification_threshold_ratio", Text),
    ("hpa_hugify_delay_ms", ANY_NUMBER),
    ("hpa_hugify_style", Text),
    ("hpa_hugify_sync", Bool),
    ("hpa_min_purge_delay_ms", ANY_NUMBER),
    ("hpa_min_purge_interval_ms", ANY_NUMBER),
    ("hpa_purge_threshold", ANY_NUMBER),
    ("hpa_purge_threshold_ratio", Text),
    ("hpa_sec_batch_fill_extra", ANY_NUMBER),
    ("hpa_sec_bytes_after_flush", ANY_NUMBER),
    ("hpa_sec_max_alloc", ANY_NUMBER),
    ("hpa_sec_max_bytes", ANY_NUMBER),
    ("hpa_sec_nshards", ANY_NUMBER),
    ("hpa_slab_max_alloc", ANY_NUMBER),
    ("huge_arena_pac_thp", Bool),
    ("junk", OneOf(&["true", "false", "alloc", "free"])),
    ("lg_extent_max_active_fit", Number(0..=64)),
    ("lg_prof_interval", Number(-1..=63)),
    ("lg_prof_sample", ANY_NUMBER),
    ("lg_san_uaf_align", NUMBER_OR_NEVER),
    ("lg_tcache_flush_large_div", ANY_NUMBER),
    ("lg_tcache_flush_small_div", ANY_NUMBER),
    ("lg_tcache_max", ANY_NUMBER),
    ("lg_tcache_nslots_mul", Number(-16..=16)),
    ("log", Text),
    ("max_background_threads", ANY_NUMBER),
    ("metadata_thp", OneOf(&["disabled", "auto", "always"])),
    ("muzzy_decay_ms", NUMBER_OR_NEVER),
    ("mutex_max_spin", NUMBER_OR_NEVER),
    ("narenas", Text),
    ("narenas_ratio", Text),
    ("oversize_threshold", ANY_NUMBER),
    ("percpu_arena", OneOf(&["disabled", "percpu", "phycpu"])),
    ("process_madvise_max_batch", ANY_NUMBER),
    ("prof", Bool),
    ("prof_accum", Bool),
    ("prof_active", Bool),
    ("prof_bt_max", ANY_NUMBER),
    ("prof_final", Bool),
    ("prof_gdump", Bool),
    ("prof_leak", Bool),
    ("prof_leak_error", Bool),
    ("prof_log", Bool),
    ("prof_pid_namespace", Bool),
    // A prefix that swallowed further options is a separate finding (`swallowed_option`).
    ("prof_prefix", Text),
    ("prof_recent_alloc_max", NUMBER_OR_NEVER),
    ("prof_stats", Bool),
    ("prof_sys_thread_name", Bool),
    ("prof_thread_active_init", Bool),
    ("prof_time_resolution", OneOf(&["default", "high"])),
    ("prof_unbias", Bool),
    ("retain", Bool),
    ("san_guard_large", ANY_NUMBER),
    ("san_guard_small", ANY_NUMBER),
    ("slab_sizes", Text),
    ("stats_interval", NUMBER_OR_NEVER),
    ("stats_interval_opts", Text),
    ("stats_print", Bool),
    ("stats_print_opts", Text),
    ("tcache", Bool),
    ("tcache_gc_delay_bytes", ANY_NUMBER),
    ("tcache_gc_incr_bytes", ANY_NUMBER),
    ("tcache_max", ANY_NUMBER),
    ("tcache_ncached_max", Text),
    ("tcache_nslots_large", ANY_NUMBER),
    ("tcache_nslots_small_max", ANY_NUMBER),
    ("tcache_nslots_small_min", ANY_NUMBER),
    ("thp", OneOf(&["default", "always", "never"])),
    ("trust_madvise", Bool),
    ("utrace", Bool),
    ("xmalloc", Bool),
    ("zero", Bool),
    ("zero_realloc", OneOf(&["alloc", "free", "abort"])),
];

/// Describes each option of a source that jemalloc ignores, with the reason: the option is malformed, unknown, has an
/// invalid value, or is overridden later in the same text.
pub(super) fn ignored_options(source: &ConfSource) -> Vec<String> {
    let mut faults = Vec::new();
    let mut applied: Vec<(&str, &str)> = Vec::new();
    let mut remaining = source.text.as_str();
    while !remaining.is_empty() {
        let end = remaining.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let Some(end) = end.filter(|end| remaining[*end..].starts_with(':')) else {
            faults.push(format!(
                "{remaining:?} and all behind it: {}",
                malformed_reason(remaining)
            ));
            // jemalloc stops reading at the first malformed option.
            break;
        };
        let key = &remaining[..end];
        let (value, next) = remaining[end + 1..]
            .split_once(',')
            .unwrap_or((&remaining[end + 1..], ""));
        remaining = next;
        let pair = format!("{key}:{value}");
        let known = OPTIONS.iter().find(|(name, _)| *name == key);
        let is_newer = || source.newer.iter().any(|newer| newer == key);
        match known {
            Some((_, values)) if !values.accepts(value) => {
                faults.push(format!("{pair:?}: {key} is {values}"));
            }
            None if !is_newer() => faults.push(format!("{pair:?}: {}", unknown_option_reason(key))),
            Some(_) | None => match applied.iter_mut().find(|(name, _)| *name == key) {
                Some((_, before)) if *before != value => {
                    faults.push(format!("\"{key}:{before}\": {pair:?} behind it counts"));
                    *before = value;
                }
                Some(_) => {}
                None => applied.push((key, value)),
            },
        }
    }
    faults
}

impl ConfSource {
    /// Whether the source is an environment variable (`MALLOC_CONF`, `_RJEM_MALLOC_CONF`).
    pub(super) fn is_environment(&self) -> bool {
        self.name.ends_with("MALLOC_CONF")
    }
}

/// Describes each option of `source` that the source `later` sets to another value.
pub(super) fn overridden_options(source: &ConfSource, later: &ConfSource) -> Vec<String> {
    let last = |text: &str, key: &str| {
        let mut pairs = text.rsplit(',').filter_map(|pair| pair.split_once(':'));
        pairs
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.to_owned())
    };
    let pairs = source
        .text
        .split(',')
        .filter_map(|pair| pair.split_once(':'));
    let overridden = pairs.filter_map(|(key, value)| {
        let other = last(&later.text, key).filter(|other| other != value)?;
        Some(format!(
            "\"{key}:{value}\": \"{key}:{other}\" in {} counts",
            later.name
        ))
    });
    overridden.collect()
}

/// Iterates over the keys of an option text, such as `prof:true,key:1`, that are not in [`OPTIONS`], the options that
/// memprof knows.
pub(super) fn unknown_keys(text: &str) -> impl Iterator<Item = &str> {
    let keys = text.split(',').filter_map(|pair| pair.split_once(':'));
    keys.map(|(key, _)| key)
        .filter(|key| !OPTIONS.iter().any(|(name, _)| name == key))
}

/// Explains why jemalloc stops reading at this text, which does not begin with `option:`.
fn malformed_reason(text: &str) -> &'static str {
    if text.starts_with(char::is_whitespace) {
        "no blank may stand before an option"
    } else if text
        .split(',')
        .next()
        .is_some_and(|pair| pair.contains('='))
    {
        "an option and its value are separated by a colon"
    } else {
        "it is not of the form option:value"
    }
}

/// Explains an unknown option. Suggests an existing option that contains all of its words.
fn unknown_option_reason(key: &str) -> String {
    let words: Vec<_> = key.split('_').collect();
    let has_all_words = |name: &str| {
        words
            .iter()
            .all(|word| name.split('_').any(|part| part == *word))
    };
    let similar = OPTIONS.iter().find(|(name, _)| has_all_words(name));
    match similar {
        Some((name, _)) => format!("jemalloc has no option {key}; it may be {name} that was meant"),
        None => format!("jemalloc has no option {key}"),
    }
}

impl OptionType {
    /// Whether jemalloc accepts this value, and does not ignore the option. If the option takes one of several words,
    /// the beginning of a word suffices.
    fn accepts(&self, value: &str) -> bool {
        match self {
            Bool => ["true", "false"].contains(&value),
            Number(range) => parse_number(value).is_some_and(|number| range.contains(&number)),
            // jemalloc compares only the characters that are given, so a prefix suffices.
            OneOf(words) => words.iter().any(|word| word.starts_with(value)),
            Text => true,
        }
    }
}

impl std::fmt::Display for OptionType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bool => f.write_str("true or false"),
            Number(range) if *range.end() < i128::from(i64::MAX) => {
                write!(f, "a number from {} to {}", range.start(), range.end())
            }
            Number(range) if *range.start() < 0 => f.write_str("a number, or -1 for never"),
            Number(_) => f.write_str("a number"),
            OneOf(words) => f.write_str(&words.join(", ")),
            Text => f.write_str("a text"),
        }
    }
}

/// Parses a number like strtoumax(3) with base 0: `12`, `0xc`, `014`, `-1`. `None` unless the whole text is a number of
/// 64 bits.
fn parse_number(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = digits.strip_prefix("0x").or(digits.strip_prefix("0X"));
    let octal = digits.strip_prefix('0').filter(|octal| !octal.is_empty());
    let (digits, base) = match (hexadecimal, octal) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (digits, 10),
    };
    // `from_str_radix` would accept a second sign.
    let is_signed_twice = digits.starts_with(['+', '-']);
    let number = u64::from_str_radix(digits, base).ok()?;
    (!is_signed_twice).then(|| sign * i128::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let source = ConfSource {
            text: text.to_owned(),
            newer: vec!["newer_option".to_owned()],
            ..ConfSource::default()
        };
        assert_eq!(ignored_options(&source), expected, "{text}");
    }

    #[test]
    fn applied_options_are_no_fault() {
        check("", &[]);
        check("prof:true,prof_active:false,lg_prof_sample:12", &[]);
        check("dirty_decay_ms:-1,muzzy_decay_ms:0x10,narenas:default", &[]);
        check("prof_prefix:/tmp/a b,newer_option:7", &[]);
        check("percpu_arena:phycpu,thp:always,junk:free", &[]);
        // A repeated option changes nothing, and jemalloc only complains about a comma at the end.
        check("prof:true,prof:true,", &[]);
    }

    #[test]
    fn unknown_key_names_similar_option() {
        check(
            "prof:true,lg_sample:12",
            &[
                "\"lg_sample:12\": jemalloc has no option lg_sample; it may be lg_prof_sample that was meant",
            ],
        );
        check("speed:9", &["\"speed:9\": jemalloc has no option speed"]);
        check(":1", &["\":1\": jemalloc has no option "]);
        assert_eq!(
            unknown_keys("prof:true,speed:9").collect::<Vec<_>>(),
            ["speed"]
        );
    }

    #[test]
    fn invalid_values_are_faults() {
        check("prof:1", &["\"prof:1\": prof is true or false"]);
        check("prof:True", &["\"prof:True\": prof is true or false"]);
        check("prof:true ", &["\"prof:true \": prof is true or false"]);
        check(
            "lg_prof_sample:19:prof:true",
            &["\"lg_prof_sample:19:prof:true\": lg_prof_sample is a number"],
        );
        check(
            "lg_prof_sample:",
            &["\"lg_prof_sample:\": lg_prof_sample is a number"],
        );
        check(
            "lg_prof_interval:64",
            &["\"lg_prof_interval:64\": lg_prof_interval is a number from -1 to 63"],
        );
        check(
            "dirty_decay_ms:10s",
            &["\"dirty_decay_ms:10s\": dirty_decay_ms is a number, or -1 for never"],
        );
        check("thp:on", &["\"thp:on\": thp is default, always, never"]);
    }

    #[test]
    fn malformed_option_ends_parsing() {
        check(
            "prof:true, prof_active:false,lg_prof_sample:12",
            &[
                "\" prof_active:false,lg_prof_sample:12\" and all behind it: no blank may stand before an option",
            ],
        );
        check(
            "prof=true,prof_active:false",
            &[
                "\"prof=true,prof_active:false\" and all behind it: an option and its value are separated by a colon",
            ],
        );
        check(
            "prof",
            &["\"prof\" and all behind it: it is not of the form option:value"],
        );
        check(
            "prof:true;prof_active:false",
            &["\"prof:true;prof_active:false\": prof is true or false"],
        );
    }

    #[test]
    fn last_of_equal_keys_applies() {
        check(
            "prof:false,prof:true,prof:false",
            &[
                "\"prof:false\": \"prof:true\" behind it counts",
                "\"prof:true\": \"prof:false\" behind it counts",
            ],
        );
        // A value that jemalloc cannot read has no effect.
        check("prof:true,prof:no", &["\"prof:no\": prof is true or false"]);
    }

    /// Debian's jemalloc writes a line for each option that it ignores.
    #[test]
    fn faults_agree_with_jemalloc() {
        let complains = |text: &str| {
            let run = std::process::Command::new("/bin/true")
                .env("LD_PRELOAD", "libjemalloc.so.2")
                .env("MALLOC_CONF", text)
                .output()
                .unwrap();
            String::from_utf8_lossy(&run.stderr).contains("<jemalloc>: ")
        };
        for text in [
            "prof:true,prof_active:false,lg_prof_sample:12",
            "dirty_decay_ms:-1,muzzy_decay_ms:0x10,narenas:default",
            "percpu_arena:phycpu,thp:always,zero_realloc:free",
            "prof_prefix:/tmp/a b:c,lg_tcache_nslots_mul:-16,lg_prof_sample:99",
            "prof:true,prof:false",
            "lg_sample:12",
            ":1",
            "prof:1",
            "prof:true ",
            "prof:",
            "lg_prof_sample:19:prof:true",
            "lg_prof_sample:",
            "lg_prof_sample:08",
            "lg_prof_interval:64",
            "lg_tcache_nslots_mul:17",
            "dirty_decay_ms:10s",
            "thp:on",
            "metadata_thp:never",
            "zero_realloc:no",
            "prof:true, prof_active:false",
            "prof=true",
            "prof",
            "prof:true;prof_active:false",
            "é:1",
        ] {
            let source = ConfSource {
                text: text.to_owned(),
                ..ConfSource::default()
            };
            let is_reported_by_jemalloc = |fault: &String| !fault.ends_with(" counts");
            let found = ignored_options(&source);
            assert_eq!(
                complains(text),
                found.iter().any(is_reported_by_jemalloc),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn numbers_parse_like_strtoumax() {
        let check = |text: &str, expected| assert_eq!(parse_number(text), expected, "{text}");
        check("014", Some(12));
        check("0", Some(0));
        check("-1", Some(-1));
        check("+7", Some(7));
        check("0xfF", Some(255));
        check("08", None);
        check("--1", None);
        check("", None);
        check("99999999999999999999", None);
    }
}
