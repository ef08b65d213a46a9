//! jemalloc's options as jemalloc reads them (jemalloc 5.3, `malloc_conf_next` and
//! `malloc_conf_init_helper`), for what it leaves out: at the most it writes a line to standard
//! error, which nobody may see.

use std::ops::RangeInclusive;

/// One place that options come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfSource {
    /// `MALLOC_CONF`, `/etc/malloc.conf`, `the program's malloc_conf`.
    pub name: String,
    /// `prof:true,lg_prof_sample:12`.
    pub text: String,
    /// Keys in it that [`OPTIONS`] lacks and this jemalloc knows.
    pub newer: Vec<String>,
}

/// What an option may be set to.
#[derive(Debug)]
enum OptionType {
    Switch,
    Number(RangeInclusive<i128>),
    Word(&'static [&'static str]),
    /// Texts and lists, which are not looked into.
    Text,
}

use OptionType::{Number, Switch, Text, Word};

/// Any number. jemalloc clips most to what is possible, which is not to leave them out.
const ANY: OptionType = Number(0..=u64::MAX as i128);
/// The same, or -1 for never.
const OR_NEVER: OptionType = Number(-1..=i64::MAX as i128);

/// The options of jemalloc 5.2 to 5.3.1.
const OPTIONS: &[(&str, OptionType)] = &[
    ("abort", Switch),
    ("abort_conf", Switch),
    ("background_thread", Switch),
    ("bin_shards", Text),
    ("cache_oblivious", Switch),
    ("calloc_madvise_threshold", ANY),
    ("confirm_conf", Switch),
    ("debug_double_free_max_scan", ANY),
    ("dirty_decay_ms", OR_NEVER),
    ("disable_large_size_classes", Switch),
    ("dss", Word(&["disabled", "primary", "secondary"])),
    ("experimental_hpa_enforce_hugify", Switch),
    ("experimental_hpa_max_purge_nhp", OR_NEVER),
    ("experimental_hpa_start_huge_if_thp_always", Switch),
    ("experimental_infallible_new", Switch),
    ("experimental_tcache_gc", Switch),
    ("hpa", Switch),
    ("hpa_dirty_mult", Text),
    ("hpa_hugification_threshold", ANY),
    ("hpa_hugification_threshold_ratio", Text),
    ("hpa_hugify_delay_ms", ANY),
    ("hpa_hugify_style", Text),
    ("hpa_hugify_sync", Switch),
    ("hpa_min_purge_delay_ms", ANY),
    ("hpa_min_purge_interval_ms", ANY),
    ("hpa_purge_threshold", ANY),
    ("hpa_purge_threshold_ratio", Text),
    ("hpa_sec_batch_fill_extra", ANY),
    ("hpa_sec_bytes_after_flush", ANY),
    ("hpa_sec_max_alloc", ANY),
    ("hpa_sec_max_bytes", ANY),
    ("hpa_sec_nshards", ANY),
    ("hpa_slab_max_alloc", ANY),
    ("huge_arena_pac_thp", Switch),
    ("junk", Word(&["true", "false", "alloc", "free"])),
    ("lg_extent_max_active_fit", Number(0..=64)),
    ("lg_prof_interval", Number(-1..=63)),
    ("lg_prof_sample", ANY),
    ("lg_san_uaf_align", OR_NEVER),
    ("lg_tcache_flush_large_div", ANY),
    ("lg_tcache_flush_small_div", ANY),
    ("lg_tcache_max", ANY),
    ("lg_tcache_nslots_mul", Number(-16..=16)),
    ("log", Text),
    ("max_background_threads", ANY),
    ("metadata_thp", Word(&["disabled", "auto", "always"])),
    ("muzzy_decay_ms", OR_NEVER),
    ("mutex_max_spin", OR_NEVER),
    ("narenas", Text),
    ("narenas_ratio", Text),
    ("oversize_threshold", ANY),
    ("percpu_arena", Word(&["disabled", "percpu", "phycpu"])),
    ("process_madvise_max_batch", ANY),
    ("prof", Switch),
    ("prof_accum", Switch),
    ("prof_active", Switch),
    ("prof_bt_max", ANY),
    ("prof_final", Switch),
    ("prof_gdump", Switch),
    ("prof_leak", Switch),
    ("prof_leak_error", Switch),
    ("prof_log", Switch),
    ("prof_pid_namespace", Switch),
    // What it swallowed is told from what it became.
    ("prof_prefix", Text),
    ("prof_recent_alloc_max", OR_NEVER),
    ("prof_stats", Switch),
    ("prof_sys_thread_name", Switch),
    ("prof_thread_active_init", Switch),
    ("prof_time_resolution", Word(&["default", "high"])),
    ("prof_unbias", Switch),
    ("retain", Switch),
    ("san_guard_large", ANY),
    ("san_guard_small", ANY),
    ("slab_sizes", Text),
    ("stats_interval", OR_NEVER),
    ("stats_interval_opts", Text),
    ("stats_print", Switch),
    ("stats_print_opts", Text),
    ("tcache", Switch),
    ("tcache_gc_delay_bytes", ANY),
    ("tcache_gc_incr_bytes", ANY),
    ("tcache_max", ANY),
    ("tcache_ncached_max", Text),
    ("tcache_nslots_large", ANY),
    ("tcache_nslots_small_max", ANY),
    ("tcache_nslots_small_min", ANY),
    ("thp", Word(&["default", "always", "never"])),
    ("trust_madvise", Switch),
    ("utrace", Switch),
    ("xmalloc", Switch),
    ("zero", Switch),
    ("zero_realloc", Word(&["alloc", "free", "abort"])),
];

/// What jemalloc leaves out of a source, each with the reason.
pub(super) fn ignored_options(source: &ConfSource) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    let mut rest = source.text.as_str();
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let Some(end) = end.filter(|end| rest[*end..].starts_with(':')) else {
            faults.push(format!("{rest:?} and all behind it: {}", malformed(rest)));
            break;
        };
        let key = &rest[..end];
        let (value, behind) = rest[end + 1..]
            .split_once(',')
            .unwrap_or((&rest[end + 1..], ""));
        rest = behind;
        let pair = format!("{key}:{value}");
        let known = OPTIONS.iter().find(|(name, _)| *name == key);
        let is_newer = || source.newer.iter().any(|newer| newer == key);
        match known {
            Some((_, values)) if !values.allow(value) => {
                faults.push(format!("{pair:?}: {key} is {values}"));
            }
            None if !is_newer() => faults.push(format!("{pair:?}: {}", unknown(key))),
            Some(_) | None => match seen.iter_mut().find(|(name, _)| *name == key) {
                Some((_, before)) if *before != value => {
                    faults.push(format!("\"{key}:{before}\": {pair:?} behind it counts"));
                    *before = value;
                }
                Some(_) => {}
                None => seen.push((key, value)),
            },
        }
    }
    faults
}

impl ConfSource {
    pub(super) fn is_environment(&self) -> bool {
        self.name.ends_with("MALLOC_CONF")
    }
}

/// What `source` asks for that a `later` one sets otherwise.
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
    let overruled = pairs.filter_map(|(key, value)| {
        let other = last(&later.text, key).filter(|other| other != value)?;
        Some(format!(
            "\"{key}:{value}\": \"{key}:{other}\" in {} counts",
            later.name
        ))
    });
    overruled.collect()
}

/// The keys of a text that the table lacks.
pub(super) fn unknown_keys(text: &str) -> impl Iterator<Item = &str> {
    let keys = text.split(',').filter_map(|pair| pair.split_once(':'));
    keys.map(|(key, _)| key)
        .filter(|key| !OPTIONS.iter().any(|(name, _)| name == key))
}

fn malformed(rest: &str) -> &'static str {
    if rest.starts_with(char::is_whitespace) {
        "no blank may stand before an option"
    } else if rest
        .split(',')
        .next()
        .is_some_and(|pair| pair.contains('='))
    {
        "an option and its value are separated by a colon"
    } else {
        "it is not of the form option:value"
    }
}

fn unknown(key: &str) -> String {
    let words: Vec<_> = key.split('_').collect();
    let has_all = |name: &str| {
        words
            .iter()
            .all(|word| name.split('_').any(|it| it == *word))
    };
    let meant = OPTIONS.iter().find(|(name, _)| has_all(name));
    match meant {
        Some((name, _)) => format!("jemalloc has no option {key}; it may be {name} that was meant"),
        None => format!("jemalloc has no option {key}"),
    }
}

impl OptionType {
    fn allow(&self, value: &str) -> bool {
        match self {
            Switch => ["true", "false"].contains(&value),
            Number(range) => number(value).is_some_and(|number| range.contains(&number)),
            // Compared over the length of what is given.
            Word(words) => words.iter().any(|word| word.starts_with(value)),
            Text => true,
        }
    }
}

impl std::fmt::Display for OptionType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Switch => f.write_str("true or false"),
            Number(range) if *range.end() < i128::from(i64::MAX) => {
                write!(f, "a number from {} to {}", range.start(), range.end())
            }
            Number(range) if *range.start() < 0 => f.write_str("a number, or -1 for never"),
            Number(_) => f.write_str("a number"),
            Word(words) => f.write_str(&words.join(", ")),
            Text => f.write_str("a text"),
        }
    }
}

/// As strtoumax(3) with base 0: `12`, `0xc`, `014`.
fn number(text: &str) -> Option<i128> {
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
    fn what_is_in_force_is_no_fault() {
        check("", &[]);
        check("prof:true,prof_active:false,lg_prof_sample:12", &[]);
        check("dirty_decay_ms:-1,muzzy_decay_ms:0x10,narenas:default", &[]);
        check("prof_prefix:/tmp/a b,newer_option:7", &[]);
        check("percpu_arena:phycpu,thp:always,junk:free", &[]);
        // The same again changes nothing, and a comma at the end is only complained about.
        check("prof:true,prof:true,", &[]);
    }

    #[test]
    fn unknown_keys_are_named_with_what_was_meant() {
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
    fn values_that_it_cannot_read() {
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
    fn it_stops_reading_at_what_is_malformed() {
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
    fn the_last_of_two_counts() {
        check(
            "prof:false,prof:true,prof:false",
            &[
                "\"prof:false\": \"prof:true\" behind it counts",
                "\"prof:true\": \"prof:false\" behind it counts",
            ],
        );
        // One that cannot be read does not count.
        check("prof:true,prof:no", &["\"prof:no\": prof is true or false"]);
    }

    /// Debian's jemalloc writes a line for what it leaves out.
    #[test]
    fn jemalloc_complains_of_the_same() {
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
            let is_told = |fault: &String| !fault.ends_with(" counts");
            let found = ignored_options(&source);
            assert_eq!(
                complains(text),
                found.iter().any(is_told),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn numbers_are_read_as_strtoumax_does() {
        let check = |text: &str, expected| assert_eq!(number(text), expected, "{text}");
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
