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
    let known = KnownPaths::of_files(&files);
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

/// Paths to which a document may link, and by which it may name a file.
struct KnownPaths {
    /// Each file and each folder above one, from the project's root on; the root itself is empty.
    whole: HashSet<PathBuf>,
    /// Each end of these paths: `src/lint/words.rs`, `lint/words.rs`, `words.rs`.
    ends: HashSet<PathBuf>,
}

impl KnownPaths {
    /// Collects the paths of files, which are relative to the project's root.
    fn of_files(files: &[PathBuf]) -> Self {
        let paths = files.iter().flat_map(|file| file.ancestors());
        let whole: HashSet<PathBuf> = paths.map(Path::to_owned).collect();
        let ends = whole.iter().flat_map(|path| {
            let parts: Vec<Component<'_>> = path.components().collect();
            let ends = (0..parts.len()).map(|start| parts[start..].iter().collect());
            ends.collect::<Vec<PathBuf>>()
        });
        let ends = ends.collect();
        Self { whole, ends }
    }
}

/// Returns the faults of one document: links that lead to no path of `known` and, in a document of [`MAPS`], names of
/// source files that are the end of none.
fn document_faults(file: &Path, text: &str, known: &KnownPaths) -> Vec<String> {
    let is_map = MAPS.iter().any(|map| file.starts_with(map));
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut faults = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut check = |is_known: bool, named: &str| {
            if !is_known {
                let file = file.display();
                faults.push(format!("{file}:{number}: `{named}` names no file"));
            }
        };
        for link in link_targets(line) {
            let path = resolve_link(folder, link);
            check(path.is_some_and(|path| known.whole.contains(&path)), link);
        }
        for name in source_file_names(line).filter(|_| is_map) {
            check(known.ends.contains(Path::new(name)), name);
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

/// Returns the path to which a link in a document of `folder` leads, without `..`. `None` if it leads out of the
/// project, by too many `..` or as an absolute path.
fn resolve_link(folder: &Path, link: &str) -> Option<PathBuf> {
    let mut path = folder.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir if path.pop() => {}
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_or_a_source_file_that_is_not_there_is_a_fault() {
        let files = ["docs/design/1.md", "dev/x/src/lib.rs", "README.md"].map(PathBuf::from);
        let known = KnownPaths::of_files(&files);
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
        // A link has a whole path, not the end of one, and stays in the project.
        check(
            "README.md",
            "[a](design/1.md) [b](docs) [c](1.md)",
            &[
                "README.md:1: `design/1.md` names no file",
                "README.md:1: `1.md` names no file",
            ],
        );
        check(
            "docs/design/1.md",
            "[a](../..) [b](../../../README.md) [c](/README.md)",
            &[
                "docs/design/1.md:1: `../../../README.md` names no file",
                "docs/design/1.md:1: `/README.md` names no file",
            ],
        );
        check("ARCHITECTURE.md", "`x/src/lib.rs`, lib.rs; NAME.rs", &[]);
        check(
            "ARCHITECTURE.md",
            "x/lib.rs",
            &["ARCHITECTURE.md:1: `x/lib.rs` names no file"],
        );
    }
}
