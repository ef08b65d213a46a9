//! Labels of samples: selects the labels of allocating threads to record, and lists them in dumps.

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::Mutex;

use memprof_messages::LabelSetStats;
use memprof_own::LockFreeOnce;

use crate::dumps::escape::escape_word;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::system::seccomp;
use crate::unwinder::{
    self, LabelContext, LabelKeyNames, LabelSetCounts, MAX_KEYS, MAX_SETS, ThreadContext,
    find_thread_contexts, read_label_key_names,
};

/// Key that stands for the thread's name in the kernel.
const THREAD_NAME_KEY: &str = "thread";

/// Keys of the labels to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelKeys(Vec<LabelKey>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelKey {
    name: String,
    source: LabelSource,
}

/// Source of a label's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelSource {
    /// Name of the thread, from the kernel.
    ThreadName,
    /// Key by name, among the program's labels or in OpenTelemetry's process context.
    ContextKey,
    /// Attribute index in OpenTelemetry's thread context.
    ContextIndex(u8),
}

impl FromStr for LabelKeys {
    type Err = Error;

    /// Parses a list of keys, such as `thread,http.route,tenant:0`. Also rejects `on` and a number alone, which are
    /// meant as a switch.
    fn from_str(words: &str) -> Result<Self> {
        let keys: Option<Vec<_>> = words.split(',').map(LabelKey::parse).collect();
        // JSON's `true` arrives as `on`, and its numbers as text.
        let is_switch = words == "on" || words.parse::<f64>().is_ok();
        keys.filter(|_| !is_switch).map(Self).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("labels={words:?} is not a list of label keys"),
            )
            .with_remedy(
                "valid: off, or up to 8 of `thread`, KEY and KEY:INDEX, as in thread,http.route,tenant:0, where \
                 INDEX is the attribute's in OpenTelemetry's thread context",
            )
        })
    }
}

impl LabelKey {
    /// Parses one key: `thread`, `KEY` or `KEY:INDEX`. `None` if the name is not 1 to 64 printable ASCII characters
    /// other than `=`, `,` and `%`, if the index is 255 or more, or if `thread` has an index.
    fn parse(word: &str) -> Option<Self> {
        let (name, source) = match word.rsplit_once(':') {
            Some((name, index)) => {
                // The largest index stands for an absent key.
                let index = index.parse().ok().filter(|index| *index < u8::MAX)?;
                (name, LabelSource::ContextIndex(index))
            }
            None if word == THREAD_NAME_KEY => (word, LabelSource::ThreadName),
            None => (word, LabelSource::ContextKey),
        };
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'=' | b',' | b'%');
        let is_key = (1..=64).contains(&name.len()) && name.bytes().all(is_plain);
        let has_valid_source = name != THREAD_NAME_KEY || source == LabelSource::ThreadName;
        (is_key && has_valid_source).then(|| Self {
            name: name.to_owned(),
            source,
        })
    }
}

/// All keys recorded so far, by number. Keys are never removed, because samples with them may still be live. A forked
/// child inherits the samples, so it keeps the numbers.
static KNOWN_KEYS: [LockFreeOnce<String>; MAX_KEYS] = [const { LockFreeOnce::new() }; MAX_KEYS];

/// The label keys that new samples record, as requested by `activate labels=`.
#[derive(Debug, Default)]
pub(super) struct ActiveLabels(Mutex<Vec<String>>);

impl ActiveLabels {
    /// Starts to record these labels with new samples, or stops if `keys` is `None`. After an error, the recorded
    /// labels are unchanged.
    ///
    /// # Errors
    /// `Unsupported`: no code in the process sets one of the labels, there were too many different keys, or `thread` is
    /// requested and a seccomp filter might forbid reading thread names.
    pub(super) fn set_keys(&self, keys: Option<&LabelKeys>) -> Result<()> {
        let mut active = lock(&self.0);
        let requested = keys.map_or(&[][..], |LabelKeys(keys)| keys);
        let has_thread_name = requested
            .iter()
            .any(|key| key.source == LabelSource::ThreadName);
        if has_thread_name && seccomp::filter_count().is_some() {
            let message = "a thread's name is read by prctl(2), for which a seccomp filter of this process might \
                           end it";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_remedy("leave thread out of labels"));
        }
        let indexes = match requested
            .iter()
            .any(|key| key.source != LabelSource::ThreadName)
        {
            true => find_key_indexes(requested)?,
            false => Vec::new(),
        };
        let names: Vec<_> = requested.iter().map(|key| key.name.as_str()).collect();
        let numbers = assign_key_numbers(&names, &KNOWN_KEYS)?;
        let contexts: Vec<_> = indexes
            .into_iter()
            .map(|(context, indexes)| {
                let mut keys = [None; MAX_KEYS];
                for (number, index) in numbers.iter().zip(indexes) {
                    keys[*number] = index;
                }
                LabelContext {
                    module: context.module,
                    offset: context.offset,
                    keys,
                }
            })
            .collect();
        let thread_name = requested.iter().zip(&numbers);
        let thread_name = thread_name.filter(|(key, _)| key.source == LabelSource::ThreadName);
        let thread_name = thread_name.map(|(_, number)| *number as u8).next();
        unwinder::set_labels(&contexts, thread_name);
        *active = requested.iter().map(|key| key.name.clone()).collect();
        Ok(())
    }

    /// Names of the keys whose labels new samples record. Empty if no labels are recorded.
    pub(super) fn active_keys(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}

/// Names of all keys that dumps may contain, by number.
fn key_names(known: &[LockFreeOnce<String>]) -> Vec<&str> {
    let known = known.iter().map_while(LockFreeOnce::get);
    known.map(String::as_str).collect()
}

/// Returns the numbers of these keys, in the same order. Assigns numbers to new keys; a key keeps its number for good.
///
/// # Errors
/// `Unsupported`: too few numbers are free. No number is assigned in that case.
fn assign_key_numbers(keys: &[&str], known: &[LockFreeOnce<String>]) -> Result<Vec<usize>> {
    let names = key_names(known);
    let new: HashSet<_> = keys.iter().filter(|key| !names.contains(key)).collect();
    if names.len() + new.len() > known.len() {
        return Err(no_key_number_error(known));
    }
    keys.iter()
        .map(|key| assign_key_number(key, known))
        .collect()
}

/// Number of a key: its index in `known`. It is assigned at the key's first use and never changes.
///
/// # Errors
/// `Unsupported`: all numbers belong to other keys.
fn assign_key_number(key: &str, known: &[LockFreeOnce<String>]) -> Result<usize> {
    // Another thread may set a free cell first, to another key.
    let is_own_cell = |cell: &LockFreeOnce<String>| {
        cell.get().is_none_or(|known| known == key) && cell.get_or_set(key.to_owned()) == key
    };
    let number = known.iter().position(is_own_cell);
    number.ok_or_else(|| no_key_number_error(known))
}

/// `Unsupported` error for more keys than a process can have.
fn no_key_number_error(known: &[LockFreeOnce<String>]) -> Error {
    let known = key_names(known).join(", ");
    let message = format!("a process can have {MAX_KEYS} label keys, and has already: {known}");
    Error::new(ErrorKind::Unsupported, message).with_remedy("use these, or restart the program")
}

/// Label contexts of the process. Each has one index for every requested key, which locates the key in its records.
type ContextKeyIndexes = Vec<(ThreadContext, Vec<Option<u8>>)>;

/// Finds the requested keys in the label contexts of the process: the thread-local variables in which threads store
/// labels. Returns each context with one index per key, in the order of the request. An index is `None` if the context
/// lacks the key. A program's own context gets a number for a key that it lacks, as long as it has numbers left.
///
/// # Errors
/// `Unsupported`: no code sets labels, or none sets one of the keys.
fn find_key_indexes(requested: &[LabelKey]) -> Result<ContextKeyIndexes> {
    let found = find_thread_contexts();
    if found.is_empty() {
        let message = "no code in this process sets labels: neither with memprof's label calls nor as a thread \
                       context of OpenTelemetry (a thread-local variable otel_thread_ctx_v1 in its dynamic symbols)";
        return Err(Error::new(ErrorKind::Unsupported, message).with_remedy(
            "labels=thread records thread names; programs set labels with memprof_label_push of memprof_host.h, in \
             Rust with the crate memprof-labels, and export OpenTelemetry's with -rdynamic",
        ));
    }
    let named = read_label_key_names();
    let index = |context: &ThreadContext, key: &LabelKey| match (key.source, context.keys) {
        (LabelSource::ContextKey, LabelKeyNames::Program(registry)) => {
            registry.assign_key_number(&key.name)
        }
        (LabelSource::ContextKey, LabelKeyNames::OpenTelemetry) => {
            let mut names = named.iter().flatten();
            let index = names.position(|name| *name == key.name)?;
            u8::try_from(index).ok()
        }
        (LabelSource::ContextIndex(index), LabelKeyNames::OpenTelemetry) => Some(index),
        (LabelSource::ContextIndex(_), LabelKeyNames::Program(_))
        | (LabelSource::ThreadName, _) => None,
    };
    let indexes: ContextKeyIndexes = found
        .into_iter()
        .map(|context| {
            let indexes = requested.iter().map(|key| index(&context, key));
            (context, indexes.collect())
        })
        .collect();
    for (number, key) in requested.iter().enumerate() {
        let is_found = key.source == LabelSource::ThreadName
            || indexes.iter().any(|(_, indexes)| indexes[number].is_some());
        if !is_found {
            return Err(missing_key_error(key, named.as_deref()));
        }
    }
    Ok(indexes)
}

/// `Unsupported` error for a key that no code sets. `named` has the keys of OpenTelemetry's process context; `None` if
/// there is no such context.
fn missing_key_error(LabelKey { name, source }: &LabelKey, named: Option<&[String]>) -> Error {
    let (reason, remedy) = match (source, named) {
        (LabelSource::ContextIndex(_), _) => (
            "an INDEX is that of OpenTelemetry's thread context, and no library has one".to_owned(),
            format!("name the key alone: labels={name}"),
        ),
        (_, Some(named)) => (
            format!(
                "the keys of OpenTelemetry's process context are: {}",
                named.join(", ")
            ),
            "name one of them; a process may name more of them later".to_owned(),
        ),
        (_, None) => (
            "OpenTelemetry's thread context exists, but no process context that names its keys"
                .to_owned(),
            format!("give the key's index in the thread context: labels={name}:0"),
        ),
    };
    Error::new(
        ErrorKind::Unsupported,
        format!("no code sets the label {name:?}: {reason}"),
    )
    .with_remedy(remedy)
}

/// Header lines of a dump about the labels of its stacks: one with the keys, and one for each label set (combination of
/// labels) with its number. Empty before the first request for labels.
pub(super) fn label_header_lines() -> Vec<String> {
    let known = key_names(&KNOWN_KEYS);
    if known.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("# labels: {}", known.join(","))];
    unwinder::for_each_label_set(|id, labels| {
        let mut line = format!("# label: {id}");
        for (key, value) in labels {
            if let Some(key) = known.get(usize::from(key)) {
                line += &format!(" {key}={}", escape_word(value.iter().copied()));
            }
        }
        lines.push(line);
    });
    lines
}

/// Counts of the label sets (combinations of labels) so far. `None` before the first request for labels.
pub(super) fn label_set_stats() -> Option<LabelSetStats> {
    let LabelSetCounts {
        seen,
        others,
        bytes,
    } = unwinder::label_set_counts();
    KNOWN_KEYS[0].get().map(|_| LabelSetStats {
        seen: seen as u64,
        most: MAX_SETS as u64,
        others,
        bytes: bytes as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_parse_with_source() {
        let check = |words: &str, expected: Option<&[(&str, LabelSource)]>| {
            let keys = words.parse::<LabelKeys>().ok();
            let parsed = keys.as_ref().map(|LabelKeys(keys)| {
                let keys = keys.iter().map(|key| (key.name.as_str(), key.source));
                keys.collect::<Vec<_>>()
            });
            assert_eq!(parsed.as_deref(), expected, "{words}");
        };
        check("thread", Some(&[("thread", LabelSource::ThreadName)]));
        check(
            "thread,http.route,tenant:0",
            Some(&[
                ("thread", LabelSource::ThreadName),
                ("http.route", LabelSource::ContextKey),
                ("tenant", LabelSource::ContextIndex(0)),
            ]),
        );
        check("a:b:254", Some(&[("a:b", LabelSource::ContextIndex(254))]));
        check("thread:1", None);
        check("route:255", None);
        check("route:-1", None);
        check("a=b:1", None);
        check("a%20b:1", None);
        check(":1", None);
        check("on", None);
        check("0", None);
        check("-1.5", None);
        check(
            "on,thread",
            Some(&[
                ("on", LabelSource::ContextKey),
                ("thread", LabelSource::ThreadName),
            ]),
        );
        check("thread,", None);
        check("", None);
        check(&format!("{}:1", "k".repeat(65)), None);
    }

    #[test]
    fn key_keeps_its_number() {
        let known = [const { LockFreeOnce::new() }; MAX_KEYS];
        let numbers = ["a", "b", "a", "c", "b"].map(|key| assign_key_number(key, &known).unwrap());
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        for key in ["d", "e", "f", "g", "h"] {
            assign_key_number(key, &known).unwrap();
        }
        let refused = assign_key_number("i", &known).unwrap_err().to_string();
        assert!(
            refused.contains("and has already: a, b, c, d, e, f, g, h"),
            "{refused}"
        );
        assert_eq!(assign_key_number("h", &known).unwrap(), 7);
    }

    #[test]
    fn request_with_too_many_keys_assigns_no_number() {
        let known = [const { LockFreeOnce::new() }; 3];
        let check = |keys: &[&str], expected: Option<&[usize]>, names: &[&str]| {
            let numbers = assign_key_numbers(keys, &known).ok();
            assert_eq!(numbers.as_deref(), expected, "{keys:?}");
            assert_eq!(key_names(&known), names, "{keys:?}");
        };
        check(&["a"], Some(&[0]), &["a"]);
        check(&["b", "c", "d"], None, &["a"]);
        check(&["b", "a", "b"], Some(&[1, 0, 1]), &["a", "b"]);
        check(&["c", "d"], None, &["a", "b"]);
        check(&["c"], Some(&[2]), &["a", "b", "c"]);
    }
}
