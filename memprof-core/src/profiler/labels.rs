//! Whose work samples are: which labels of the allocating threads count, and what they were.

use std::fmt::Write;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock};

use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::system::seccomp;
use crate::unwinder::{self, Context, MOST_KEYS, MOST_SETS, thread_contexts};

/// The key of the thread's name, as the kernel knows it.
const THREAD: &str = "thread";

/// The labels that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelKeys(Vec<LabelKey>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelKey {
    name: String,
    /// Of an attribute in OpenTelemetry's thread context; none for the thread's name.
    index: Option<u8>,
}

impl FromStr for LabelKeys {
    type Err = Error;

    /// `thread,http.route:0`
    fn from_str(words: &str) -> Result<Self> {
        let keys: Option<Vec<_>> = words.split(',').map(LabelKey::of).collect();
        keys.map(Self).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("labels={words:?} are no keys of labels"),
            )
            .remedy(
                "valid: off, or up to 8 of `thread` and KEY:INDEX, as in thread,http.route:0, where INDEX is \
                 the attribute's in OpenTelemetry's thread context",
            )
        })
    }
}

impl LabelKey {
    fn of(word: &str) -> Option<Self> {
        let (name, index) = match word.rsplit_once(':') {
            Some((name, index)) => (
                name,
                Some(index.parse().ok().filter(|index| *index < u8::MAX)?),
            ),
            None => (word, None),
        };
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'=' | b',' | b'%');
        let is_key = (1..=64).contains(&name.len()) && name.bytes().all(is_plain);
        let is_told = (name == THREAD) == index.is_none();
        (is_key && is_told).then(|| Self {
            name: name.to_owned(),
            index,
        })
    }
}

/// All keys that ever counted, by number: samples of those may live. A forked child has the samples, and so the
/// numbers of its parent.
static KNOWN: [OnceLock<String>; MOST_KEYS] = [const { OnceLock::new() }; MOST_KEYS];

/// The label keys that samples record, as `activate labels=` named them.
#[derive(Debug, Default)]
pub(super) struct Labels(Mutex<Vec<String>>);

impl Labels {
    /// New samples have these labels, or none.
    ///
    /// # Errors
    /// There is nothing in the process that sets them; there were too many different ones.
    pub(super) fn set(&self, asked: Option<&LabelKeys>) -> Result<()> {
        let mut on = lock(&self.0);
        let asked = asked.map_or(&[][..], |LabelKeys(asked)| asked);
        let mut in_record = [None; MOST_KEYS];
        let mut thread_name = None;
        for key in asked {
            let number = number_of(&key.name, &KNOWN)?;
            in_record[number] = key.index;
            if key.index.is_none() {
                thread_name = u8::try_from(number).ok();
            }
        }
        if thread_name.is_some() && seccomp::filters().is_some() {
            let message = "the name of a thread is asked for by prctl(2), at which a seccomp filter of this process \
                           might end it";
            return Err(
                Error::new(ErrorKind::Unsupported, message).remedy("leave thread out of labels")
            );
        }
        let contexts = match in_record.iter().any(Option::is_some) {
            true => contexts(in_record)?,
            false => Vec::new(),
        };
        unwinder::set_labels(&contexts, thread_name);
        *on = asked.iter().map(|key| key.name.clone()).collect();
        Ok(())
    }

    /// The keys that count now.
    pub(super) fn on(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}

/// The keys that dumps may tell of, by number.
fn names(known: &[OnceLock<String>]) -> Vec<&str> {
    let known = known.iter().map_while(OnceLock::get);
    known.map(String::as_str).collect()
}

/// The number of a key, which it keeps.
fn number_of(key: &str, known: &[OnceLock<String>]) -> Result<usize> {
    let is_it = |place: &OnceLock<String>| {
        place.get().is_none_or(|known| known == key)
            && (place.set(key.to_owned()).is_ok() || place.get().is_some_and(|known| known == key))
    };
    known.iter().position(is_it).ok_or_else(|| {
        let known = names(known).join(", ");
        let message = format!("a process has up to {MOST_KEYS} keys of labels, and has: {known}");
        Error::new(ErrorKind::Unsupported, message)
            .remedy("keep to these, or start the program anew")
    })
}

fn contexts(keys: [Option<u8>; MOST_KEYS]) -> Result<Vec<Context>> {
    let found = thread_contexts().into_iter();
    let contexts: Vec<_> = found
        .map(|(module, offset)| Context {
            module,
            offset,
            keys,
        })
        .collect();
    if contexts.is_empty() {
        let message = "no library of the process has a thread context of OpenTelemetry (a thread-local variable \
                       otel_thread_ctx_v1 in its dynamic symbols)";
        return Err(Error::new(ErrorKind::Unsupported, message).remedy(
            "labels=thread tells the threads' names; a program exports its own by -rdynamic",
        ));
    }
    Ok(contexts)
}

/// What a dump says of the labels that its stacks end in: the keys, and each set by its number.
pub(super) fn lines() -> Vec<String> {
    let known = names(&KNOWN);
    if known.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("# labels: {}", known.join(","))];
    unwinder::each_label_set(|id, set| {
        let mut line = format!("# label: {id}");
        let mut rest = set;
        while let [key, length, after @ ..] = rest {
            let (value, after) = after
                .split_at_checked(usize::from(*length))
                .unwrap_or_default();
            rest = after;
            if let Some(key) = known.get(usize::from(*key)) {
                line += &format!(" {key}={}", escaped(value));
            }
        }
        lines.push(line);
    });
    lines
}

/// Whether some sets found no place.
pub(super) fn is_full() -> bool {
    let mut sets = 0;
    unwinder::each_label_set(|_, _| sets += 1);
    sets >= MOST_SETS
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
        let check = |words: &str, expected: Option<&[(&str, Option<u8>)]>| {
            let keys = words.parse::<LabelKeys>().ok();
            let told = keys.as_ref().map(|LabelKeys(keys)| {
                let keys = keys.iter().map(|key| (key.name.as_str(), key.index));
                keys.collect::<Vec<_>>()
            });
            assert_eq!(told.as_deref(), expected, "{words}");
        };
        check("thread", Some(&[("thread", None)]));
        check(
            "thread,http.route:0",
            Some(&[("thread", None), ("http.route", Some(0))]),
        );
        check("a:b:254", Some(&[("a:b", Some(254))]));
        check("http.route", None);
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
        let known: [OnceLock<String>; MOST_KEYS] = Default::default();
        let numbers = ["a", "b", "a", "c", "b"].map(|key| number_of(key, &known).unwrap());
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        for key in ["d", "e", "f", "g", "h"] {
            number_of(key, &known).unwrap();
        }
        let refused = number_of("i", &known).unwrap_err().to_string();
        assert!(
            refused.contains("and has: a, b, c, d, e, f, g, h"),
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
