//! Scripts.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The first bytes of a program, by which execve(2) tells what it is.
pub(crate) fn head(program: &File) -> io::Result<Vec<u8>> {
    // BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h.
    let mut head = vec![0; 256];
    let length = program.read_at(&mut head, 0)?;
    head.truncate(length);
    Ok(head)
}

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
