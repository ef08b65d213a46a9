//! Whose work samples are: which labels of the allocating threads count, and what they were.

use std::fmt::Write;
use std::str::FromStr;
use std::sync::Mutex;

use memprof_messages::LabelSetStats;
use memprof_own::LockFreeOnce;

use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::system::seccomp;
use crate::unwinder::{
    self, LabelContext, LabelKeyNames, LabelSetCounts, MAX_KEYS, MAX_SETS, ThreadContext,
    attribute_keys, thread_contexts,
};

/// The key of the thread's name, as the kernel knows it.
const THREAD: &str = "thread";

/// The labels that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelKeys(Vec<LabelKey>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelKey {
    name: String,
    told: LabelSource,
}

/// Where the value of a label is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelSource {
    /// By the kernel: the thread's name.
    ThreadName,
    /// By whoever knows a key of that name: the program, or OpenTelemetry's process context.
    ContextKey,
    /// As the attribute of that index in OpenTelemetry's thread context.
    ContextIndex(u8),
}

impl FromStr for LabelKeys {
    type Err = Error;

    /// `thread,http.route,tenant:0`
    fn from_str(words: &str) -> Result<Self> {
        let keys: Option<Vec<_>> = words.split(',').map(LabelKey::of).collect();
        keys.map(Self).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("labels={words:?} is not a list of label keys"),
            )
            .remedy(
                "valid: off, or up to 8 of `thread`, KEY and KEY:INDEX, as in thread,http.route,tenant:0, where \
                 INDEX is the attribute's in OpenTelemetry's thread context",
            )
        })
    }
}

impl LabelKey {
    fn of(word: &str) -> Option<Self> {
        let (name, told) = match word.rsplit_once(':') {
            Some((name, index)) => {
                let index = index.parse().ok().filter(|index| *index < u8::MAX)?;
                (name, LabelSource::ContextIndex(index))
            }
            None if word == THREAD => (word, LabelSource::ThreadName),
            None => (word, LabelSource::ContextKey),
        };
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'=' | b',' | b'%');
        let is_key = (1..=64).contains(&name.len()) && name.bytes().all(is_plain);
        let is_told = name != THREAD || told == LabelSource::ThreadName;
        (is_key && is_told).then(|| Self {
            name: name.to_owned(),
            told,
        })
    }
}

/// All keys that ever counted, by number: samples of those may live. A forked child has the samples, and so the
/// numbers of its parent.
static KNOWN: [LockFreeOnce<String>; MAX_KEYS] = [const { LockFreeOnce::new() }; MAX_KEYS];

/// The label keys that samples record, as `activate labels=` named them.
#[derive(Debug, Default)]
pub(super) struct ActiveLabels(Mutex<Vec<String>>);

impl ActiveLabels {
    /// New samples have these labels, or none.
    ///
    /// # Errors
    /// There is nothing in the process that sets them; there were too many different ones.
    pub(super) fn set(&self, asked: Option<&LabelKeys>) -> Result<()> {
        let mut on = lock(&self.0);
        let asked = asked.map_or(&[][..], |LabelKeys(asked)| asked);
        let told_by_kernel = asked.iter().any(|key| key.told == LabelSource::ThreadName);
        if told_by_kernel && seccomp::filter_count().is_some() {
            let message = "a thread's name is read by prctl(2), for which a seccomp filter of this process might \
                           end it";
            return Err(
                Error::new(ErrorKind::Unsupported, message).remedy("leave thread out of labels")
            );
        }
        let indexes = match asked.iter().any(|key| key.told != LabelSource::ThreadName) {
            true => indexes(asked)?,
            false => Vec::new(),
        };
        let numbers = asked.iter().map(|key| number_of(&key.name, &KNOWN));
        let numbers = numbers.collect::<Result<Vec<_>>>()?;
        let contexts: Vec<_> = indexes
            .into_iter()
            .map(|(place, indexes)| {
                let mut keys = [None; MAX_KEYS];
                for (number, index) in numbers.iter().zip(indexes) {
                    keys[*number] = index;
                }
                LabelContext {
                    module: place.module,
                    offset: place.offset,
                    keys,
                }
            })
            .collect();
        let thread_name = asked.iter().zip(&numbers);
        let thread_name = thread_name.filter(|(key, _)| key.told == LabelSource::ThreadName);
        let thread_name = thread_name.map(|(_, number)| *number as u8).next();
        unwinder::set_labels(&contexts, thread_name);
        *on = asked.iter().map(|key| key.name.clone()).collect();
        Ok(())
    }

    /// The keys that count now.
    pub(super) fn active_keys(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}

/// The keys that dumps may tell of, by number.
fn names(known: &[LockFreeOnce<String>]) -> Vec<&str> {
    let known = known.iter().map_while(LockFreeOnce::get);
    known.map(String::as_str).collect()
}

/// The number of a key, which it keeps.
fn number_of(key: &str, known: &[LockFreeOnce<String>]) -> Result<usize> {
    let is_it = |place: &LockFreeOnce<String>| {
        place.get().is_none_or(|known| known == key) && place.get_or_set(key.to_owned()) == key
    };
    known.iter().position(is_it).ok_or_else(|| {
        let known = names(known).join(", ");
        let message = format!("a process can have {MAX_KEYS} label keys, and has already: {known}");
        Error::new(ErrorKind::Unsupported, message).remedy("use these, or restart the program")
    })
}

/// Where threads have records, and by asked key its index in them.
type Indexes = Vec<(ThreadContext, Vec<Option<u8>>)>;

/// # Errors
/// A key that nobody tells.
fn indexes(asked: &[LabelKey]) -> Result<Indexes> {
    let found = thread_contexts();
    if found.is_empty() {
        let message = "no code in this process sets labels: neither with memprof's label calls nor as a thread \
                       context of OpenTelemetry (a thread-local variable otel_thread_ctx_v1 in its dynamic symbols)";
        return Err(Error::new(ErrorKind::Unsupported, message).remedy(
            "labels=thread records thread names; programs set labels with memprof_label_push of memprof_host.h, in \
             Rust with the crate memprof-labels, and export OpenTelemetry's with -rdynamic",
        ));
    }
    let named = attribute_keys();
    let index = |context: &ThreadContext, key: &LabelKey| match (key.told, context.keys) {
        (LabelSource::ContextKey, LabelKeyNames::Program(registry)) => {
            registry.key_number(&key.name)
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
    let indexes: Indexes = found
        .into_iter()
        .map(|context| {
            let indexes = asked.iter().map(|key| index(&context, key));
            (context, indexes.collect())
        })
        .collect();
    for (at, key) in asked.iter().enumerate() {
        let is_told =
            key.told == LabelSource::ThreadName || indexes.iter().any(|(_, of)| of[at].is_some());
        if !is_told {
            return Err(missing_key_error(key, named.as_deref()));
        }
    }
    Ok(indexes)
}

/// `named` are the keys of OpenTelemetry's process context.
fn missing_key_error(LabelKey { name, told }: &LabelKey, named: Option<&[String]>) -> Error {
    let (why, remedy) = match (told, named) {
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
        format!("no code sets the label {name:?}: {why}"),
    )
    .remedy(remedy)
}

/// What a dump says of the labels that its stacks end in: the keys, and each set by its number.
pub(super) fn header_lines() -> Vec<String> {
    let known = names(&KNOWN);
    if known.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("# labels: {}", known.join(","))];
    unwinder::for_each_label_set(|id, labels| {
        let mut line = format!("# label: {id}");
        for (key, value) in labels {
            if let Some(key) = known.get(usize::from(key)) {
                line += &format!(" {key}={}", escaped(value));
            }
        }
        lines.push(line);
    });
    lines
}

/// What came of the sets of labels so far; none before any label was asked for.
pub(super) fn set_stats() -> Option<LabelSetStats> {
    let LabelSetCounts {
        seen,
        others,
        bytes,
    } = unwinder::label_set_counts();
    KNOWN[0].get().map(|_| LabelSetStats {
        seen: seen as u64,
        most: MAX_SETS as u64,
        others,
        bytes: bytes as u64,
    })
}

/// One word of a line of text, whatever the bytes are.
fn escaped(value: &[u8]) -> String {
    value.iter().fold(String::new(), |mut text, byte| {
        match byte {
            b'!'..=b'~' if *byte != b'%' => text.push(char::from(*byte)),
            _ => {
                let _cannot_fail = write!(text, "%{byte:02x}");
            }
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_what_they_are() {
        let check = |words: &str, expected: Option<&[(&str, LabelSource)]>| {
            let keys = words.parse::<LabelKeys>().ok();
            let told = keys.as_ref().map(|LabelKeys(keys)| {
                let keys = keys.iter().map(|key| (key.name.as_str(), key.told));
                keys.collect::<Vec<_>>()
            });
            assert_eq!(told.as_deref(), expected, "{words}");
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
        check("thread,", None);
        check("", None);
        check(&format!("{}:1", "k".repeat(65)), None);
    }

    #[test]
    fn a_key_keeps_its_number() {
        let known = [const { LockFreeOnce::new() }; MAX_KEYS];
        let numbers = ["a", "b", "a", "c", "b"].map(|key| number_of(key, &known).unwrap());
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        for key in ["d", "e", "f", "g", "h"] {
            number_of(key, &known).unwrap();
        }
        let refused = number_of("i", &known).unwrap_err().to_string();
        assert!(
            refused.contains("and has already: a, b, c, d, e, f, g, h"),
            "{refused}"
        );
        assert_eq!(number_of("h", &known).unwrap(), 7);
    }

    #[test]
    fn no_text_ends_a_line_or_a_word() {
        assert_eq!(escaped(b"/x?a=b"), "/x?a=b");
        assert_eq!(
            escaped("a b%\n\x1b\0ä".as_bytes()),
            "a%20b%25%0a%1b%00%c3%a4"
        );
    }
}
