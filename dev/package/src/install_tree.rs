//! The files of each package, laid out as they are installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::contents::{DEBUG, FileSource, LICENSES, Package};
use crate::sbom;
use xtask::run::{output, root, run};

/// Where trees are made of what was built.
#[derive(Debug)]
pub(crate) struct InstallTrees {
    /// What cargo built.
    pub(crate) built: PathBuf,
    /// The trees, each named after its package.
    pub(crate) place: PathBuf,
    pub(crate) epoch: u64,
}

impl InstallTrees {
    pub(crate) fn of(&self, package: &Package) -> PathBuf {
        self.place.join(package.name)
    }

    /// Lays out a package, and beside it what was split from its programs.
    pub(crate) fn lay_out(&self, package: &Package) -> Result<()> {
        let tree = self.of(package);
        for file in package.files {
            self.put(file.from, &tree.join(file.to))
                .with_context(|| format!("{}: {}", package.name, file.to))?;
        }
        let documents = tree.join("usr/share/doc").join(package.name);
        for license in LICENSES {
            copy(&root().join(license), &documents.join(license))?;
        }
        if let Some(built_from) = package.built_from {
            let bill = sbom::of(built_from, self.epoch)?;
            write(&documents.join(sbom::file_name(package.name)), &bill)?;
        }
        Ok(())
    }

    fn put(&self, from: FileSource, to: &Path) -> Result<()> {
        match from {
            FileSource::Program(name) => {
                self.stripped(name, to)?;
                set_mode(to, 0o755)
            }
            // Some servers refuse a module that nobody may execute.
            FileSource::Library(name) => {
                self.stripped(name, to)?;
                set_mode(to, 0o755)
            }
            FileSource::Archive(name) => {
                copy(&self.built.join(name), to)?;
                run(Command::new("strip")
                    .args(["--strip-debug", "--enable-deterministic-archives"])
                    .arg(to))
            }
            FileSource::Tree(path) => copy_all(&root().join(path), to),
            FileSource::Commented(heading) => write(to, &commented(heading)?),
            FileSource::Manual => {
                run(Command::new(self.built.join("memprof"))
                    .args(["man", "--directory"])
                    .arg(to))?;
                let pages = entries(to)?;
                run(Command::new("gzip").args(["-9", "--no-name"]).args(pages))
            }
            FileSource::Completion(shell) => {
                let mut memprof = Command::new(self.built.join("memprof"));
                write(to, &output(memprof.args(["completions", shell]))?)
            }
        }
    }

    /// Puts what was built in its place without what only debuggers read, which goes where they look for it.
    fn stripped(&self, name: &str, to: &Path) -> Result<()> {
        let built = self.built.join(name);
        let notes = output(Command::new("readelf").arg("--notes").arg(&built))?;
        let id = notes.split_once("Build ID: ").map(|(_, id)| id);
        let id = id.and_then(|id| id.split_whitespace().next());
        let id = id.with_context(|| format!("{} has no build id", built.display()))?;
        let (first, rest) = id.split_at(2);
        let debug = self.of(&DEBUG).join("usr/lib/debug/.build-id").join(first);
        let debug = debug.join(rest).with_added_extension("debug");
        prepare(&debug)?;
        run(Command::new("objcopy")
            .arg("--only-keep-debug")
            .args([&built, &debug]))?;
        set_mode(&debug, 0o644)?;
        prepare(to)?;
        run(Command::new("objcopy")
            .arg("--strip-all")
            .arg(&built)
            .arg(to))
    }
}

/// The first block of TOML below a heading of the reference, with each line a comment.
fn commented(heading: &str) -> Result<String> {
    let reference = fs::read_to_string(root().join("CONFIGURATION.md"))?;
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

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return copy(from, to);
    }
    for entry in entries(from)? {
        let name = entry.file_name().context("a directory has no name")?;
        copy_all(&entry, &to.join(name))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    prepare(to)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    set_mode(to, 0o644)
}

fn write(to: &Path, text: &str) -> Result<()> {
    prepare(to)?;
    fs::write(to, text).with_context(|| to.display().to_string())?;
    set_mode(to, 0o644)
}

fn prepare(file: &Path) -> Result<()> {
    let directory = file.parent().context("a file has no directory")?;
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, permissions).with_context(|| path.display().to_string())
}

/// Sorted.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let paths = read.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<std::io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// Every file below a directory, as it is called from there; sorted.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries(directory)? {
        let name = entry.strip_prefix(directory)?.to_owned();
        match entry.is_dir() {
            true => found.extend(files(&entry)?.into_iter().map(|below| name.join(below))),
            false => found.push(name),
        }
    }
    Ok(found)
}
