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
fn every_page_is_in_the_summary_and_its_links_lead_to_the_book() {
    let pages = source("docs/src");
    let summary = std::fs::read_to_string(pages.join("SUMMARY.md")).unwrap();
    let linked: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect();
    let checked = ["start.md", "cookbook.md", "gate.md", "plugins.md"];
    for page in &linked {
        let text = whole(&pages.join(page));
        assert!(
            checked.contains(page) || !text.contains("```sh,run"),
            "{page} is not run"
        );
        for link in links(&text) {
            let target = joined(page, link);
            let is_there = match link.ends_with(".md") {
                true => linked.contains(&&*target),
                false => pages.join(&target).is_file(),
            };
            assert!(is_there, "{page}: {link} leads to no file of the book");
        }
    }
    assert_eq!(
        pages_below(&pages),
        linked.len() + 1,
        "a page is not in SUMMARY.md"
    );
}

/// A page with what it includes.
fn whole(page: &Path) -> String {
    let read = |path: &Path| {
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let text = read(page);
    let mut whole = String::new();
    let mut rest = &*text;
    while let Some((before, (included, after))) = rest
        .split_once("{{#include ")
        .and_then(|(before, rest)| Some((before, rest.split_once("}}")?)))
    {
        whole += before;
        let (path, anchor) = match included.rsplit_once(".md:") {
            Some((path, anchor)) => (format!("{path}.md"), Some(anchor)),
            None => (included.to_owned(), None),
        };
        let text = read(&page.parent().unwrap().join(path));
        whole += match anchor {
            Some(anchor) => {
                text.split_once(&format!("ANCHOR: {anchor}"))
                    .and_then(|(_, text)| text.split_once(&format!("ANCHOR_END: {anchor}")))
                    .unwrap_or_else(|| panic!("{}: {included}", page.display()))
                    .0
            }
            None => &text,
        };
        rest = after;
    }
    whole + rest
}

/// Where a page's links lead, but for those to other sites and within the page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// The file to which a page's link leads, as a browser finds it: links of the file system do not count.
fn joined(page: &str, link: &str) -> String {
    let mut names: Vec<&str> = page.split('/').collect();
    names.pop();
    for name in link.split('/') {
        match name {
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join("/")
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
