//! Scripts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The program that runs a script.
pub(crate) fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = line.trim_ascii_start();
    let path = line.split(u8::is_ascii_whitespace).next()?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}
