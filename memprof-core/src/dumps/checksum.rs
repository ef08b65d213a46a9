//! The checksum of a dump, which reveals a damaged address or path.
//!
//! CRC-32 (IEEE 802.3, as in gzip) of all bytes except the checksum's own line and carriage returns, because some ways
//! of copying text add these.

use std::io::{Cursor, Read, Result};

use crc32fast::Hasher;

/// First line of a dump with a checksum. If a reader finds this line but no checksum, the end of the dump is missing.
pub(crate) const CHECKSUM_ANNOUNCEMENT: &str = "# memprof 2\n";

/// Line that contains the checksum. Its length is constant.
fn checksum_line(sum: u32) -> String {
    format!("# checksum: crc32 {sum:08x}\n")
}

/// Reader of a dump: the profile, followed by text that contains the checksum of everything.
pub(crate) struct ChecksummedDump<R> {
    profile: R,
    sum: Hasher,
    before: String,
    after: String,
    /// Text after the profile. `None` until the profile was read to its end.
    tail: Option<Cursor<String>>,
}

impl<R: Read> ChecksummedDump<R> {
    /// Creates a reader of `profile`, then `before`, the checksum line and `after`. The checksum covers everything
    /// except its own line.
    pub(crate) fn new(profile: R, [before, after]: [String; 2]) -> Self {
        Self {
            profile,
            sum: Hasher::new(),
            before,
            after,
            tail: None,
        }
    }

    /// Number of bytes after the profile: the two texts, and the checksum line between them.
    pub(crate) fn bytes_after_profile(&self) -> u64 {
        (self.before.len() + checksum_line(0).len() + self.after.len()) as u64
    }
}

impl<R: Read> Read for ChecksummedDump<R> {
    /// Reads the profile, and after its end the text with the checksum.
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.tail.is_none() {
            let read = self.profile.read(out)?;
            if read > 0 || out.is_empty() {
                update_checksum(&mut self.sum, &out[..read]);
                return Ok(read);
            }
            // The profile is complete. The tail is built now, because it contains the checksum.
            update_checksum(&mut self.sum, self.before.as_bytes());
            update_checksum(&mut self.sum, self.after.as_bytes());
            let sum = checksum_line(self.sum.clone().finalize());
            let tail = format!("{}{sum}{}", self.before, self.after);
            self.tail = Some(Cursor::new(tail));
        }
        self.tail.as_mut().map_or(Ok(0), |tail| tail.read(out))
    }
}

/// Adds `bytes` to the checksum. Skips carriage returns, which some ways of copying text add.
fn update_checksum(sum: &mut Hasher, bytes: &[u8]) {
    let mut remaining = bytes;
    while let Some(end) = memchr::memchr(b'\r', remaining) {
        sum.update(&remaining[..end]);
        remaining = &remaining[end + 1..];
    }
    sum.update(remaining);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_covers_everything_except_its_line() {
        let check = |profile: &str, before: &str, after: &str| {
            let mut sealed =
                ChecksummedDump::new(profile.as_bytes(), [before, after].map(str::to_owned));
            let length = profile.len() as u64 + sealed.bytes_after_profile();
            let mut text = String::new();
            sealed.read_to_string(&mut text).unwrap();
            // The check value of CRC-32: the checksum of the digits 1 to 9.
            let line = "# checksum: crc32 cbf43926\n";
            assert_eq!(text, format!("{profile}{before}{line}{after}"));
            assert_eq!(text.len() as u64, length);
        };
        check("1234", "567", "89");
        check("", "123456789", "");
        check("123456789", "", "");
        check("1234\r", "\r567", "89\r\r");
    }
}
