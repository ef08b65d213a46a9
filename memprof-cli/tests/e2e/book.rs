//! The commands of the book: each page's, in their order, in one shell.

use std::path::Path;
use std::process::Command;

use crate::dist::{dist, source};
use crate::typed::{System, blocks, type_in};

/// Types what a reader is to type, in blocks that are marked `sh,run`.
fn check(page: &str) {
    let blocks = blocks(&source("docs/src").join(page), "sh,run");
    let script: String = blocks.into_iter().map(|block| block.commands).collect();
    assert!(!script.is_empty(), "{page} has no command");
    type_in(page, System::Shared, &script);
}

#[test]
fn the_first_page() {
    check("start.md");
}

#[test]
fn the_cookbook() {
    check("cookbook.md");
}

#[test]
fn the_gate() {
    check("gate.md");
}

#[test]
fn plugins() {
    check("plugins.md");
}

#[test]
fn every_page_is_in_the_summary_and_what_it_includes_is_there() {
    let pages = source("docs/src");
    let summary = std::fs::read_to_string(pages.join("SUMMARY.md")).unwrap();
    let linked: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect();
    let checked = ["start.md", "cookbook.md", "gate.md", "plugins.md"];
    for page in &linked {
        let file = pages.join(page);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{page}: {error}"));
        let included = text.split("{{#include ").skip(1);
        for included in included.filter_map(|rest| Some(rest.split_once("}}")?.0)) {
            let (path, anchor) = included
                .split_once(".md:")
                .map_or((included.to_owned(), None), |(path, anchor)| {
                    (format!("{path}.md"), Some(anchor))
                });
            let target = file.parent().unwrap().join(path);
            let text = std::fs::read_to_string(&target);
            let text = text.unwrap_or_else(|error| panic!("{page}: {}: {error}", target.display()));
            let anchor = anchor.map(|anchor| format!("ANCHOR: {anchor}"));
            assert!(
                anchor.is_none_or(|anchor| text.contains(&anchor)),
                "{page}: {included}"
            );
        }
        assert!(
            checked.contains(page) || !text.contains("```sh,run"),
            "{page} is not run"
        );
    }
    assert_eq!(
        pages_below(&pages),
        linked.len() + 1,
        "a page is not in SUMMARY.md"
    );
}

fn pages_below(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap();
    let count = |path: &Path| match path.is_dir() {
        true => pages_below(path),
        false => usize::from(path.extension().is_some_and(|extension| extension == "md")),
    };
    entries.map(|entry| count(&entry.unwrap().path())).sum()
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let page = std::fs::read_to_string(source("docs/src/exit-codes.md")).unwrap();
    let help = Command::new(dist("bin/memprof"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, codes) = help.split_once("Exit codes: ").unwrap();
    let told: Vec<&str> = codes
        .split(|char: char| !char.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .collect();
    let listed = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(' '));
    let listed = listed
        .map(|(code, _)| code)
        .filter(|code| code.parse::<u8>().is_ok());
    assert_eq!(listed.collect::<Vec<_>>(), told);
}
