//! Reads lines from a buffered reader, copying only those that span two buffers.

use std::io::BufRead;

use crate::error::{Error, Result};

/// End of the last line of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// The last line ends with a newline.
    Complete,
    /// The last line, with this number from 1, has no newline and was not passed on.
    Truncated(u64),
}

/// Calls `visit` with the number (from 1) and the bytes of every line that ends in a newline. Returns whether the input
/// ends with a newline or within a line, which is not visited. Fails if a line has more than `max_len` bytes, the input
/// cannot be read, or `visit` fails.
pub(crate) fn for_each_line(
    input: &mut dyn BufRead,
    max_len: usize,
    mut visit: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<InputEnd> {
    let mut number = 0;
    let mut partial: Vec<u8> = Vec::new();
    loop {
        let buffer = input
            .fill_buf()
            .map_err(Error::failed_to("read the heap dump"))?;
        if buffer.is_empty() {
            return Ok(if partial.is_empty() {
                InputEnd::Complete
            } else {
                InputEnd::Truncated(number + 1)
            });
        }
        let mut start = 0;
        while let Some(length) = memchr::memchr(b'\n', &buffer[start..]) {
            let line = &buffer[start..start + length];
            start += length + 1;
            number += 1;
            check_line_length(max_len, partial.len() + line.len())?;
            if partial.is_empty() {
                visit(number, line)?;
            } else {
                partial.extend_from_slice(line);
                visit(number, &partial)?;
                partial.clear();
            }
        }
        check_line_length(max_len, partial.len() + buffer.len() - start)?;
        partial.extend_from_slice(&buffer[start..]);
        let consumed = buffer.len();
        input.consume(consumed);
    }
}

/// Splits a line, given without its newline, into its text and the carriage return that tools of Windows write at the
/// end of lines. The second part is empty if there is none.
pub(crate) fn split_carriage_return(line: &[u8]) -> (&[u8], &'static [u8]) {
    match line.strip_suffix(b"\r") {
        Some(text) => (text, b"\r"),
        None => (line, b""),
    }
}

/// Fails if the `length` of a line exceeds `max_len`; both in bytes.
fn check_line_length(max_len: usize, length: usize) -> Result<()> {
    if length <= max_len {
        return Ok(());
    }
    Err(Error::Limit {
        what: "bytes in a line",
        limit: max_len as u64,
    })
}
