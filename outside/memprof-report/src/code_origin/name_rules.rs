//! Rules for names: which one matches, and whether it holds for a function.

mod rule_index;

use self::rule_index::RULES;
use super::CodeOrigin;
use super::function_evidence::{FunctionEvidence, SourceEvidence};
use super::namespace::namespaces;
use super::rules::{NameRule, Reach};
use super::source_file::has_word_with_prefix;
use crate::demangle::Language;

/// Rule that holds for a function, with its pattern.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchingRule {
    pub(super) origin: CodeOrigin,
    pub(super) pattern: &'static str,
}

/// Returns the rule that holds for a function. If each namespace of its name has a rule, the rule with the highest
/// origin decides, in the order of `CodeOrigin`. A namespace without a rule may be the program's, so the first rule for
/// the whole name decides then. `None` if no rule holds.
pub(super) fn find_rule(function: &FunctionEvidence<'_>) -> Option<MatchingRule> {
    let namespaces = namespaces(function.name);
    let by_namespace = namespaces.iter().map(|namespace| {
        let holds = |rule: &NameRule| rule_holds(&rule.reach, function, Some(namespace));
        RULES.of_namespaces.find(namespace, holds)
    });
    let by_namespace: Option<Vec<MatchingRule>> = by_namespace.collect();
    let highest = by_namespace.and_then(|rules| rules.into_iter().max_by_key(|rule| rule.origin));
    let holds = |rule: &NameRule| rule_holds(&rule.reach, function, None);
    highest.or_else(|| RULES.of_names.find(function.name, holds))
}

/// Returns whether a rule, whose pattern matches a function's name, also holds for the function. The rule's `reach`
/// limits it to functions of one language or runtime, to JIT code, or to those whose source or mapped file fits the
/// name. `namespace` is the part of the name that the pattern matched; `None` if it matched the whole name.
fn rule_holds(reach: &Reach, function: &FunctionEvidence<'_>, namespace: Option<&str>) -> bool {
    let path = match function.source {
        SourceEvidence::Own(path) => Some(path),
        SourceEvidence::Library { .. } | SourceEvidence::Unknown => None,
    };
    match reach {
        Reach::Reserved => true,
        // A program's own source may add to the namespace, so the path must have a directory of that name.
        Reach::Distinct => path.is_none_or(|path| {
            let first = namespace.unwrap_or(function.name).split("::").next();
            first.is_some_and(|first| path.split('/').any(|part| part == first))
        }),
        // A Rust library is named by its source; without one, by the crate's name, unless `main` is in that crate.
        Reach::Language(language) => path.is_none() && function.language == Some(*language),
        Reach::Runtime(runtime) => path.is_none() && function.runtime == Some(*runtime),
        Reach::Jit => function.file.is_jit || function.file.path.is_none(),
        Reach::With(words) => {
            let is_own = function.file.is_own();
            let file_name = function.file.path.and_then(|path| path.rsplit('/').next());
            let has_word_with_prefix =
                |path: Option<&str>| path.is_some_and(|path| has_word_with_prefix(path, words));
            match function.source {
                SourceEvidence::Library { path, .. } => has_word_with_prefix(Some(path)) || !is_own,
                // A relative path leaves out the directory of the package.
                SourceEvidence::Own(path)
                    if path.starts_with('/') && (is_own || function.file.path.is_none()) =>
                {
                    has_word_with_prefix(Some(path))
                }
                SourceEvidence::Own(path) if is_own => {
                    has_word_with_prefix(Some(path)) || has_word_with_prefix(file_name)
                }
                SourceEvidence::Own(path) if function.file.path.is_none() => {
                    has_word_with_prefix(Some(path))
                }
                SourceEvidence::Own(_) | SourceEvidence::Unknown => {
                    !is_own || has_word_with_prefix(file_name)
                }
            }
        }
    }
}

/// Language of a function whose symbol is not known, by its demangled name: Rust if the name is a path and the profile
/// has Rust code (`has_rust`), else `None`.
pub(super) fn language_of_demangled_name(name: &str, has_rust: bool) -> Option<Language> {
    let is_path = name.contains("::") || name.starts_with('<');
    (has_rust && is_path).then_some(Language::Rust)
}
