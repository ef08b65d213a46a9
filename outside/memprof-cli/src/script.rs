//! Finds programs as a shell does, and interpreters of scripts.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::exit::{USAGE, with_exit_code};

/// Reads the first bytes of a program, by which execve(2) recognizes its format.
pub(crate) fn read_head(program: &File) -> io::Result<Vec<u8>> {
    // BINPRM_BUF_SIZE, include/uapi/linux/binfmts.h.
    let mut head = vec![0; 256];
    let length = program.read_at(&mut head, 0)?;
    head.truncate(length);
    Ok(head)
}

/// Finds the file of a program in PATH, as a shell does. A name with a slash is taken for a path, which need not exist.
///
/// # Errors
/// No program with that name is in PATH.
pub(crate) fn find_in_path(name: &OsStr) -> anyhow::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| {
            file.metadata()
                .is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
        });
    found.ok_or_else(|| with_exit_code(USAGE, format!("no program {} is in PATH", name.display())))
}

/// Returns the path of the interpreter that the `#!` line of a script names. `head` are the first bytes of the file.
/// `None` if the file has no such line, or the line is empty.
pub(crate) fn script_interpreter(head: &[u8]) -> Option<PathBuf> {
    Some(PathBuf::from(shebang_words(head)?.next()?))
}

/// Like [`script_interpreter`], but for `#!/usr/bin/env PROGRAM` returns the program that env(1) looks up. `None` if
/// the file is no script, or if its line gives no program to env(1).
pub(crate) fn named_interpreter(head: &[u8]) -> Option<PathBuf> {
    let mut words = shebang_words(head)?;
    let path = Path::new(words.next()?);
    if path.file_name() != Some(OsStr::new("env")) {
        return Some(path.to_owned());
    }
    // env(1): options and assignments come before the program.
    let is_program = |word: &&OsStr| {
        let word = word.as_bytes();
        !word.starts_with(b"-") && !word.contains(&b'=')
    };
    words.find(is_program).map(PathBuf::from)
}

/// Returns the words of the `#!` line; `None` without one.
fn shebang_words(head: &[u8]) -> Option<impl Iterator<Item = &OsStr>> {
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let words = line.split(u8::is_ascii_whitespace);
    Some(words.filter(|word| !word.is_empty()).map(OsStr::from_bytes))
}

#[cfg(test)]
mod tests {
    use super::{named_interpreter, script_interpreter};

    #[test]
    fn interpreter_is_read_from_the_first_line() {
        let check = |script: &str, started: Option<&str>, named: Option<&str>| {
            let text =
                |path: Option<std::path::PathBuf>| path.map(|path| path.display().to_string());
            let bytes = script.as_bytes();
            assert_eq!(
                text(script_interpreter(bytes)).as_deref(),
                started,
                "{script:?}"
            );
            assert_eq!(
                text(named_interpreter(bytes)).as_deref(),
                named,
                "{script:?}"
            );
        };
        check("#!/bin/sh -e\nls\n", Some("/bin/sh"), Some("/bin/sh"));
        check("#! /bin/sh", Some("/bin/sh"), Some("/bin/sh"));
        let env = Some("/usr/bin/env");
        check("#!/usr/bin/env python3\n", env, Some("python3"));
        check("#!/usr/bin/env -S A=1 node --x\n", env, Some("node"));
        check("#!/usr/bin/env\n", env, None);
        check("#!\n/bin/sh", None, None);
        check("import time\n", None, None);
    }
}
