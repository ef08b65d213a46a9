//! Reads the first bytes of a file, which determine its format.

use std::io::{BufRead, Read};

use crate::error::{Error, Result};

/// Number of bytes that determine the format.
const MAGIC_LEN: u64 = 16;

/// Reads up to `MAGIC_LEN` bytes from the start of a file. Fails if the file is empty or unreadable.
pub(crate) fn read_magic(input: &mut dyn BufRead) -> Result<Vec<u8>> {
    let mut magic = Vec::new();
    input
        .take(MAGIC_LEN)
        .read_to_end(&mut magic)
        .map_err(Error::io("read the profile"))?;
    if magic.is_empty() {
        return Err(Error::Empty {
            reason: "the file has no byte".into(),
        });
    }
    Ok(magic)
}
