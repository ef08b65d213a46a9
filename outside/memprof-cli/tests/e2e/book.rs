//! The book: its pages, their links, and its table of exit codes.

use std::path::Path;
use std::process::Command;

use crate::dist::{dist, source};

#[test]
fn pages_are_in_the_summary_with_valid_links() {
    let pages = source("docs/src");
    let summary = std::fs::read_to_string(pages.join("SUMMARY.md")).unwrap();
    let linked: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect();
    for page in &linked {
        let text = whole(&pages.join(page));
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

/// README is also read in a package, which has the book beside it, and on pages that follow no symbolic links.
#[test]
fn readme_links_are_valid() {
    let text = std::fs::read_to_string(source("README.md")).unwrap();
    for link in text.split("](").skip(1) {
        let link = link.split(')').next().unwrap();
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let path = source(file);
        assert!(path.is_file(), "README.md: {link} leads to no file");
        assert!(
            !path.is_symlink(),
            "README.md: {link} leads to a symbolic link"
        );
        assert!(
            heading.is_empty() || anchors(&path).contains(&heading.to_owned()),
            "README.md: {link} leads to no heading"
        );
    }
}

/// Names under which a page's headings are linked to.
fn anchors(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    let is_kept = |char: &char| char.is_alphanumeric() || *char == '-';
    headings
        .map(|heading| {
            let words = heading.to_lowercase().replace(' ', "-");
            words.chars().filter(is_kept).collect()
        })
        .collect()
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
        whole += &read(&page.parent().unwrap().join(included));
        rest = after;
    }
    whole + rest
}

/// Targets of a page's links, without those to other sites and within the page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Target file of a page's link, as a browser finds it: links of the file system do not count.
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
fn exit_codes_match_the_help() {
    let page = std::fs::read_to_string(source("docs/src/exit-codes.md")).unwrap();
    let help = Command::new(dist("bin/memprof"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, codes) = help.split_once("Exit codes: ").unwrap();
    let reported: Vec<&str> = codes
        .split(|char: char| !char.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .collect();
    let listed = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(' '));
    let listed = listed
        .map(|(code, _)| code)
        .filter(|code| code.parse::<u8>().is_ok());
    assert_eq!(listed.collect::<Vec<_>>(), reported);
}
