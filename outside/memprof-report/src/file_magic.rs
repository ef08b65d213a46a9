//! Reads the first bytes of a file, which determine its format.

use std::io::{BufRead, Read};

use crate::error::{Error, Result};

/// Number of bytes, after blanks, that determine the format.
const MAGIC_LEN: usize = 16;

/// Largest number of bytes that are read to find `MAGIC_LEN` after blanks.
const MAX_BYTES: usize = 4 << 10;

/// Reads the start of a file, by which its format is known: leading blanks and up to `MAGIC_LEN` bytes after them. The
/// bytes are consumed from `input`, so a parser must get them before the rest. Fails if the file is empty or
/// unreadable.
pub(crate) fn read_magic(input: &mut dyn BufRead) -> Result<Vec<u8>> {
    let mut magic = Vec::new();
    while magic.len() < MAX_BYTES {
        let missing = MAGIC_LEN - magic.trim_ascii_start().len();
        let count = (&mut *input)
            .take(missing as u64)
            .read_to_end(&mut magic)
            .map_err(Error::failed_to("read the profile"))?;
        if count == 0 {
            break;
        }
    }
    if magic.is_empty() {
        return Err(Error::Empty {
            reason: "the file has no byte".into(),
        });
    }
    Ok(magic)
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, read_magic};

    #[test]
    fn magic_is_read_after_blanks() {
        let check = |text: &str, expected: usize| {
            let magic = read_magic(&mut text.as_bytes()).unwrap();
            assert_eq!(magic, text.as_bytes()[..expected]);
        };
        check("heap_v2/", 8);
        check("0123456789abcdefg", 16);
        for blanks in [1, 16, 100] {
            let text = format!("{}heap_v2/524288\n  t*:", "\n".repeat(blanks));
            check(&text, blanks + 16);
        }
        check(&"\n".repeat(3), 3);
        check(&"\n".repeat(2 * MAX_BYTES), MAX_BYTES);
    }
}
