//! Standard input of a command that is run several times: each run reads the same data.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use anyhow::Context;

use crate::exit::{USAGE, with_exit_code};

/// Standard input of each run.
#[derive(Debug)]
pub(super) enum Input {
    /// A file, with the offset of its first unread byte: an earlier command of a script may have read a part.
    File { file: File, start: u64 },
    /// A terminal or another device without offsets, or the input of a single run.
    Stream,
}

impl Input {
    /// Prepares standard input for a number of runs. A single run takes any input.
    ///
    /// # Errors
    /// The input can be read only once. It is not copied, because a pipe that stays open would block for ever.
    pub(super) fn for_runs(runs: usize) -> anyhow::Result<Self> {
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        Self::from_file(File::from(stdin.context("standard input")?), runs)
    }

    /// Like [`for_runs`](Self::for_runs), but for any open file. A device without offsets, such as a terminal, is not
    /// refused.
    fn from_file(mut file: File, runs: usize) -> anyhow::Result<Self> {
        if runs == 1 {
            return Ok(Self::Stream);
        }
        match file.stream_position() {
            Ok(start) => Ok(Self::File { file, start }),
            Err(error) if error.kind() != ErrorKind::NotSeekable => {
                Err(error).context("standard input")
            }
            Err(_) if file.metadata()?.file_type().is_char_device() => Ok(Self::Stream),
            Err(_) => Err(with_exit_code(
                USAGE,
                format!(
                    "standard input is a pipe or a socket, which only the first of {runs} runs could read: \
                     give the input as a file (< FILE; < /dev/null for none), or use --runs 1"
                ),
            )),
        }
    }

    /// Sets the offset of a file back to where the first run has started; does nothing for a stream. The command shares
    /// the offset, which it inherits with the descriptor.
    pub(super) fn rewind(&mut self) -> anyhow::Result<()> {
        if let Self::File { file, start } = self {
            let rewound = file.seek(SeekFrom::Start(*start));
            rewound.context("failed to rewind standard input")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn runs_read_a_file_from_the_same_offset() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"read before, then for each run").unwrap();
        file.seek(SeekFrom::Start(13)).unwrap();
        let mut input = Input::from_file(file.try_clone().unwrap(), 3).unwrap();
        for _ in 0..3 {
            input.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "then for each run");
        }
    }

    #[test]
    fn pipe_serves_a_single_run_only() {
        let check = |make: &dyn Fn() -> OwnedFd, is_refused: bool| {
            let input = |runs| Input::from_file(File::from(make()), runs);
            input(1).unwrap();
            let refusal = input(5).err().map(|error| error.to_string());
            assert_eq!(refusal.is_some(), is_refused, "{refusal:?}");
            assert!(refusal.is_none_or(|text| text.contains("< FILE")));
        };
        check(&|| std::io::pipe().unwrap().0.into(), true);
        check(&|| UnixStream::pair().unwrap().0.into(), true);
        check(&|| File::open("/dev/null").unwrap().into(), false);
        check(&|| File::open("/dev/ptmx").unwrap().into(), false);
        check(&|| File::open("/").unwrap().into(), false);
        check(&|| tempfile::tempfile().unwrap().into(), false);
    }
}
