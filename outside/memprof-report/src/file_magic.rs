//! What a file begins with, which tells its format.

use std::io::{BufRead, Read};

use crate::error::{Error, Result};

/// How many bytes decide the format.
const HEAD: u64 = 16;

/// Reads the first bytes of a file, which has at least one.
pub(crate) fn read_magic(input: &mut dyn BufRead) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    input
        .take(HEAD)
        .read_to_end(&mut head)
        .map_err(Error::io("read the profile"))?;
    if head.is_empty() {
        return Err(Error::Empty {
            reason: "the file has no byte".into(),
        });
    }
    Ok(head)
}
