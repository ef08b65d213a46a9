//! Labels of sampled memory. A stack may end, above its thread's start, in a pseudo frame with the id of the label
//! set that the allocating thread had. A line of the dump lists the labels of each set.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};
use crate::names::replace_unprintable;

/// Upper 24 bits of such a pseudo frame.
const KIND: u64 = 0x4d_5001;

/// Value shown for samples whose label set had no free cell in the process's table.
pub(crate) const OTHER: &str = "[other]";
/// Value shown for samples without a label of the key.
const NONE: &str = "[none]";

/// Id of a label set in the dump. Stored as its complement, so that `Option<LabelId>` needs no extra space in the
/// samples, of which a profile may have millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LabelId(NonZeroU32);

impl LabelId {
    /// Stands for all sets that had no free cell in the process's table.
    const OTHER: Option<Self> = Self::new(0);

    /// Converts a number to an id. `None` for the largest number, which no set has.
    pub(crate) const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(!number) {
            Some(complement) => Some(Self(complement)),
            None => None,
        }
    }

    pub(crate) fn number(self) -> u32 {
        !self.0.get()
    }

    /// Decodes the id in a pseudo frame. `None` if `frame` is an address or another pseudo frame.
    pub(crate) fn from_frame(frame: u64) -> Option<Self> {
        Self::new((frame >> 1) as u32).filter(|_| frame >> 40 == KIND)
    }
}

/// Labels of a profile, from its lines `# labels: KEY,…` and `# label: ID KEY=VALUE …`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// Keys that were recorded when the profile was taken.
    keys: Vec<String>,
    sets: HashMap<LabelId, Vec<(String, String)>>,
}

impl Labels {
    /// Reads the keys of a line `# labels: KEY,…`.
    pub(crate) fn read_keys(&mut self, text: &str) {
        self.keys = text.split(',').map(decode).collect();
    }

    /// Reads a line `ID KEY=VALUE …`; ignores words that are not labels, and a line without a valid id.
    pub(crate) fn read_set(&mut self, text: &str) {
        let mut words = text.split(' ');
        let Some(id) = words.next().and_then(|id| LabelId::new(id.parse().ok()?)) else {
            return;
        };
        let labels = words.filter_map(|word| word.split_once('='));
        let labels = labels.map(|(key, value)| (decode(key), decode(value)));
        self.sets.insert(id, labels.collect());
    }

    /// Returns the labels of a set as (key, value), empty if the set is unknown.
    pub(crate) fn set(&self, id: LabelId) -> &[(String, String)] {
        self.sets.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Returns the value of a key as reports show it: `[none]` if the sample or its set lacks the key, `[other]` for
    /// the sets that had no free cell in the process's table.
    pub(crate) fn value(&self, id: Option<LabelId>, key: &str) -> &str {
        match id {
            None => NONE,
            other if other == LabelId::OTHER => OTHER,
            Some(id) => {
                let mut labels = self.set(id).iter();
                let pair = labels.find(|(name, _)| name == key);
                pair.map_or(NONE, |(_, value)| value)
            }
        }
    }

    /// Returns the label keys that the dump records, in its order.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Returns each key with up to `max` of its distinct values, the first in alphabetical order.
    pub(crate) fn values(&self, max: usize) -> Vec<(&str, Vec<&str>)> {
        let of_key = |key: &'_ String| -> Vec<&str> {
            let labels = self.sets.values().flatten();
            let values = labels.filter(|(name, _)| name == key);
            let values: BTreeSet<_> = values.map(|(_, value)| value.as_str()).collect();
            values.into_iter().take(max).collect()
        };
        let keys = self.keys.iter();
        keys.map(|key| (key.as_str(), of_key(key))).collect()
    }

    /// Fails if the profile has no label with that key.
    pub(crate) fn require_key(&self, key: &str) -> Result<()> {
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

/// Label that a report is filtered by: `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Key as the program names it, such as `route`.
    pub key: String,
    /// Value, `[none]` or `[other]`.
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

/// Decodes percent-encoding, such as `%20`, and replaces unprintable characters.
fn decode(word: &str) -> String {
    replace_unprintable(&percent_decode_str(word).decode_utf8_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_characters_are_replaced() {
        let check = |word: &str, expected: &str| assert_eq!(decode(word), expected, "{word}");
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
    fn label_value_is_found_by_set_id() {
        let mut labels = Labels::default();
        assert!(labels.require_key("route").is_err());
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
        let error = labels.require_key("tenant").unwrap_err().to_string();
        assert_eq!(
            error,
            "its samples have no label \"tenant\", but: route, a b"
        );
    }
}
