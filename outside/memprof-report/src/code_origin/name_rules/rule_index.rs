//! Patterns of the rules for names, by the first byte of the names that they match: a profile has thousands of
//! functions, and each would be compared with hundreds of patterns.

use std::sync::LazyLock;

use super::MatchingRule;
use crate::code_origin::glob::matches_glob;
use crate::code_origin::rules::{FUNCTIONS, LANGUAGES, LIBRARIES, NAMESPACES, NameRule};

/// All rules for names.
pub(super) struct RuleIndexes {
    pub(super) of_namespaces: RuleIndex,
    /// Rules for whole names: those for functions first, then those for libraries and for languages.
    pub(super) of_names: RuleIndex,
}

pub(super) static RULES: LazyLock<RuleIndexes> = LazyLock::new(|| RuleIndexes {
    of_namespaces: RuleIndex::new(&[NAMESPACES]),
    of_names: RuleIndex::new(&[FUNCTIONS, LIBRARIES, LANGUAGES]),
});

/// A pattern, and the rule that has it.
type RulePattern = (&'static NameRule, &'static str);

/// Patterns in the order of their rules.
pub(super) struct RuleIndex {
    /// By first byte of a name: the patterns that may match it.
    by_first_byte: Vec<Vec<RulePattern>>,
}

impl RuleIndex {
    /// Indexes the patterns of all rules in `tables`, in this order. A pattern that begins with `*` is entered for
    /// every first byte.
    fn new(tables: &[&'static [NameRule]]) -> Self {
        let mut by_first_byte = vec![Vec::new(); 256];
        for rule in tables.iter().copied().flatten() {
            for pattern in rule.names {
                let bytes = match pattern.as_bytes().first() {
                    Some(b'*') | None => 0..=u8::MAX,
                    Some(first) => *first..=*first,
                };
                for byte in bytes {
                    by_first_byte[usize::from(byte)].push((rule, *pattern));
                }
            }
        }
        Self { by_first_byte }
    }

    /// Returns the first rule that has a pattern for `name` and for which `holds` is true, with that pattern. `None` if
    /// there is no such rule, or `name` is empty.
    pub(super) fn find(
        &self,
        name: &str,
        holds: impl Fn(&NameRule) -> bool,
    ) -> Option<MatchingRule> {
        let first = name.as_bytes().first()?;
        let mut patterns = self.by_first_byte[usize::from(*first)].iter();
        let (rule, pattern) =
            patterns.find(|(rule, pattern)| matches_glob(pattern, name) && holds(rule))?;
        Some(MatchingRule {
            origin: rule.origin,
            pattern,
        })
    }
}
