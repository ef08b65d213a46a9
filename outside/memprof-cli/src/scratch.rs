//! A temporary file without a name. The kernel removes it when this program ends, however it ends.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use anyhow::Context;

/// A nameless file, removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ScratchFile(File);

impl ScratchFile {
    /// Creates an empty file without a name in the directory for temporary files.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let failed = || {
            let directory = std::env::temp_dir();
            format!(
                "failed to make a temporary file in {} ($TMPDIR)",
                directory.display()
            )
        };
        tempfile::tempfile().map(Self).with_context(failed)
    }

    /// Appends all of `data` to the file.
    pub(crate) fn append(&mut self, data: &mut dyn io::Read) -> anyhow::Result<()> {
        let copied = io::copy(data, &mut self.0);
        copied.context("failed to write a temporary file")?;
        Ok(())
    }

    /// Returns the path of the file in this process (/proc/self/fd). Each open(2) of it reads from the start.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameless_file_is_read_by_its_path() {
        let mut file = ScratchFile::new().unwrap();
        file.append(&mut &b"heap "[..]).unwrap();
        file.append(&mut &b"profile"[..]).unwrap();
        for _ in 0..2 {
            let text = std::fs::read_to_string(file.path()).unwrap();
            assert_eq!(text, "heap profile");
        }
        let name = std::fs::read_link(file.path()).unwrap();
        assert!(!name.exists(), "{name:?}");
    }
}
