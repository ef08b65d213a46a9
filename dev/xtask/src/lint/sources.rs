//! The source files of the workspace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use xtask::run::{project_root, workspace_members};

#[derive(Debug)]
pub(super) struct SourceFile {
    /// Folder of the crate, as the workspace lists it.
    pub(super) member: String,
    /// Relative to the project's root.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Reads the Rust files in these folders of each crate in the workspace: `src`, for example, which has unit tests too.
pub(super) fn read_sources(folders: &[&str]) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for member in workspace_members()? {
        for folder in folders {
            let folder = project_root().join(&member).join(folder);
            if folder.is_dir() {
                read_folder(&member, &folder, &mut files)?;
            }
        }
    }
    Ok(files)
}

/// Adds the Rust files of a folder, and of the folders in it, to `files`. `member` is the crate's folder.
fn read_folder(member: &str, folder: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            read_folder(member, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path
                .strip_prefix(project_root())
                .unwrap_or(&path)
                .to_owned();
            files.push(SourceFile {
                member: member.to_owned(),
                path,
                text,
            });
        }
    }
    Ok(())
}
