//! Labels of sampled memory. A stack may end, above its thread's start, in a pseudo frame with the id of the label
//! set that the allocating thread had. A line of the dump lists the labels of each set. Samples of pprof profiles have
//! labels of their own, which are texts or numbers with a unit.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};
use crate::names::replace_unprintable;

/// Bits 40 to 63 of a pseudo frame with a label set.
const PSEUDO_FRAME_KIND: u64 = 0x4d_5001;

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
    const OTHER: Option<Self> = Self::from_number(0);

    /// Converts the number of a set to an id. `None` for `u32::MAX`, which no set has: its complement is 0.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        match NonZeroU32::new(!number) {
            Some(complement) => Some(Self(complement)),
            None => None,
        }
    }

    /// Number of the set in the dump: the complement of the stored number.
    pub(crate) fn number(self) -> u32 {
        !self.0.get()
    }

    /// Decodes the id in bits 1 to 32 of a pseudo frame, a number in a stack that stands for data. Its kind is in bits
    /// 40 to 63. `None` if `frame` is an address or a pseudo frame of another kind.
    pub(crate) fn from_pseudo_frame(frame: u64) -> Option<Self> {
        Self::from_number((frame >> 1) as u32).filter(|_| frame >> 40 == PSEUDO_FRAME_KIND)
    }
}

/// A label in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetLabel {
    pub(crate) key: Arc<str>,
    /// Value as reports show it: `/cart`, `4096 bytes`.
    pub(crate) text: Arc<str>,
    /// The number and its unit, which may be empty. `None` for a text.
    pub(crate) number: Option<(i64, Arc<str>)>,
}

impl SetLabel {
    /// Creates a label with a text.
    pub(crate) fn with_text(key: Arc<str>, text: Arc<str>) -> Self {
        Self {
            key,
            text,
            number: None,
        }
    }

    /// Creates a label with a number in `unit`. An empty unit means that the number has none.
    pub(crate) fn with_number(key: Arc<str>, number: i64, unit: Arc<str>) -> Self {
        let text = match &*unit {
            "" => number.to_string(),
            unit => format!("{number} {unit}"),
        };
        Self {
            key,
            text: text.into(),
            number: Some((number, unit)),
        }
    }

    /// Returns whether the label's value is `value`: as reports show it, or as its number without the unit.
    fn has_value(&self, value: &str) -> bool {
        let number = self.number.as_ref();
        &*self.text == value || number.is_some_and(|(number, _)| number.to_string() == value)
    }
}

/// Labels of a profile, from its lines `# labels: KEY,…` and `# label: ID KEY=VALUE …`, or those of pprof's samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// Keys that were recorded when the profile was taken.
    keys: Vec<String>,
    sets: HashMap<LabelId, Vec<SetLabel>>,
}

impl Labels {
    /// Reads the value of the comment `labels`, `KEY,…`: the keys of the labels that were recorded, percent-encoded.
    pub(crate) fn read_keys(&mut self, text: &str) {
        self.keys = text.split(',').map(decode_printable).collect();
    }

    /// Reads the value of the comment `label`, `ID KEY=VALUE …`: the labels of a set, which are percent-encoded.
    /// Ignores words that are no labels, and a value without a valid id.
    pub(crate) fn read_set(&mut self, text: &str) {
        let mut words = text.split(' ');
        let Some(id) = words
            .next()
            .and_then(|id| LabelId::from_number(id.parse().ok()?))
        else {
            return;
        };
        let labels = words.filter_map(|word| word.split_once('='));
        let labels = labels.map(|(key, value)| {
            SetLabel::with_text(decode_printable(key).into(), decode_printable(value).into())
        });
        self.sets.insert(id, labels.collect());
    }

    /// Adds a key, which must not be among [`keys`](Self::keys) yet.
    pub(crate) fn add_key(&mut self, key: &str) {
        self.keys.push(key.to_owned());
    }

    /// Adds a set, and returns its id: the next number, from 1. `None` if it has no label, or there are no more ids.
    /// Not to be mixed with [`read_set`](Self::read_set), whose ids the dump gives.
    pub(crate) fn add_set(&mut self, labels: Vec<SetLabel>) -> Option<LabelId> {
        if labels.is_empty() {
            return None;
        }
        // The number 0 is that of `LabelId::OTHER`.
        let id = LabelId::from_number(u32::try_from(self.sets.len() + 1).ok()?)?;
        self.sets.insert(id, labels);
        Some(id)
    }

    /// Adds the keys and sets of another process's profile. Returns the new ids of these sets by their old ids. A set
    /// without labels, or for which no id is left, has none.
    pub(crate) fn merge(&mut self, other: Self) -> HashMap<LabelId, LabelId> {
        for key in other.keys {
            if !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
        let mut ids: HashMap<_, _> = LabelId::OTHER.map(|id| (id, id)).into_iter().collect();
        for (id, labels) in other.sets {
            ids.extend(self.add_set(labels).map(|new| (id, new)));
        }
        ids
    }

    /// Returns the labels of a set: none if the set is unknown, each key with `[other]` for the sets that had no free
    /// cell in the process's table.
    pub(crate) fn labels_of_set(&self, id: LabelId) -> Cow<'_, [SetLabel]> {
        match self.sets.get(&id) {
            Some(labels) => Cow::Borrowed(labels),
            None if Some(id) == LabelId::OTHER => {
                let keys = self.keys.iter();
                keys.map(|key| SetLabel::with_text(key.as_str().into(), OTHER.into()))
                    .collect()
            }
            None => Cow::Borrowed(&[]),
        }
    }

    /// Iterates over the labels of a set that have this key; none if the set is unknown.
    fn labels_with_key<'a, 'k>(
        &'a self,
        id: LabelId,
        key: &'k str,
    ) -> impl Iterator<Item = &'a SetLabel> + use<'a, 'k> {
        let labels = self.sets.get(&id).map_or(&[][..], Vec::as_slice).iter();
        labels.filter(move |label| &*label.key == key)
    }

    /// Returns the value of a key as reports show it. It is `[none]` if the sample has no set (`None`) or its set lacks
    /// the key, and `[other]` for the sets that had no free cell in the process's table. Several values of one key are
    /// joined.
    pub(crate) fn value(&self, id: Option<LabelId>, key: &str) -> Cow<'_, str> {
        let id = match id {
            None => return NONE.into(),
            other if other == LabelId::OTHER => return OTHER.into(),
            Some(id) => id,
        };
        let mut values = self.labels_with_key(id, key).map(|label| &*label.text);
        match (values.next(), values.next()) {
            (None, _) => NONE.into(),
            (Some(value), None) => value.into(),
            (Some(first), Some(second)) => {
                let all: Vec<_> = [first, second].into_iter().chain(values).collect();
                all.join(", ").into()
            }
        }
    }

    /// Returns whether a sample with the set `id` (`None`: without labels) has the label: its value is what
    /// [`value`](Self::value) shows for the key, or one of several values of the key.
    pub(crate) fn matches(&self, id: Option<LabelId>, label: &Label) -> bool {
        let mut labels = id
            .into_iter()
            .flat_map(|id| self.labels_with_key(id, &label.key));
        labels.any(|found| found.has_value(&label.value))
            || self.value(id, &label.key) == label.value
    }

    /// Returns the label keys that the dump records, in its order.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Returns each key with up to `max` of its distinct values, the first in alphabetical order.
    pub(crate) fn values_by_key(&self, max: usize) -> Vec<(&str, Vec<&str>)> {
        let mut by_key: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for label in self.sets.values().flatten() {
            by_key.entry(&label.key).or_default().insert(&label.text);
        }
        let values = |key: &str| {
            let values = by_key.get(key).into_iter().flatten();
            values.copied().take(max).collect()
        };
        let keys = self.keys.iter();
        keys.map(|key| (key.as_str(), values(key))).collect()
    }

    /// Checks that the profile has labels with this key, and fails otherwise. If memprof may have taken the profile
    /// (`is_dump`) and it has no labels at all, the error names the command that records them.
    pub(crate) fn require_key(&self, key: &str, is_dump: bool) -> Result<()> {
        if self.keys.iter().any(|known| known == key) {
            return Ok(());
        }
        Err(Error::Usage(match self.keys.as_slice() {
            [] if !is_dump => "its samples have no labels".to_owned(),
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

/// Decodes percent-encoding, such as `%20`, and replaces characters that must not be sent to a terminal.
fn decode_printable(word: &str) -> String {
    replace_unprintable(&percent_decode_str(word).decode_utf8_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_characters_are_replaced() {
        let check =
            |word: &str, expected: &str| assert_eq!(decode_printable(word), expected, "{word}");
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
        assert!(labels.require_key("route", true).is_err());
        labels.read_keys("route,a%20b");
        labels.read_set("7 route=/x a%20b=1");
        labels.read_set("8 nonsense");
        labels.read_set("junk route=/y");
        let check = |id: Option<u32>, key, expected| {
            assert_eq!(
                labels.value(id.and_then(LabelId::from_number), key),
                expected
            );
        };
        check(Some(7), "route", "/x");
        check(Some(7), "a b", "1");
        check(Some(8), "route", NONE);
        check(Some(10), "route", NONE);
        check(Some(0), "route", OTHER);
        check(None, "route", NONE);
        labels.read_set("9 route=/a");
        // Sets without a cell keep their mark when they are written.
        let other = labels.labels_of_set(LabelId::OTHER.unwrap()).to_vec();
        assert_eq!(other[0], SetLabel::with_text("route".into(), OTHER.into()));
        let values = [("route", vec!["/a", "/x"]), ("a b", vec!["1"])];
        assert_eq!(labels.values_by_key(100), values);
        assert_eq!(labels.values_by_key(1)[0].1, ["/a"]);
        let error = labels.require_key("tenant", true).unwrap_err().to_string();
        assert_eq!(
            error,
            "its samples have no label \"tenant\", but: route, a b"
        );
    }

    #[test]
    fn numbers_and_repeated_keys_are_values() {
        let mut labels = Labels::default();
        let number = |number, unit: &str| SetLabel::with_number("size".into(), number, unit.into());
        let text = |text: &str| SetLabel::with_text("tag".into(), text.into());
        let set = labels.add_set(vec![number(-4096, "bytes"), text("a"), text("b")]);
        let plain = labels.add_set(vec![number(7, "")]);
        assert_eq!(labels.add_set(vec![]), None);
        let check = |set, label: &str, is_matched: bool| {
            let label: Label = label.parse().unwrap();
            assert_eq!(labels.matches(set, &label), is_matched, "{label:?}");
        };
        assert_eq!(labels.value(set, "size"), "-4096 bytes");
        assert_eq!(labels.value(set, "tag"), "a, b");
        assert_eq!(labels.value(plain, "size"), "7");
        check(set, "size=-4096 bytes", true);
        check(set, "size=-4096", true);
        check(set, "tag=b", true);
        check(set, "tag=a, b", true);
        check(set, "tag=c", false);
        check(set, "size=7", false);
        check(plain, "size=7", true);
        check(plain, "tag=[none]", true);
    }
}
