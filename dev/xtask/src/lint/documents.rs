//! Checks that the files exist to which documents link, and the source files that some of them name.

use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};
use xtask::run::project_root;

/// The book, whose links a test of memprof-cli follows.
const BOOK: &str = "docs/src";

/// Documents, and a folder of documents, that name source files.
const MAPS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/design"];

/// Finds links and names of files in Markdown documents, without those of the book and of `hosts-examples`, that lead
/// to no file. Each fault is `FILE:LINE: what`.
///
/// # Errors
/// A folder or a document cannot be read.
pub(super) fn find_faults() -> Result<Vec<String>> {
    let mut files = Vec::new();
    add_files(&project_root(), Path::new(""), &mut files)?;
    let is_document = |file: &&PathBuf| {
        let is_markdown = file.extension().is_some_and(|extension| extension == "md");
        is_markdown && !file.starts_with(BOOK) && !file.starts_with("hosts-examples")
    };
    let known = path_ends(&files);
    let mut faults = Vec::new();
    for file in files.iter().filter(is_document) {
        let text = fs::read_to_string(project_root().join(file));
        let text = text.with_context(|| file.display().to_string())?;
        faults.extend(document_faults(file, &text, &known));
    }
    Ok(faults)
}

/// Adds the files of a folder and of those in it, relative to the project's root. Leaves out hidden folders and those
/// named `target`.
fn add_files(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let whole = root.join(folder);
    for entry in fs::read_dir(&whole).with_context(|| whole.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = entry.file_type()?;
        let is_hidden = name.to_string_lossy().starts_with('.');
        if kind.is_dir() && !is_hidden && name != "target" {
            add_files(root, &folder.join(name), files)?;
        } else if kind.is_file() {
            files.push(folder.join(name));
        }
    }
    Ok(())
}

/// Returns each path, the paths of the folders above it, and each end of these paths: `src/lint/words.rs`,
/// `lint/words.rs`, `words.rs`. A document may name a file by any of them.
fn path_ends(files: &[PathBuf]) -> HashSet<PathBuf> {
    let mut ends = HashSet::new();
    for file in files {
        for path in file.ancestors() {
            let parts: Vec<Component<'_>> = path.components().collect();
            ends.extend((0..parts.len()).map(|start| parts[start..].iter().collect()));
        }
    }
    ends
}

/// Returns the faults of one document: links and, in a document of [`MAPS`], names of source files that are not in
/// `known`.
fn document_faults(file: &Path, text: &str, known: &HashSet<PathBuf>) -> Vec<String> {
    let is_map = MAPS.iter().any(|map| file.starts_with(map));
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut faults = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut check = |path: PathBuf, named: &str| {
            if !known.contains(&path) {
                let file = file.display();
                faults.push(format!("{file}:{number}: `{named}` names no file"));
            }
        };
        for link in link_targets(line) {
            check(resolve_link(folder, link), link);
        }
        for name in source_file_names(line).filter(|_| is_map) {
            check(PathBuf::from(name), name);
        }
    }
    faults
}

/// Returns the targets of the links in a line, without their fragments; not those to other sites, or within the
/// document.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// Returns the words of a line that name a file of Rust or JavaScript. A name with `NAME` in it stands for any, and is
/// left out.
fn source_file_names(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c));
    words.filter(|word| {
        let stem = word.strip_suffix(".rs").or(word.strip_suffix(".js"));
        stem.is_some_and(|stem| !stem.is_empty() && !stem.contains("NAME"))
    })
}

/// Returns the path to which a link in a document of `folder` leads, without `..`.
fn resolve_link(folder: &Path, link: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_or_a_source_file_that_is_not_there_is_a_fault() {
        let files = ["docs/design/1.md", "dev/x/src/lib.rs", "README.md"].map(PathBuf::from);
        let known = path_ends(&files);
        let check = |file: &str, text: &str, expected: &[&str]| {
            assert_eq!(
                document_faults(Path::new(file), text, &known),
                expected,
                "{text}"
            );
        };
        check(
            "README.md",
            "[a](docs/design/1.md#b) [c](https://d.e/f.md)",
            &[],
        );
        check(
            "docs/design/1.md",
            "[a](../../README.md) [b](1.md) [c](../../dev/x)",
            &[],
        );
        check(
            "README.md",
            "\n[a](docs/2.md), no.rs",
            &["README.md:2: `docs/2.md` names no file"],
        );
        check("ARCHITECTURE.md", "`x/src/lib.rs`, lib.rs; NAME.rs", &[]);
        check(
            "ARCHITECTURE.md",
            "x/lib.rs",
            &["ARCHITECTURE.md:1: `x/lib.rs` names no file"],
        );
    }
}
