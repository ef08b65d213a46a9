//! Installation trees: the files of each package at the paths where they are installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::contents::{DEBUG, FileSource, LICENSES, Package};
use crate::sbom;
use xtask::dist;
use xtask::run::{output, project_root, run};

/// Directories of the build and of the installation trees.
#[derive(Debug)]
pub(crate) struct InstallTrees {
    /// Directory with the files that cargo built.
    pub(crate) build_dir: PathBuf,
    /// Parent directory of the trees, each named after its package.
    pub(crate) trees_dir: PathBuf,
    /// Time of the commit, in seconds since 1970.
    pub(crate) epoch: u64,
}

impl InstallTrees {
    /// Returns the root directory of a package's tree.
    pub(crate) fn tree_dir(&self, package: &Package) -> PathBuf {
        self.trees_dir.join(package.name)
    }

    /// Writes the tree of a package, with the licenses and the bill of materials, and the debug information of its
    /// programs into the tree of [`DEBUG`].
    pub(crate) fn lay_out_package(&self, package: &Package) -> Result<()> {
        let tree = self.tree_dir(package);
        for file in package.files {
            self.install_file(file.from, &tree.join(file.to))
                .with_context(|| format!("{}: {}", package.name, file.to))?;
        }
        let documents = tree.join("usr/share/doc").join(package.name);
        for license in LICENSES {
            copy_file(&project_root().join(license), &documents.join(license))?;
        }
        if let Some(built_from) = package.built_from {
            let sbom_text = sbom::package_bill(built_from, self.epoch)?;
            write_file(
                &documents.join(sbom::bill_file_name(package.name)),
                &sbom_text,
            )?;
        }
        Ok(())
    }

    /// Installs a file or directory of a package at the path `to`: copies it, strips it, or lets memprof generate it,
    /// according to its origin.
    fn install_file(&self, from: FileSource, to: &Path) -> Result<()> {
        match from {
            FileSource::Program(name) => {
                self.install_stripped(name, to)?;
                set_mode(to, 0o755)
            }
            // Some servers refuse a module without execute permission.
            FileSource::Library(name) => {
                self.install_stripped(name, to)?;
                set_mode(to, 0o755)
            }
            FileSource::Archive(name) => {
                copy_file(&self.build_dir.join(name), to)?;
                run(Command::new("strip")
                    .args(["--strip-debug", "--enable-deterministic-archives"])
                    .arg(to))
            }
            FileSource::Tree(path) => copy_recursively(&project_root().join(path), to),
            FileSource::Commented(heading) => write_file(to, &commented_config(heading)?),
            FileSource::Manual => {
                run(Command::new(self.build_dir.join("memprof"))
                    .args(["man", "--directory"])
                    .arg(to))?;
                let pages = sorted_entries(to)?;
                run(Command::new("gzip").args(["-9", "--no-name"]).args(pages))
            }
            FileSource::Completion(shell) => {
                let mut memprof = Command::new(self.build_dir.join("memprof"));
                write_file(to, &output(memprof.args(["completions", shell]))?)
            }
            FileSource::Sdk => dist::lay_out_sdk(to),
            FileSource::Book => copy_book(&project_root().join("docs/src"), to),
        }
    }

    /// Installs a program or library without its debug information, which goes to the path where debuggers search for
    /// its build id.
    fn install_stripped(&self, name: &str, to: &Path) -> Result<()> {
        let built = self.build_dir.join(name);
        let notes = output(Command::new("readelf").arg("--notes").arg(&built))?;
        let id = notes.split_once("Build ID: ").map(|(_, id)| id);
        let id = id.and_then(|id| id.split_whitespace().next());
        let id = id.with_context(|| format!("{} has no build id", built.display()))?;
        // gdb reads `/usr/lib/debug/.build-id/NN/REST.debug`, in which `NN` are the first two digits of the build id.
        let (first, rest) = id.split_at(2);
        let debug = self
            .tree_dir(&DEBUG)
            .join("usr/lib/debug/.build-id")
            .join(first);
        let debug = debug.join(rest).with_added_extension("debug");
        create_parent_dir(&debug)?;
        run(Command::new("objcopy")
            .arg("--only-keep-debug")
            .args([&built, &debug]))?;
        set_mode(&debug, 0o644)?;
        create_parent_dir(to)?;
        run(Command::new("objcopy")
            .arg("--strip-all")
            .arg(&built)
            .arg(to))
    }
}

/// Returns the first block of TOML below a heading of CONFIGURATION.md, with each line commented out. Fails if there is
/// none.
fn commented_config(heading: &str) -> Result<String> {
    let reference = fs::read_to_string(project_root().join("CONFIGURATION.md"))?;
    let below = reference.split_once(&format!("\n## {heading}\n"));
    let block = below.and_then(|(_, below)| below.split_once("```toml\n"));
    let Some((block, _)) = block.and_then(|(_, block)| block.split_once("```")) else {
        bail!("CONFIGURATION.md has no TOML below {heading:?}");
    };
    let head = "# Every key, with its default or an example. Uncomment a line to set it.\n#\n";
    let lines = block.lines().map(|line| match line {
        "" => "#\n".to_owned(),
        line => format!("# {line}\n"),
    });
    Ok(std::iter::once(head.to_owned()).chain(lines).collect())
}

/// Copies a file, or a directory with all files below it.
fn copy_recursively(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return copy_file(from, to);
    }
    for entry in sorted_entries(from)? {
        let name = entry.file_name().context("a directory has no name")?;
        copy_recursively(&entry, &to.join(name))?;
    }
    Ok(())
}

/// Copies the book's pages and pictures. Inserts the files that pages include, because a package lacks them.
fn copy_book(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return match from.extension() {
            Some(extension) if extension == "md" => write_file(to, &page_with_includes(from)?),
            _ => copy_file(from, to),
        };
    }
    for entry in sorted_entries(from)? {
        let name = entry.file_name().context("a directory has no name")?;
        copy_book(&entry, &to.join(name))?;
    }
    Ok(())
}

/// Returns the text of a page, in which the files that mdBook would include (`{{#include PATH}}`) are inserted.
fn page_with_includes(page: &Path) -> Result<String> {
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let folder = page.parent().context("a page has no directory")?;
    let mut parts = text.split("{{#include ");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (included, rest) = part.split_once("}}").context("an include has no end")?;
        let file = folder.join(included);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        whole += text.trim_end();
        whole += rest;
    }
    Ok(whole)
}

/// Copies a file, readable for all, and creates the directories above it.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    create_parent_dir(to)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    set_mode(to, 0o644)
}

/// Writes a file, readable for all, and creates the directories above it.
fn write_file(to: &Path, text: &str) -> Result<()> {
    create_parent_dir(to)?;
    fs::write(to, text).with_context(|| to.display().to_string())?;
    set_mode(to, 0o644)
}

/// Creates the directory of a file, and those above it.
fn create_parent_dir(file: &Path) -> Result<()> {
    let directory = file.parent().context("a file has no directory")?;
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}

/// Sets the permissions of a file or directory to `mode`, whatever the umask is.
fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, permissions).with_context(|| path.display().to_string())
}

/// Returns the paths of a directory's entries, sorted.
pub(crate) fn sorted_entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let paths = read.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<std::io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the paths of all files below a directory, relative to it, sorted.
pub(crate) fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in sorted_entries(directory)? {
        let name = entry.strip_prefix(directory)?.to_owned();
        match entry.is_dir() {
            true => found.extend(
                files_below(&entry)?
                    .into_iter()
                    .map(|below| name.join(below)),
            ),
            false => found.push(name),
        }
    }
    Ok(found)
}
