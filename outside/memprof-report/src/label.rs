//! Whose memory it is. A stack may end, above its thread's start, in a frame that is no code: which labels the
//! thread had that allocated. Its number stands for a set of labels, which a line of the dump tells.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};
use crate::names::printable;

/// The upper 24 bits of such a frame.
const KIND: u64 = 0x4d_5001;

/// What stands for the value of samples whose label found no place in the process's table.
pub(crate) const OTHER: &str = "[other]";
/// What stands for the value of samples without such a label.
const NONE: &str = "[none]";

/// A set of labels, by its number in the dump: kept as the complement, so that an `Option` of it takes no room of
/// its own in the samples, of which a profile may have millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LabelId(NonZeroU32);

impl LabelId {
    /// All sets that found no place in the process's table.
    const OTHER: Option<Self> = Self::new(0);

    /// The set of a number; none has the largest.
    pub(crate) const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(!number) {
            Some(complement) => Some(Self(complement)),
            None => None,
        }
    }

    pub(crate) fn number(self) -> u32 {
        !self.0.get()
    }

    /// What a frame tells, if it tells labels.
    pub(crate) fn of(frame: u64) -> Option<Self> {
        Self::new((frame >> 1) as u32).filter(|_| frame >> 40 == KIND)
    }
}

/// The labels of a profile: what its lines `# labels: KEY,…` and `# label: ID KEY=VALUE …` say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// The keys that counted when it was taken.
    keys: Vec<String>,
    sets: HashMap<LabelId, Vec<(String, String)>>,
}

impl Labels {
    pub(crate) fn read_keys(&mut self, text: &str) {
        self.keys = text.split(',').map(decoded).collect();
    }

    /// `ID KEY=VALUE …`; what is no label is left out.
    pub(crate) fn read_set(&mut self, text: &str) {
        let mut words = text.split(' ');
        let Some(id) = words.next().and_then(|id| LabelId::new(id.parse().ok()?)) else {
            return;
        };
        let labels = words.filter_map(|word| word.split_once('='));
        let labels = labels.map(|(key, value)| (decoded(key), decoded(value)));
        self.sets.insert(id, labels.collect());
    }

    /// The labels of a sample, by key.
    pub(crate) fn of(&self, id: LabelId) -> &[(String, String)] {
        self.sets.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The value of a key, as it is shown.
    pub(crate) fn value(&self, id: Option<LabelId>, key: &str) -> &str {
        match id {
            None => NONE,
            other if other == LabelId::OTHER => OTHER,
            Some(id) => {
                let mut labels = self.of(id).iter();
                let found = labels.find(|(found, _)| found == key);
                found.map_or(NONE, |(_, value)| value)
            }
        }
    }

    /// The keys that counted.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// By key, the values that samples may have: at most so many, by name.
    pub(crate) fn values(&self, most: usize) -> Vec<(&str, Vec<&str>)> {
        let of_key = |key: &'_ String| -> Vec<&str> {
            let labels = self.sets.values().flatten();
            let values = labels.filter(|(found, _)| found == key);
            let values: BTreeSet<_> = values.map(|(_, value)| value.as_str()).collect();
            values.into_iter().take(most).collect()
        };
        let keys = self.keys.iter();
        keys.map(|key| (key.as_str(), of_key(key))).collect()
    }

    pub(crate) fn require(&self, key: &str) -> Result<()> {
        if self.keys.iter().any(|known| known == key) {
            return Ok(());
        }
        Err(Error::Usage(match self.keys.as_slice() {
            [] => format!(
                "its samples have no labels: `memprof activate labels={key}` counts them for what is allocated \
                 from then on"
            ),
            keys => format!(
                "its samples have no label {key:?}, but: {}",
                keys.join(", ")
            ),
        }))
    }
}

/// `KEY=VALUE`, as a report is asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// As the program names it: `route`.
    pub key: String,
    /// The value, or `[none]` or `[other]`.
    pub value: String,
}

impl std::str::FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// With `%20` and its like as what they stand for.
fn decoded(word: &str) -> String {
    printable(&percent_decode_str(word).decode_utf8_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_becomes_harmless() {
        let check = |word: &str, expected: &str| assert_eq!(decoded(word), expected, "{word}");
        check("a%20b%3dc", "a b=c");
        check("%", "%");
        check("%2", "%2");
        check("%zz%+1", "%zz%+1");
        check("%c3%a4", "ä");
        check("%ff", "\u{fffd}");
        check("%1b[31m%0a", "\u{fffd}[31m\u{fffd}");
        check("%e2%80%ae", "\u{fffd}");
    }

    #[test]
    fn sets_are_told_by_their_number() {
        let mut labels = Labels::default();
        assert!(labels.require("route").is_err());
        labels.read_keys("route,a%20b");
        labels.read_set("7 route=/x a%20b=1");
        labels.read_set("8 nonsense");
        labels.read_set("junk route=/y");
        let check = |id: Option<u32>, key, expected| {
            assert_eq!(labels.value(id.and_then(LabelId::new), key), expected);
        };
        check(Some(7), "route", "/x");
        check(Some(7), "a b", "1");
        check(Some(8), "route", NONE);
        check(Some(10), "route", NONE);
        check(Some(0), "route", OTHER);
        check(None, "route", NONE);
        labels.read_set("9 route=/a");
        let values = [("route", vec!["/a", "/x"]), ("a b", vec!["1"])];
        assert_eq!(labels.values(100), values);
        assert_eq!(labels.values(1)[0].1, ["/a"]);
        let error = labels.require("tenant").unwrap_err().to_string();
        assert_eq!(
            error,
            "its samples have no label \"tenant\", but: route, a b"
        );
    }
}
