//! Frames that a pprof profile asks to leave out: those of the functions that its `drop_frames` matches and its
//! `keep_frames` does not, with all functions that they call. Source: `RemoveUninteresting` of pprof's `prune.go`.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

use crate::profile::Profile;
use crate::stacks::AddressId;

/// Largest size of a compiled pattern in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Longest pattern in bytes: to parse it takes some hundred times as much memory. Those of pprof have some 2 KiB.
const MAX_PATTERN_LEN: usize = 16 << 10;

/// Patterns of functions.
struct DropPatterns {
    drop: Regex,
    keep: Option<Regex>,
}

impl DropPatterns {
    /// Compiles the patterns, which match whole names. An empty `keep` matches none. `None` if one is malformed or
    /// too long.
    fn compile(drop: &str, keep: &str) -> Option<Self> {
        let compile = |pattern: &str| {
            if pattern.len() > MAX_PATTERN_LEN {
                return None;
            }
            RegexBuilder::new(&format!("^(?:{pattern})$"))
                .size_limit(MAX_PATTERN_BYTES)
                .build()
                .ok()
        };
        Some(Self {
            drop: compile(drop)?,
            keep: match keep {
                "" => None,
                keep => Some(compile(keep)?),
            },
        })
    }

    /// Returns whether a function is left out, with all functions that it calls: its name without parameters matches
    /// `drop` and does not match `keep`.
    fn drops_function(&self, name: &str) -> bool {
        let name = without_parameters(name);
        let is_kept = || self.keep.as_ref().is_some_and(|keep| keep.is_match(name));
        self.drop.is_match(name) && !is_kept()
    }
}

/// Returns the name of a C++ function up to the bracket of its parameters. The brackets of `operator()` and `(anonymous
/// namespace)` are part of the name.
fn without_parameters(name: &str) -> &str {
    let mut brackets = name
        .match_indices('(')
        .map(|(start, _)| name.split_at(start));
    let parameters = brackets.find(|(before, after)| {
        let is_call_operator = before.ends_with("operator") && after.starts_with("()");
        !is_call_operator && !after.starts_with("(anonymous namespace)")
    });
    parameters.map_or(name, |(before, _)| before)
}

impl Profile {
    /// Removes the frames of the functions that the pattern `drop` matches and `keep` does not, and all frames that
    /// they called. Matching frames at the root stay, so that no stack is empty. If a pattern is malformed or too long,
    /// adds a warning and removes nothing.
    pub(super) fn drop_frames(&mut self, drop: &str, keep: &str) {
        let Some(names) = &mut self.names else {
            return;
        };
        let Some(patterns) = DropPatterns::compile(drop, keep) else {
            let warning =
                "its drop_frames or keep_frames is no valid pattern: all frames are shown";
            self.warnings.push(warning.to_owned());
            return;
        };
        // Many locations may have one long name.
        let mut known = HashMap::new();
        let addresses = (0..self.stacks.addresses().len() as u32).map(AddressId);
        // By address: `None` if no function of it matches. Else the addresses towards the leaf are left out, and the
        // value says whether the address itself is, too. It stays if it has callers of the matching function.
        let cuts = addresses.map(|address| {
            let frames = names.frames(address);
            let last = frames.iter().rposition(|frame| {
                let matches = || patterns.drops_function(names.strings.get(frame.function));
                *known.entry(frame.function).or_insert_with(matches)
            })?;
            let callers = frames[last + 1..].to_vec();
            if callers.is_empty() {
                return Some(true);
            }
            names.set_frames(address, &callers);
            Some(false)
        });
        let cuts: Vec<Option<bool>> = cuts.collect();
        self.stacks.select_frames(|frames| {
            let cut = |index: &usize| cuts[frames[*index].0 as usize];
            // Frames come leaf first. Matching frames at the root stay.
            let mut from_root = (0..frames.len())
                .rev()
                .skip_while(|index| cut(index).is_some());
            let dropped = from_root.find_map(|index| Some(index + usize::from(cut(&index)?)));
            frames.drain(..dropped.unwrap_or(0));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{DropPatterns, without_parameters};

    #[test]
    fn patterns_match_whole_names_without_parameters() {
        let check = |name: &str, expected: bool| {
            let patterns = DropPatterns::compile("pool::.*|track", "pool::main").unwrap();
            assert_eq!(patterns.drops_function(name), expected, "{name}");
        };
        check("track", true);
        check("track(int)", true);
        check("tracker", false);
        check("a_track", false);
        check("pool::alloc", true);
        check("pool::main", false);
        check("pool::main(int, char**)", false);
    }

    #[test]
    fn parameters_begin_after_brackets_of_the_name() {
        let check = |name, expected| assert_eq!(without_parameters(name), expected);
        check("f", "f");
        check("f(int (*)(int))", "f");
        check("(anonymous namespace)::f(int)", "(anonymous namespace)::f");
        check("T::operator()(int)", "T::operator()");
        check("T::operator()", "T::operator()");
    }
}
