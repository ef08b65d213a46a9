//! Lines out of a reader, without copying those that lie in one buffer.

use std::io::BufRead;

use crate::error::{Error, Result};

/// How the last line of an input ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// With a newline.
    Whole,
    /// Without: this line, counted from 1, was cut and not delivered.
    Cut(u64),
}

/// Calls `each` with the number (from 1) and the bytes of every line that ends in a newline.
pub(crate) fn for_each_line(
    input: &mut dyn BufRead,
    longest: usize,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<InputEnd> {
    let mut number = 0;
    let mut cut: Vec<u8> = Vec::new();
    loop {
        let buffer = input.fill_buf().map_err(Error::io("read the heap dump"))?;
        if buffer.is_empty() {
            return Ok(if cut.is_empty() {
                InputEnd::Whole
            } else {
                InputEnd::Cut(number + 1)
            });
        }
        let mut start = 0;
        while let Some(length) = memchr::memchr(b'\n', &buffer[start..]) {
            let line = &buffer[start..start + length];
            start += length + 1;
            number += 1;
            check_length(longest, cut.len() + line.len())?;
            if cut.is_empty() {
                each(number, line)?;
            } else {
                cut.extend_from_slice(line);
                each(number, &cut)?;
                cut.clear();
            }
        }
        check_length(longest, cut.len() + buffer.len() - start)?;
        cut.extend_from_slice(&buffer[start..]);
        let consumed = buffer.len();
        input.consume(consumed);
    }
}

fn check_length(longest: usize, length: usize) -> Result<()> {
    if length <= longest {
        return Ok(());
    }
    Err(Error::Limit {
        what: "bytes in a line",
        limit: longest as u64,
    })
}
