//! Questions with known answers, one TOML file for each area.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Cases of one file, `AREA.toml`, and the directory of their inputs, `inputs/AREA`.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) cases: Vec<Case>,
    pub(crate) inputs: PathBuf,
}

/// A question to memprof, and the texts by which its answer is judged.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Group of faults, in the words of a user; the cases of a kind share a row of the table.
    pub(crate) kind: String,
    pub(crate) name: String,
    /// Script for sh(1) that prepares the files and processes of the question, in a fresh directory. Processes that it
    /// leaves running are killed after the question. `$INPUTS` is the area's directory, `$PLUGIN` the plugin's file,
    /// and `memprof` is in the path.
    #[serde(default)]
    pub(crate) setup: String,
    /// The question, for sh(1), in the same directory.
    pub(crate) command: String,
    /// Exit status of the answer.
    #[serde(default)]
    pub(crate) status: i32,
    /// Texts that must occur in stdout or stderr.
    #[serde(default)]
    pub(crate) has: Vec<String>,
    /// Texts that must not occur there.
    #[serde(default)]
    pub(crate) lacks: Vec<String>,
    /// Texts by which the answer says what it leaves out.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
    /// Whether it takes more than five seconds.
    #[serde(default)]
    pub(crate) long: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Whether all cases take more than five seconds.
    #[serde(default)]
    long: bool,
    case: Vec<Case>,
}

impl Area {
    /// Reads the cases of the file `NAME.toml` in a directory. Fails if it is malformed, or if a case asks for no text:
    /// any answer would be right.
    pub(crate) fn read(directory: &Path, name: &str) -> Result<Self> {
        let path = directory.join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut file: File = toml::from_str(&text).with_context(|| path.display().to_string())?;
        for case in &mut file.case {
            case.long |= file.long;
            ensure!(
                !(case.has.is_empty() && case.notes.is_empty()),
                "{}: {:?} asks for no text, so any answer would be right",
                path.display(),
                case.name
            );
        }
        Ok(Self {
            cases: file.case,
            inputs: directory.join("inputs").join(name),
        })
    }
}

/// Returns the names of the areas in a directory, sorted: those of its TOML files, without the extension.
pub(crate) fn list_areas(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let stem = path.file_stem().unwrap_or_default();
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
