//! Checks that the functions and constants that ARCHITECTURE.md names are in the files that it names beside them.

use std::fs;

use anyhow::{Context as _, Result};
use xtask::run::project_root;

use super::sources::read_sources;

/// Document that maps tasks to files.
const MAP: &str = "ARCHITECTURE.md";

/// Finds names in the map that none of the source files of their line has: functions (`activate()`) and, in parentheses
/// behind a file, constants and types: `help.rs (COMMANDS, GROUPS)`. Each fault is `FILE:LINE: what`.
///
/// # Errors
/// The map or a source file cannot be read.
pub(super) fn find_faults() -> Result<Vec<String>> {
    let sources = read_sources(&["src", "tests"])?;
    let text = fs::read_to_string(project_root().join(MAP)).context(MAP)?;
    let has_name = |file: &str, name: &str| {
        let mut named = sources.iter().filter(|source| source.path.ends_with(file));
        named.any(|source| has_word(&source.text, name))
    };
    Ok(map_faults(&text, has_name))
}

/// Returns the faults of the map `text`. `has_name` tells whether a file whose path ends in the first argument contains
/// the second.
fn map_faults(text: &str, has_name: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let files = source_files(line);
        let functions = functions(line).map(|name| (files.clone(), name));
        let constants = files.iter().flat_map(|file| {
            let names = names_behind(line, file);
            names.map(|name| (vec![*file], name))
        });
        let missing = functions.chain(constants).filter(|(files, name)| {
            !files.is_empty() && !files.iter().any(|file| has_name(file, name))
        });
        faults.extend(
            missing.map(|(files, name)| {
                format!("{MAP}:{number}: no `{name}` in {}", files.join(", "))
            }),
        );
    }
    faults
}

/// Returns the source files of Rust that a line names, but for patterns such as `NAME.rs`.
fn source_files(line: &str) -> Vec<&str> {
    let words = line.split(|c: char| !is_path_char(c));
    let files = words.filter(|word| word.ends_with(".rs") && !word.contains("NAME"));
    files.collect()
}

/// Returns the functions that a line names: words before `()`.
fn functions(line: &str) -> impl Iterator<Item = &str> {
    let before = line.match_indices("()").map(|(at, _)| &line[..at]);
    let words = before.filter_map(|text| text.rsplit(|c: char| !is_name_char(c)).next());
    words.filter(|word| !word.is_empty())
}

/// Returns the constants and types in parentheses behind a file: names that begin with a capital letter.
fn names_behind<'l>(line: &'l str, file: &str) -> impl Iterator<Item = &'l str> {
    let behind = line.split_once(file).map_or("", |(_, behind)| behind);
    let inside = behind
        .strip_prefix(" (")
        .and_then(|rest| rest.split(')').next());
    let names = inside.unwrap_or_default().split(", ");
    names.filter(|name| {
        name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(is_name_char)
    })
}

/// Returns whether a text contains a name as a whole word.
fn has_word(text: &str, name: &str) -> bool {
    text.split(|c: char| !is_name_char(c))
        .any(|word| word == name)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_path_char(c: char) -> bool {
    is_name_char(c) || "./-".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_no_file_of_its_line_has_is_a_fault() {
        let has_name = |file: &str, name: &str| {
            let known = [("a.rs", "run"), ("b/c.rs", "LIMITS"), ("b/c.rs", "Kind")];
            known.contains(&(file, name))
        };
        let check = |line: &str, expected: &[&str]| {
            assert_eq!(map_faults(line, has_name), expected, "{line}");
        };
        check("a.rs, b/c.rs (LIMITS, Kind): run() with BLESS=1", &[]);
        check("NAME.rs (LIMITS), run() of no file", &[]);
        check("b/c.rs (data)", &[]);
        check(
            "a.rs: walk(); b/c.rs (ROWS)",
            &[
                "ARCHITECTURE.md:1: no `walk` in a.rs, b/c.rs",
                "ARCHITECTURE.md:1: no `ROWS` in b/c.rs",
            ],
        );
    }
}
